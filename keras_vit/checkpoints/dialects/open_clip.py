"""The parts of open_clip's dialect that its image and text towers share."""

from keras_vit.checkpoints.dialects.facts import Facts
from keras_vit.checkpoints.dialects.timm import QKV
from keras_vit.checkpoints.names import ATTENTION, BLOCK, MLP

# Fields of both towers that are supported, and their defaults in open_clip.
_FIELDS = {"norm_kwargs": None, "act_kwargs": None}
# Supported values of `act_kwargs`: the exact GELU, or its tanh approximation.
_ACT_KWARGS: tuple = (None, {}, {"approximate": "tanh"})
# Values of other fields that change nothing.
_UNSET: tuple = (None, False, "", [], {})


def layers(prefix):
    """Returns the pairs of the arrays of a block; `prefix` contains the field `{i}`."""
    return (
        (f"{prefix}ln_1", f"{BLOCK}LayerNorm_0"),
        (f"{prefix}ln_2", f"{BLOCK}LayerNorm_1"),
        (f"{prefix}attn.in_proj_{{kind}}", QKV),
        (f"{prefix}attn.out_proj", f"{ATTENTION}out"),
        (f"{prefix}mlp.c_fc", f"{MLP}Dense_0"),
        (f"{prefix}mlp.c_proj", f"{MLP}Dense_1"),
    )


def read_tower(config, name, known, choices):
    """Returns the fields of a tower in an open_clip_config.json, and the facts that they state.

    Args:
        config: the parsed config.
        name: "vision_cfg" or "text_cfg".
        known: `{field: default}` of the supported fields, in addition to those of both towers.
        choices: `{field: supported values}` of fields with few supported values.
    """
    model = config["model_cfg"]
    known = {**_FIELDS, **known}
    tower = {**known, **model[name]}
    epsilon = (tower["norm_kwargs"] or {}).get("eps", 1e-5)
    norm_kwargs = (None, {}, {"eps": epsilon})
    others = {field: _UNSET for field in tower if field not in known}
    check_values(
        tower, {"norm_kwargs": norm_kwargs, "act_kwargs": _ACT_KWARGS, **choices, **others}
    )
    gelu = "gelu_tanh" if tower["act_kwargs"] else "gelu"
    return tower, Facts(epsilon=epsilon, mlp="quick_gelu" if model.get("quick_gelu") else gelu)


def check_values(fields, choices):
    """Raises a `ValueError` unless each field of `choices` has one of its supported values."""
    unsupported = [
        f"{field}={fields[field]!r}"
        for field, values in choices.items()
        if fields[field] not in values
    ]
    if unsupported:
        raise ValueError(f"these values are not supported: {', '.join(unsupported)}")
