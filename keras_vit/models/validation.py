"""Checks of the arguments of a Vision Transformer."""

from keras_vit.checkpoints.position_embeddings import RULES
from keras_vit.layers.resnet_stem import stem_stride_of
from keras_vit.layers.validation import check_choice, check_positive_int, check_rate, nearest_multiples

CLASSIFIERS = ("token", "gap", "token_gap", "map", "unpooled", "token_unpooled")
# Where a position embedding is added: to the tokens once, to the input of each block from a table of its own, or to
# the input of each block from one table.
POSITION_EMBEDDING_AT = ("stem", "every_layer", "every_layer_shared")


def patch_grid(input_shape, patch_size, resnet_blocks=None):
    """`(rows, columns)` of the patches of an image."""
    stem_stride = 1 if resnet_blocks is None else stem_stride_of(resnet_blocks)
    grid = []
    for axis, side in zip(("height", "width"), input_shape):
        features = -(-side // stem_stride)
        if features % patch_size or not features:
            raise ValueError(
                f"The patches do not fill the image's {axis}; sizes that work are "
                f"{nearest_multiples(side, stem_stride * patch_size)}. "
                f"Received: {axis}={side} with patch_size={patch_size}, resnet_blocks={resnet_blocks}"
            )
        grid.append(features // patch_size)
    return tuple(grid)


def check_vision_transformer(
    *,
    input_shape,
    classifier,
    position_embedding,
    position_embedding_at,
    class_token_position,
    epsilon,
    representation_size,
    num_registers,
    position_resampling,
    can_position_class_token,
    **arguments,
):
    """Raises a `ValueError` unless these are arguments of a `VisionTransformer`."""
    check_choice("classifier", classifier, CLASSIFIERS)
    check_choice("position_embedding_at", position_embedding_at, POSITION_EMBEDDING_AT)
    check_choice("position_resampling", position_resampling, RULES)
    if num_registers:
        check_positive_int("num_registers", num_registers)
    for argument in ("patch_size", "num_layers", "hidden_size", "mlp_dim", "num_heads", "classes"):
        check_positive_int(argument, arguments[argument])
    if representation_size:
        check_positive_int("representation_size", representation_size)
    for argument in ("dropout", "attention_dropout", "stochastic_depth"):
        check_rate(argument, arguments[argument])
    if arguments["hidden_size"] % arguments["num_heads"]:
        raise ValueError(
            "`num_heads` must divide `hidden_size`. "
            f"Received: num_heads={arguments['num_heads']}, hidden_size={arguments['hidden_size']}"
        )
    is_learned = position_embedding in ("learned", "learned2d")
    if position_embedding_at != "stem" and not (is_learned and class_token_position):
        raise ValueError(
            "Only learned and learned2d, with a position for the class token, are added at every layer. Received: "
            f"position_embedding_at={position_embedding_at!r}, position_embedding={position_embedding!r}, "
            f"class_token_position={class_token_position}"
        )
    if position_embedding_at != "stem" and num_registers:
        raise ValueError(
            "Registers have no positions, so positions cannot be added at every layer. Received: "
            f"num_registers={num_registers}, position_embedding_at={position_embedding_at!r}"
        )
    if arguments["distilled"] and (
        (classifier, position_embedding_at) != ("token", "stem")
        or representation_size
        or position_embedding[-2:] == "2d"
    ):
        raise ValueError(
            'A distilled model needs classifier="token", no `representation_size` and 1-D positions, added once. '
            f"Received: classifier={classifier!r}, representation_size={representation_size}, "
            f"position_embedding={position_embedding!r}, position_embedding_at={position_embedding_at!r}"
        )
    if arguments["pool_norm"] and "unpooled" in classifier:
        raise ValueError(f"`pool_norm` needs a classifier that pools. Received: classifier={classifier!r}")
    if classifier.startswith("token") and class_token_position and not can_position_class_token:
        raise ValueError(
            f"With `position_embedding={position_embedding!r}` a class token has no position: pass "
            f"`class_token_position=False`. Received: class_token_position={class_token_position}"
        )
    if not isinstance(epsilon, int | float) or not epsilon > 0:
        raise ValueError(f"`epsilon` must be a number above 0. Received: epsilon={epsilon!r}")
    if (
        not isinstance(input_shape, list | tuple)
        or len(input_shape) != 3
        or not all(isinstance(side, int) and side > 0 for side in input_shape)
    ):
        raise ValueError(
            "`input_shape` must be (height, width, channels), three positive integers. "
            f"Received: input_shape={input_shape!r}"
        )
