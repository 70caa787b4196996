"""Opening a checkpoint of any dialect, with its arrays in the layout of the JAX reference."""

import contextlib
import dataclasses
import json
import os
import re

from keras_vit.checkpoints import bit_names, huggingface_names, timm_names
from keras_vit.checkpoints.big_vision_names import from_big_vision
from keras_vit.checkpoints.npz import NpzFile
from keras_vit.checkpoints.safetensors import SafetensorsFile
from keras_vit.checkpoints.vit_jax_names import from_vit_jax
from keras_vit.preprocessing import Preprocessing

# The comment that `save` writes into the archive, followed by JSON: facts about the model that no array shows. Other
# libraries' readers ignore it. Older versions wrote "keras_vit grid 2x3".
COMMENT = "keras_vit "
_GELUS = {"gelu": True, "gelu_new": False, "gelu_pytorch_tanh": False}  # Hugging Face's names; whether it is exact


@dataclasses.dataclass
class Checkpoint:
    """A checkpoint that is open for reading.

    Attributes:
        dialect: "vit_jax" (big_vision included), "timm", "huggingface" or "bit".
        arrays: `{name in vit_jax: LazyArray}`, the weights. Names that the dialect's table does not know stay as they
            are in the file.
        other_arrays: `{name in the file: LazyArray}`, arrays that are not weights, such as an optimizer's state.
        facts: what the file itself, its library or the config.json beside it say about the model, as far as they do:
            "grid", `(rows, columns)` of the positions, "num_heads", "exact_gelu", "epsilon", and "preprocessing", the
            fields of a `Preprocessing`.
    """

    dialect: str
    arrays: dict
    other_arrays: dict
    facts: dict

    @property
    def grid(self):
        return self.facts.get("grid")

    @property
    def numerics(self):
        """The facts that change a model's outputs and that no array shows: `exact_gelu` and `epsilon`."""
        return {name: self.facts[name] for name in ("exact_gelu", "epsilon") if name in self.facts}

    @property
    def shapes(self):
        """`{name in vit_jax: shape}` of the weights."""
        return {name: array.shape for name, array in self.arrays.items()}


@contextlib.contextmanager
def open_checkpoint(path, subtree="", num_heads=None):
    """Opens a file of weights for the length of a `with`.

    Args:
        path: a local .npz or .safetensors file.
        subtree: where in an .npz file the weights are, such as "params/img"; "" searches the usual places.
        num_heads: number of attention heads, which no shape in PyTorch's files shows; or None.

    Yields:
        A `Checkpoint`. Only headers have been read.

    Raises:
        ValueError: the file cannot be read as a checkpoint.
    """
    reader = SafetensorsFile if str(path).endswith(".safetensors") else NpzFile
    with reader(path) as file:
        arrays = dict(file.arrays)
        if timm_names.MARKER in arrays:
            facts = {"exact_gelu": True, "epsilon": 1e-6}
            yield Checkpoint("timm", timm_names.from_timm(arrays, num_heads), {}, facts)
        elif huggingface_names.MARKER in arrays or f"vit.{huggingface_names.MARKER}" in arrays:
            facts = {"exact_gelu": True, "epsilon": 1e-12, **_hugging_face_config(path)}
            heads = num_heads or facts.get("num_heads")
            yield Checkpoint("huggingface", huggingface_names.from_huggingface(arrays, heads), {}, facts)
        elif bit_names.MARKER in arrays:
            yield Checkpoint("bit", bit_names.from_bit(arrays), {}, _parse_comment(file.comment))
        else:
            weights, other_arrays = from_vit_jax(arrays, subtree)
            yield Checkpoint("vit_jax", from_big_vision(weights), other_arrays, _parse_comment(file.comment))


def _hugging_face_config(path):
    """The facts in the `config.json` beside a file of Hugging Face's; {} without one."""
    try:
        with open(os.path.join(os.path.dirname(path), "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        if not isinstance(config, dict):
            raise ValueError("it is not a JSON object")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ValueError(f"The config.json beside the file cannot be read ({error}). Received: {path}") from error
    facts = {"num_heads": config.get("num_attention_heads"), "epsilon": config.get("layer_norm_eps")}
    if "hidden_act" in config:
        if config["hidden_act"] not in _GELUS:
            raise ValueError(
                f"The MLPs of a model must use GELU: {', '.join(_GELUS)} in config.json. "
                f"Received: hidden_act={config['hidden_act']!r} beside {path}"
            )
        facts["exact_gelu"] = _GELUS[config["hidden_act"]]
    return {name: value for name, value in facts.items() if value is not None}


def _parse_comment(comment):
    """The facts in the comment of an archive; {} for a comment that keras_vit did not write."""
    if match := re.fullmatch(r"keras_vit grid ([1-9]\d{0,5})x([1-9]\d{0,5})", comment):
        return {"grid": (int(match[1]), int(match[2]))}
    try:
        facts = json.loads(comment.removeprefix(COMMENT)) if comment.startswith(COMMENT) else {}
        if "grid" in facts:
            facts["grid"] = tuple(map(int, facts["grid"]))
        if "preprocessing" in facts:
            facts["preprocessing"] = Preprocessing.from_config(facts["preprocessing"]).to_config()
        return facts
    except (ValueError, TypeError, AttributeError):
        return {}
