"""Completes and checks the arguments of a Vision Transformer, and computes its patch grid."""

import types

from keras_vit import checkpoints
from keras_vit.arguments import check_names, parameters_of
from keras_vit.checkpoints.position_embeddings import RULES
from keras_vit.layers.positions import POSITION_EMBEDDINGS
from keras_vit.layers.resnet_stem import check_units, stem_stride_of
from keras_vit.layers.rotary import rotary_table
from keras_vit.layers.validation import (
    check_choice,
    check_positive_int,
    check_positive_ints,
    check_rate,
    nearest_multiples,
)

_CHOICES = {
    "classifier": ("token", "gap", "token_gap", "map", "unpooled", "token_unpooled"),
    "position_embedding": POSITION_EMBEDDINGS,
    "position_embedding_at": ("stem", "every_layer", "every_layer_shared"),
    "position_resampling": RULES,
}
# Names in `rotary`. The model determines the other arguments of `rotary_table`.
_ROTARY = [
    name for name in parameters_of(rotary_table) if name not in ("head_size", "grid", "prefix")
]
# Values of other arguments that some arguments require.
_WITH_POSITIONS_AT_EVERY_LAYER = {
    "position_embedding": ("learned", "learned2d"),
    "class_token_position": (True,),
    "num_registers": (0,),
}
_WITH_DISTILLATION = {
    "classifier": ("token",),
    "representation_size": (0,),
    "position_embedding": [name for name in POSITION_EMBEDDINGS if not name.endswith("2d")],
    "position_embedding_at": ("stem",),
}


def patch_grid(input_shape, patch_size, resnet_blocks=None):
    """Returns the patch grid of an image, `(rows, columns)`."""
    stem_stride = stem_stride_of(resnet_blocks)
    grid = []
    for axis, side in zip(("height", "width"), input_shape):
        features = -(-side // stem_stride)
        if features % patch_size or not features:
            raise ValueError(
                f"The image's {axis} must be a whole number of patches; the nearest valid "
                f"{axis}s are {nearest_multiples(side, stem_stride * patch_size)}. Received: "
                f"{axis}={side} with patch_size={patch_size}, resnet_blocks={resnet_blocks}"
            )
        grid.append(features // patch_size)
    return tuple(grid)


def complete_arguments(arguments, weights, stem):
    """Returns the arguments with the ResNet stem resolved and without unset values.

    `classes` and `representation_size` default to those of the published `weights`, otherwise to
    1000 and 0. `include_top` becomes False if the published weights have no head.
    """
    arguments = {**arguments, "resnet_blocks": _units_of_stem(stem, arguments["resnet_blocks"])}
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
        # An empty dict would read as no rotary embedding, so name one of the defaults.
        arguments["rotary"] = dict(arguments["rotary"]) or {"style": "half"}
    return arguments


def _units_of_stem(stem, resnet_blocks):
    """Returns the number of units in each stage of the ResNet stem, or None for no stem."""
    if stem not in (None, "", "resnet"):
        raise ValueError(f'`stem` must be "resnet", or "" for none. Received: {stem=}')
    if stem == "" and resnet_blocks:
        raise ValueError(
            f'`resnet_blocks` requires stem="resnet". Received: {resnet_blocks=}, {stem=}'
        )
    if stem == "" or (stem is None and resnet_blocks is None):
        return None
    units = () if resnet_blocks is None else resnet_blocks
    check_units("resnet_blocks", units)
    return tuple(units)


def check_vision_transformer(arguments):
    """Raises a `ValueError` for an invalid argument; the layers check further arguments."""
    _check_values(arguments)
    _check_combinations(arguments)


def refuse(message, arguments, *names):
    """Raises a `ValueError` that names the values of some arguments."""
    received = ", ".join(f"{name}={arguments[name]!r}" for name in names)
    raise ValueError(f"{message} Received: {received}")


def check_supported(arguments, supported, message):
    """Raises a `ValueError` with a message if the value of an argument is not supported.

    `supported` maps names to the values that are.
    """
    other = [name for name, values in supported.items() if arguments[name] not in values]
    if other:
        refuse(message, arguments, *other)


def _check_values(arguments):
    """Checks each argument on its own."""
    for name, choices in _CHOICES.items():
        check_choice(name, arguments[name], choices)
    for name in ("patch_size", "num_layers", "classes"):
        check_positive_int(name, arguments[name])
    for name in ("num_registers", "representation_size"):  # 0 is off
        if arguments[name]:
            check_positive_int(name, arguments[name])
    for name in ("dropout", "stochastic_depth"):
        check_rate(name, arguments[name])
    rule = "(height, width, channels), three positive integers"
    check_positive_ints("input_shape", arguments["input_shape"], rule, 3)


def _check_combinations(arguments):
    """Checks arguments that depend on each other."""
    a = types.SimpleNamespace(**arguments)
    if a.position_embedding_at != "stem":
        check_supported(
            arguments,
            _WITH_POSITIONS_AT_EVERY_LAYER,
            "`position_embedding_at` must be stem unless every token has a learned or learned2d "
            "position embedding.",
        )
    if a.distilled:
        check_supported(
            arguments,
            _WITH_DISTILLATION,
            '`distilled` requires classifier="token", no `representation_size`, '
            'position_embedding_at="stem" and no 2-D `position_embedding`.',
        )
    if a.pool_norm and "unpooled" in a.classifier:
        message = "`pool_norm` requires a classifier that pools the tokens."
        refuse(message, arguments, "classifier")
    check_names("rotary", _ROTARY, a.rotary or {})
    positions = POSITION_EMBEDDINGS[a.position_embedding]
    has_positioned_token = a.classifier.startswith("token") and a.class_token_position
    if has_positioned_token and not positions.has_class_token_position:
        refuse(
            "`class_token_position` must be False with position embeddings that have none for a "
            "class token.",
            arguments,
            "class_token_position",
            "position_embedding",
        )
