"""The names of the published BiT files (`bit_models/*.npz`), TensorFlow's; weights are stored as the original's."""

import re

MARK = "resnet/root_block/standardized_conv2d/kernel"

_BRANCHES = {"a": "1", "b": "2", "c": "3"}
_NORM_WEIGHTS = {"gamma": "scale", "beta": "bias"}


def from_bit(arrays):
    """A file's arrays under big_vision's names for the same model: `{name: Stored}`; unknown names stay."""
    weights = {}
    for in_file, stored in arrays.items():
        name = _current(in_file)
        if name is None:
            weights[in_file] = stored
        elif name == "head/kernel" and len(stored.shape) == 4:
            weights[name] = stored.reshaped(stored.shape[2:])
        elif len(stored.shape) == 4 and not name.endswith("kernel"):
            weights[name] = stored.reshaped(stored.shape[3:])
        else:
            weights[name] = stored
    return weights


def to_bit(name, array):
    """`(name, array)` as the published files have it, for a name of big_vision's."""
    if name == "root_block/conv_root/kernel":
        return MARK, array
    if name.startswith("norm-pre-head/"):
        return "resnet/group_norm/" + _tf_norm_weight(name), array
    if name.startswith("head/"):
        array = array[None, None] if array.ndim == 2 else array
        return f"resnet/head/conv2d/{name.partition('/')[2]}", array
    block, unit, module, _ = name.split("/")
    base = f"resnet/{block}/{unit}"
    if module == "conv_proj":
        return f"{base}/a/proj/standardized_conv2d/kernel", array
    branch = next(branch for branch, number in _BRANCHES.items() if number == module[-1])
    if module.startswith("conv"):
        return f"{base}/{branch}/standardized_conv2d/kernel", array
    return f"{base}/{branch}/group_norm/{_tf_norm_weight(name)}", array


def _current(name):
    """The name in big_vision's words, or None."""
    if name == MARK:
        return "root_block/conv_root/kernel"
    if match := re.fullmatch(r"resnet/group_norm/(gamma|beta)", name):
        return f"norm-pre-head/{_NORM_WEIGHTS[match[1]]}"
    if match := re.fullmatch(r"resnet/head/conv2d/(kernel|bias)", name):
        return f"head/{match[1]}"
    match = re.fullmatch(r"resnet/(block\d+)/(unit\d+)/([abc])/(.*)", name)
    if not match:
        return None
    base, branch, rest = f"{match[1]}/{match[2]}", match[3], match[4]
    if re.fullmatch(r"standardized_conv2d(_\d+)?/kernel", rest):
        return f"{base}/conv{_BRANCHES[branch]}/kernel"
    if branch == "a" and re.fullmatch(r"proj/standardized_conv2d(_\d+)?/kernel", rest):
        return f"{base}/conv_proj/kernel"
    if norm := re.fullmatch(r"group_norm(_\d+)?/(gamma|beta)", rest):
        return f"{base}/gn{_BRANCHES[branch]}/{_NORM_WEIGHTS[norm[2]]}"
    return None


def _tf_norm_weight(name):
    return "gamma" if name.endswith("/scale") else "beta"
