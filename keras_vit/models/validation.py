"""Checks the arguments of a Vision Transformer."""

import types

from keras_vit import checkpoints
from keras_vit.checkpoints.position_embeddings import RULES
from keras_vit.layers.resnet_stem import resolve_stem, stem_stride_of
from keras_vit.layers.validation import (
    check_choice,
    check_positive_int,
    check_rate,
    nearest_multiples,
)

CLASSIFIERS = ("token", "gap", "token_gap", "map", "unpooled", "token_unpooled")
# Where position embeddings are added: once before the blocks, or to the input of every block. In
# the second case, each block has its own table, or all blocks share one table.
POSITION_EMBEDDING_AT = ("stem", "every_layer", "every_layer_shared")


def patch_grid(input_shape, patch_size, resnet_blocks=None):
    """Returns the patch grid of an image, `(rows, columns)`."""
    stem_stride = 1 if resnet_blocks is None else stem_stride_of(resnet_blocks)
    grid = []
    for axis, side in zip(("height", "width"), input_shape):
        features = -(-side // stem_stride)
        if features % patch_size or not features:
            larger = ", at least one" if patch_size > features else ""
            raise ValueError(
                f"The image's {axis} must be a whole number of patches{larger}; the nearest valid "
                f"{axis}s are {nearest_multiples(side, stem_stride * patch_size)}. Received: "
                f"{axis}={side} with patch_size={patch_size}, resnet_blocks={resnet_blocks}"
            )
        grid.append(features // patch_size)
    return tuple(grid)


def complete_arguments(arguments, weights, stem):
    """Fills arguments that are None from published weights, and resolves the ResNet stem."""
    arguments = {**arguments, "resnet_blocks": resolve_stem(stem, arguments["resnet_blocks"])}
    published = None if weights is None else checkpoints.find_published(weights, **arguments)
    if published is not None and published.classes == 0 and arguments["classes"] is None:
        arguments["include_top"] = False
    elif published is not None:
        for name in ("classes", "representation_size"):
            if arguments[name] is None:
                arguments[name] = getattr(published, name)
    if arguments["classes"] is None:
        arguments["classes"] = 1000
    arguments["representation_size"] = arguments["representation_size"] or 0
    if arguments["rotary"] is not None:
        arguments["rotary"] = dict(arguments["rotary"])
    return arguments


def check_vision_transformer(arguments, position_embeddings):
    """Raises a `ValueError` for an invalid argument; the layers check further arguments."""
    check_choice("position_embedding", arguments["position_embedding"], position_embeddings)
    can_position_class_token = position_embeddings[
        arguments["position_embedding"]
    ].has_class_token_position
    a = types.SimpleNamespace(**arguments)

    def refuse(message, *names):
        received = ", ".join(f"{name}={arguments[name]!r}" for name in names)
        raise ValueError(f"{message} Received: {received}")

    check_choice("classifier", a.classifier, CLASSIFIERS)
    check_choice("position_embedding_at", a.position_embedding_at, POSITION_EMBEDDING_AT)
    check_choice("position_resampling", a.position_resampling, RULES)
    # Check each argument on its own.
    counts = ["patch_size", "num_layers", "hidden_size", "classes"]
    for name in counts + [
        name for name in ("num_registers", "representation_size") if arguments[name]
    ]:
        check_positive_int(name, arguments[name])
    for name in ("dropout", "stochastic_depth"):
        check_rate(name, arguments[name])
    # Check combinations of arguments.
    is_learned = a.position_embedding in ("learned", "learned2d")
    if a.position_embedding_at != "stem" and not (
        is_learned and a.class_token_position and not a.num_registers
    ):
        refuse(
            "`position_embedding_at` must be stem unless every token has a learned or learned2d "
            "position embedding.",
            *(
                "position_embedding_at",
                "position_embedding",
                "class_token_position",
                "num_registers",
            ),
        )
    is_plain = (a.classifier, a.position_embedding_at) == (
        "token",
        "stem",
    ) and a.position_embedding[-2:] != "2d"
    if a.distilled and (a.representation_size or not is_plain):
        refuse(
            '`distilled` requires classifier="token", no `representation_size`, '
            'position_embedding_at="stem" and a 1-D '
            "`position_embedding`.",
            *("classifier", "representation_size", "position_embedding", "position_embedding_at"),
        )
    if a.pool_norm and "unpooled" in a.classifier:
        refuse("`pool_norm` requires a classifier that pools the tokens.", "classifier")
    if a.classifier.startswith("token") and a.class_token_position and not can_position_class_token:
        message = (
            "`class_token_position` must be False with "
            f"position_embedding={a.position_embedding!r},"
        )
        refuse(f"{message} which has no position for a class token.", "class_token_position")
    if not isinstance(a.epsilon, int | float) or not a.epsilon > 0:
        refuse("`epsilon` must be a number above 0.", "epsilon")
    is_shape = isinstance(a.input_shape, list | tuple) and len(a.input_shape) == 3
    if not is_shape or not all(isinstance(side, int) and side > 0 for side in a.input_shape):
        refuse(
            "`input_shape` must be (height, width, channels), three positive integers.",
            "input_shape",
        )
