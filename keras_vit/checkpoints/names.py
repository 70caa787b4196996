"""What the original calls each variable of a model, in its two numberings, and which layout its files have."""

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
EMBEDDING = "embedding/kernel"

CLASS_TOKEN = "cls"

# Where the published files keep the weights: at the top, or under an optimizer or a training state.
_PREFIXES = ("", "opt/target/", "params/", "params/img/", "img/", "opt/target/img/")
# Every file has one of these: a Transformer's, a ResNet's, a BiT ResNet's.
_ANCHORS = ("embedding/kernel", "conv_root/kernel", "root_block/conv_root/kernel")

_GROUP_NORM = re.compile(r"(^|/)(gn(_root|_proj|\d+)|norm-pre-head)/(scale|bias)$")
# The numbers that the published files give the modules of a block, which count them jointly.
_PUBLISHED_NUMBERS = [
    (r"(encoderblock_\d+)/MultiHeadDotProductAttention_0/", r"\1/MultiHeadDotProductAttention_1/"),
    (r"(encoderblock_\d+)/LayerNorm_1/", r"\1/LayerNorm_2/"),
    (r"(encoderblock_\d+)/MlpBlock_0/", r"\1/MlpBlock_3/"),
]


def original_names(model):
    """`{name in the original: variable}` for every weight of a model, in the model's order."""
    names = {}
    for layer in model.layers:
        for variable in layer.weights:
            # Inside another model a path has a prefix; what counts starts at the layer.
            name = layer.name + "/" + variable.path.rpartition(f"{layer.name}/")[2]
            for pattern, replacement in _RENAMES:
                name = re.sub(pattern, replacement, name)
            names[name] = variable
    return names


def original_shapes(model):
    """`{name in the original: shape in the original}` for every weight of a model."""
    shapes = {name: tuple(variable.shape) for name, variable in original_names(model).items()}
    if len(shapes.get(EMBEDDING, ())) == 2:
        side = model.get_layer("patches").patch_size
        values, hidden_size = shapes[EMBEDDING]
        shapes[EMBEDDING] = (side, side, values // side**2, hidden_size)
    return shapes


def to_linen(names):
    """`{current name: name in the file}` for the names in a file, of either numbering.

    The published files number modules jointly within their parent (`LayerNorm_0`, `MultiHead..._1`, `LayerNorm_2`,
    `MlpBlock_3`); current code counts each kind on its own. Names that are current already stay as they are.
    """
    children = {}
    for name in names:
        parts = name.split("/")
        for depth, part in enumerate(parts):
            children.setdefault("/".join(parts[:depth]), set()).add(part)
    renamed = {parent: _renumber(sorted(parts, key=_natural)) for parent, parts in children.items()}
    linen = {}
    for name in names:
        parts = name.split("/")
        new = [renamed["/".join(parts[:depth])][part] for depth, part in enumerate(parts)]
        linen["/".join(new)] = name
    return linen


def to_published(name):
    """A current name in the numbering of the published files."""
    for pattern, replacement in _PUBLISHED_NUMBERS:
        name = re.sub(pattern, replacement, name)
    return name


def from_original(arrays, subtree=""):
    """A file's arrays in the original's layout.

    Args:
        arrays: `{name in the file: Stored}`.
        subtree: where in the file the weights are, such as "params/img"; found where it is not given.

    Returns:
        `({current name: Stored}, {name in the file: Stored})`, the weights and whatever else the file holds.

    Reference: the original's `checkpoint.py`; prefixes as timm and big_vision accept them.
    """
    if subtree:
        prefix = subtree.rstrip("/") + "/"
        candidates = [prefix, f"params/{prefix}", f"opt/target/{prefix}"]
    else:
        candidates = _PREFIXES
    prefix = next((p for p in candidates if any(p + anchor in arrays for anchor in _ANCHORS)), candidates[0])
    inside = {name.removeprefix(prefix): stored for name, stored in arrays.items() if name.startswith(prefix)}
    others = {name: stored for name, stored in arrays.items() if not name.startswith(prefix)}
    weights = {}
    for name, in_file in to_linen(inside).items():
        stored = inside[in_file]
        if is_group_norm(name) and len(stored.shape) == 4 and stored.shape[:3] == (1, 1, 1):
            stored = stored.reshaped(stored.shape[3:])
        weights[name] = stored
    return weights, others


def is_group_norm(name):
    """Whether a name is a GroupNorm's array, which older files store as `(1, 1, 1, C)`."""
    return _GROUP_NORM.search(name) is not None


def _natural(part):
    """Sorts `encoderblock_10` after `encoderblock_9`."""
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in re.split(r"(\d+)", part)]


def _renumber(parts):
    counts, new = {}, {}
    for part in parts:
        stem, underscore, number = part.rpartition("_")
        if underscore and number.isdigit():
            new[part] = f"{stem}_{counts.get(stem, 0)}"
            counts[stem] = counts.get(stem, 0) + 1
        else:
            new[part] = part
    return new
