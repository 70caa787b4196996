"""The JAX reference's names (`vit_jax`) for the variables of a model, in both of its numberings.

The published files number the modules of a block jointly (`LayerNorm_0`, `MultiHeadDotProductAttention_1`,
`LayerNorm_2`, `MlpBlock_3`), current Flax Linen numbers each kind by itself. All code here uses Linen's names.
"""

import re

# From the path of a variable, `layer/sublayer/weight`, to its name in a checkpoint; applied in this order.
_RENAMES = [
    (r"^class_token/", ""),
    (r"^resnet_stem/", ""),
    (r"^resnet/conv_root/", "root_block/conv_root/"),
    (r"^resnet/", ""),
    (r"^pool/", "MAPHead_0/"),
    (r"^(block\d+)_(unit\d+)/", r"\1/\2/"),
    (r"^position_embedding/", "Transformer/posembed_input/"),
    (r"^position_embedding_(\d+)/", r"Transformer/encoderblock_\1/posembed_input/"),  # of a layer; not in `vit_jax`
    (r"^(encoderblock_\d+|encoder_norm)/", r"Transformer/\1/"),
    (r"/norm(_1)?/", "/LayerNorm_0/"),
    (r"/attention/", "/MultiHeadDotProductAttention_0/"),
    (r"/norm_2/", "/LayerNorm_1/"),
    (r"/mlp_1/", "/MlpBlock_0/Dense_0/"),
    (r"/mlp_2/", "/MlpBlock_0/Dense_1/"),
    (r"/gamma$", "/scale"),
    (r"/beta$", "/bias"),
]

POSITIONS = "Transformer/posembed_input/pos_embedding"
# The positions that only models of keras_vit have: two axes, those of a layer, distances, offsets along an axis. All
# are resampled.
OTHER_POSITIONS = re.compile(r"/(posembed_input/(pos|x|y)_embedding|relative_embedding|axis_embedding)$")
CLASS_TOKEN = "cls"
HEAD = ("head/kernel", "head/bias")

# The kernels that may be the first to see an image: a Transformer's, a ResNet stem's, a BiT ResNet's.
EMBEDDING = "embedding/kernel"
STEM_ROOT = "conv_root/kernel"
BIT_ROOT = "root_block/conv_root/kernel"

# Where files keep the weights: at the top level, or inside an optimizer or a training state.
_PREFIXES = ("", "opt/target/", "params/", "params/img/", "img/", "opt/target/img/")

_GROUP_NORM = re.compile(r"(^|/)(gn(_root|_proj|_qkv|_out|\d+)|norm-pre-head)/(scale|bias)$")
# From Linen's numbering to that of the published files.
_JOINT_NUMBERS = [
    (r"(encoderblock_\d+)/MultiHeadDotProductAttention_0/", r"\1/MultiHeadDotProductAttention_1/"),
    (r"(encoderblock_\d+)/LayerNorm_1/", r"\1/LayerNorm_2/"),
    (r"(encoderblock_\d+)/MlpBlock_0/", r"\1/MlpBlock_3/"),
]


def vit_jax_variables(model):
    """`{name in vit_jax: variable}` for every weight of a model, in the model's order."""
    variables = {}
    for layer in model.layers:
        for variable in layer.weights:
            # Inside another model a path has a prefix; the name starts at the layer.
            name = layer.name + "/" + variable.path.rpartition(f"{layer.name}/")[2]
            for pattern, replacement in _RENAMES:
                name = re.sub(pattern, replacement, name)
            variables[name] = variable
    return variables


def vit_jax_shapes(model):
    """`{name in vit_jax: shape in vit_jax}` for every weight of a model."""
    shapes = {name: tuple(variable.shape) for name, variable in vit_jax_variables(model).items()}
    if len(shapes.get(EMBEDDING, ())) == 2:
        side = next(layer.patch_size for layer in model.layers if hasattr(layer, "patch_size"))
        values, hidden_size = shapes[EMBEDDING]
        shapes[EMBEDDING] = (side, side, values // side**2, hidden_size)
    return shapes


def first_kernel(shapes):
    """The name of the kernel that is applied to the images, `(height, width, in, out)`.

    Args:
        shapes: a dict whose keys are names in `vit_jax`.
    """
    return next((name for name in (BIT_ROOT, STEM_ROOT, EMBEDDING) if name in shapes), None)


def to_linen(names):
    """`{name in Linen's numbering: name in the file}` for the names in a file, of either numbering."""
    children = {}
    for name in names:
        parts = name.split("/")
        for depth, part in enumerate(parts):
            children.setdefault("/".join(parts[:depth]), set()).add(part)
    renumbered = {parent: _renumber(sorted(parts, key=_natural_order)) for parent, parts in children.items()}
    linen = {}
    for name in names:
        parts = name.split("/")
        new = [renumbered["/".join(parts[:depth])][part] for depth, part in enumerate(parts)]
        linen["/".join(new)] = name
    return linen


def to_published_name(name):
    """A name in Linen's numbering, in the numbering of the published files."""
    for pattern, replacement in _JOINT_NUMBERS:
        name = re.sub(pattern, replacement, name)
    return name


def from_vit_jax(arrays, subtree=""):
    """The weights among the arrays of a file of `vit_jax` or big_vision.

    Args:
        arrays: `{name in the file: LazyArray}`.
        subtree: where in the file the weights are, such as "params/img"; "" searches the usual places.

    Returns:
        `({name in Linen's numbering: LazyArray}, {name in the file: LazyArray})`, the weights and all other arrays.

    Reference: `checkpoint.py` of `vit_jax`; prefixes as timm and big_vision accept them.
    """
    if subtree:
        prefix = subtree.rstrip("/") + "/"
        candidates = [prefix, f"params/{prefix}", f"opt/target/{prefix}"]
    else:
        candidates = _PREFIXES
    first_kernels = (EMBEDDING, STEM_ROOT, BIT_ROOT)
    prefix = next((p for p in candidates if any(p + name in arrays for name in first_kernels)), candidates[0])
    inside = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    others = {name: array for name, array in arrays.items() if not name.startswith(prefix)}
    weights = {}
    for name, name_in_file in to_linen(inside).items():
        array = inside[name_in_file]
        if is_group_norm(name) and len(array.shape) == 4 and array.shape[:3] == (1, 1, 1):
            array = array.reshape(array.shape[3:])
        weights[name] = array
    return weights, others


def is_group_norm(name):
    """Whether a name is that of a GroupNorm's array, which older files store as `(1, 1, 1, C)`."""
    return _GROUP_NORM.search(name) is not None


def _natural_order(part):
    """Sorts `encoderblock_10` after `encoderblock_9`."""
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in re.split(r"(\d+)", part)]


def _renumber(parts):
    """`{module: module}`, the modules of each kind counted from 0."""
    counts, new = {}, {}
    for part in parts:
        kind, underscore, number = part.rpartition("_")
        if underscore and number.isdigit():
            new[part] = f"{kind}_{counts.get(kind, 0)}"
            counts[kind] = counts.get(kind, 0) + 1
        else:
            new[part] = part
    return new
