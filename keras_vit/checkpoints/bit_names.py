"""The names of the published BiT files (`bit_models/*.npz`), which are TensorFlow's; big_vision's name the same model.

Kernels have one layout in both. A head `(1, 1, in, classes)` and GroupNorms `(1, 1, 1, C)` lose their axes of 1 here.
"""

import re

from keras_vit.checkpoints.vit_jax_names import BIT_ROOT

# An array of this name makes a file one of BiT's.
MARKER = "resnet/root_block/standardized_conv2d/kernel"

_BRANCHES = {"a": "1", "b": "2", "c": "3"}
_NORM_WEIGHTS = {"gamma": "scale", "beta": "bias"}


def from_bit(arrays):
    """A file's arrays under big_vision's names: `{name: LazyArray}`; names that are not known stay as they are."""
    weights = {}
    for name_in_file, array in arrays.items():
        name = _big_vision_name(name_in_file)
        if name is None:
            weights[name_in_file] = array
        elif name == "head/kernel" and len(array.shape) == 4:
            weights[name] = array.reshape(array.shape[2:])
        elif len(array.shape) == 4 and not name.endswith("kernel"):
            weights[name] = array.reshape(array.shape[3:])
        else:
            weights[name] = array
    return weights


def to_bit(name, array):
    """`(name, array)` as the published files have it, for a name of big_vision's and a numpy array."""
    if name == BIT_ROOT:
        return MARKER, array
    if name.startswith("norm-pre-head/"):
        return "resnet/group_norm/" + _tf_norm_weight(name), array
    if name.startswith("head/"):
        array = array[None, None] if array.ndim == 2 else array
        return f"resnet/head/conv2d/{name.partition('/')[2]}", array
    block, unit, module, _ = name.split("/")
    prefix = f"resnet/{block}/{unit}"
    if module == "conv_proj":
        return f"{prefix}/a/proj/standardized_conv2d/kernel", array
    branch = next(branch for branch, number in _BRANCHES.items() if number == module[-1])
    if module.startswith("conv"):
        return f"{prefix}/{branch}/standardized_conv2d/kernel", array
    return f"{prefix}/{branch}/group_norm/{_tf_norm_weight(name)}", array


def _big_vision_name(name):
    """big_vision's name for a name in a BiT file, or None where it is not known."""
    if name == MARKER:
        return BIT_ROOT
    if match := re.fullmatch(r"resnet/group_norm/(gamma|beta)", name):
        return f"norm-pre-head/{_NORM_WEIGHTS[match[1]]}"
    if match := re.fullmatch(r"resnet/head/conv2d/(kernel|bias)", name):
        return f"head/{match[1]}"
    match = re.fullmatch(r"resnet/(block\d+)/(unit\d+)/([abc])/(.*)", name)
    if not match:
        return None
    prefix, branch, rest = f"{match[1]}/{match[2]}", match[3], match[4]
    if re.fullmatch(r"standardized_conv2d(_\d+)?/kernel", rest):
        return f"{prefix}/conv{_BRANCHES[branch]}/kernel"
    if branch == "a" and re.fullmatch(r"proj/standardized_conv2d(_\d+)?/kernel", rest):
        return f"{prefix}/conv_proj/kernel"
    if norm := re.fullmatch(r"group_norm(_\d+)?/(gamma|beta)", rest):
        return f"{prefix}/gn{_BRANCHES[branch]}/{_NORM_WEIGHTS[norm[2]]}"
    return None


def _tf_norm_weight(name):
    return "gamma" if name.endswith("/scale") else "beta"
