"""What the original calls each variable of a model, in its current (Flax Linen) numbering."""

import re

# From the path of a variable, `layer/sublayer/weight`, to its name in a checkpoint; applied in this order.
_RENAMES = [
    (r"^class_token/", ""),
    (r"^resnet_stem/", ""),
    (r"^(block\d+)_(unit\d+)/", r"\1/\2/"),
    (r"^position_embedding/", "Transformer/posembed_input/"),
    (r"^(encoderblock_\d+|encoder_norm)/", r"Transformer/\1/"),
    (r"/norm_1/", "/LayerNorm_0/"),
    (r"/attention/", "/MultiHeadDotProductAttention_0/"),
    (r"/norm_2/", "/LayerNorm_1/"),
    (r"/mlp_1/", "/MlpBlock_0/Dense_0/"),
    (r"/mlp_2/", "/MlpBlock_0/Dense_1/"),
    (r"/gamma$", "/scale"),
    (r"/beta$", "/bias"),
]

POSITIONS = "Transformer/posembed_input/pos_embedding"
EMBEDDING = "embedding/kernel"

_GROUP_NORM = re.compile(r"(^|/)gn(_root|_proj|\d+)/(scale|bias)$")


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
