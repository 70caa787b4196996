"""Converts names of weights to canonical names, those in the current version of `vit_jax`.

Weights that `vit_jax` lacks have the names in big_vision or similar names.
"""

import re

# Substitutions, applied in this order, that convert the path of a variable,
# `layer/sublayer/weight`, to its canonical name.
_RENAMES = {
    r"^(class_token|register_tokens)/": "",
    r"^resnet_stem/": "",
    r"^resnet/conv_root/": "root_block/conv_root/",
    r"^resnet/": "",
    r"^pool_norm/": "fc_norm/",
    r"^pool/": "MAPHead_0/",
    r"^(block\d+)_(unit\d+)/": r"\1/\2/",
    r"^position_embedding/": "Transformer/posembed_input/",
    r"^position_embedding_(\d+)/": r"Transformer/encoderblock_\1/posembed_input/",
    r"^(encoderblock_\d+|encoder_norm|pre_norm)/": r"Transformer/\1/",
    r"/norm(_1)?/": "/LayerNorm_0/",
    r"/attention/": "/MultiHeadDotProductAttention_0/",
    r"/norm_2/": "/LayerNorm_1/",
    r"/mlp_1/": "/MlpBlock_0/Dense_0/",
    r"/mlp_2/": "/MlpBlock_0/Dense_1/",
    r"/mlp_gate/": "/MlpBlock_0/Dense_gate/",
    r"/mlp_norm/": "/MlpBlock_0/LayerNorm_0/",
    r"/layer_scale_1/": "/LayerScale_0/",
    r"/layer_scale_2/": "/LayerScale_1/",
    r"/gamma$": "/scale",
    r"/beta$": "/bias",
}
# Templates of the names in a block.
BLOCK = "Transformer/encoderblock_{i}/"
ATTENTION = BLOCK + "MultiHeadDotProductAttention_0/"
MLP = BLOCK + "MlpBlock_0/"
POSITIONS = "Transformer/posembed_input/pos_embedding"
# Matches the position embeddings that can be resampled. x and y embeddings each cover one axis of
# the grid.
POSITION_NAMES = re.compile(r".*/posembed_input/(pos|x|y)_embedding")
CLASS_TOKEN = "cls"
DISTILLATION_TOKEN = "distillation_token/cls"
HEAD = ("head/kernel", "head/bias")
# Names of the first kernel, which is applied to images.
EMBEDDING = "embedding/kernel"  # of a Vision Transformer without a ResNet
STEM_ROOT = "conv_root/kernel"  # of a hybrid, or of a version 1 ResNet
BIT_ROOT = "root_block/conv_root/kernel"  # of a version 2 ResNet

_GROUP_NORM = re.compile(r"(^|/)(gn(_root|_proj|\d+)|norm-pre-head)/(scale|bias)$")


def canonical_name(path):
    """Converts the path of a variable to its canonical name; leaves canonical names unchanged."""
    for pattern, replacement in _RENAMES.items():
        path = re.sub(pattern, replacement, path)
    return path


def canonical_variables(model):
    """Returns `{canonical name: variable}` for every weight of a model, in the model's order."""
    return {
        canonical_name(path_inside(layer, variable)): variable
        for layer in model.layers
        for variable in layer.weights
    }


def path_inside(layer, variable):
    """Returns the path of a layer's variable without the prefix that it has in a nested model."""
    return f"{layer.name}/{variable.path.rpartition(f'{layer.name}/')[2]}"


def canonical_shapes(model):
    """Returns `{canonical name: shape}` for every weight of a model.

    A patch kernel has the shape `(height, width, in, out)`.
    """
    shapes = {name: tuple(variable.shape) for name, variable in canonical_variables(model).items()}
    if len(shapes.get(EMBEDDING, ())) == 2:
        side = next(layer.patch_size for layer in model.layers if hasattr(layer, "patch_size"))
        values, hidden_size = shapes[EMBEDDING]
        shapes[EMBEDDING] = (side, side, values // side**2, hidden_size)
    return shapes


def count_class_tokens(names):
    """Returns the number of class tokens among canonical names, which is 2 in a distilled model."""
    return (CLASS_TOKEN in names) + (DISTILLATION_TOKEN in names)


def first_kernel(names):
    """Returns the canonical name of the convolution kernel that is applied to images, or None."""
    return next((name for name in (BIT_ROOT, STEM_ROOT, EMBEDDING) if name in names), None)


def is_group_norm(name):
    """Returns whether a canonical name belongs to GroupNorm.

    In older files, the arrays of GroupNorm have shape `(1, 1, 1, C)`.
    """
    return _GROUP_NORM.search(name) is not None
