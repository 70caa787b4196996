"""The papers' recipes for a model and a dataset, as changes to a config's defaults."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from keras_vit import families
from keras_vit.recipes import tables

_PRETRAINING_DATA = {
    "image_size": 224,
    "rounding": "uint8",
    "exif": "off",  # as in `vit_jax`
    "train_crop": "inception",
    "eval_crop": "resize_small_crop",
    "resize_size": 256,
}


def parse_config_arg(
    text: str, example: str = "ViT-B/16,cifar10", known: Sequence[str] | None = None
) -> tuple[str, str, dict[str, Any]]:
    """Parses the text after the colon in `--config=pretrain:ViT-L/16,imagenet21k,epochs=30`.

    Args:
        text: the text.
        example: an example of a text, for the error message.
        known: names of the choices that the config takes; None for any.

    Returns: `(model, dataset, choices)`: two names, and a dict of the choices, with numeric values
        converted to numbers.

    Raises:
        ValueError: the text does not have this form, or a choice is not in `known`.
    """
    model, _, rest = text.partition(",")
    dataset, *words = rest.split(",")
    choices = dict(word.split("=", 1) for word in words if "=" in word)
    is_known = known is None or set(choices) <= set(known)
    if not model or not dataset or len(choices) != len(words) or not is_known:
        allowed = "optional choices" if known is None else ", ".join(known) or "no choices"
        raise ValueError(
            f"The config takes a model, a dataset and {allowed}, such as {example}. Received: "
            f"{text!r}"
        )
    return model, dataset, {name: _number(value) for name, value in choices.items()}


def _is_bit(model):
    return families.canonical_name(model).startswith("BiT-")


def pretraining(model: str, dataset: str, /, **choices: Any) -> dict[str, Any]:
    """Returns the pre-training recipe for a model and a dataset from the paper's Table 3.

    Args:
        model: name in the paper, such as "ViT-B/16", "R50+ViT-B/32" or "R50x1" (or "BiT-R50x1").
        dataset: "jft300m", "imagenet21k" or "imagenet2012".
        **choices: `epochs`, if Table 3 has several values for it.

    Returns: A nested dict of changes for `defaults`. Its `model` group contains arguments for
        `families.model_config`, which adds the size of the model. `pre_logits=True` adds the
        paper's hidden layer before the head.

    Raises:
        ValueError: Table 3 has no row for the model and the dataset, or a choice is missing or not
            in the row.
    """
    model = families.canonical_name(model)
    rows = [row for row in tables.TABLE_3 if _has(row.models, model)]
    values = _row_of(rows, "Table 3", model, dataset, choices)
    loss, head_bias = tables.PRETRAINING_LOSS[dataset]
    arguments = {} if _is_bit(model) else {"dropout": values["dropout"], "pre_logits": True}
    return {
        "recipe": f"pre-training of {model} on {dataset}, Table 3",
        "batch_size": 4096,
        "total_epochs": values["epochs"],
        "clip_norm": tables.TABLE_3_CLIP_NORM[dataset],
        "loss": loss,
        "model": {"head_bias": head_bias, **arguments},
        "data": _PRETRAINING_DATA,
        "optimizer": {"name": "adamw", "weight_decay": values["weight_decay"]},
        "schedule": {"decay": values["decay"], "base": values["base"], "warmup_steps": 10_000},
    }


def augreg(model: str, dataset: str, /, **choices: Any) -> dict[str, Any]:
    """Returns AugReg's pre-training recipe for a Vision Transformer or a hybrid.

    Args:
        model: name of the model, such as "ViT-S/16".
        dataset: "imagenet21k" or "imagenet2012".
        **choices: `augreg`, the augmentation level; `dropout`, which is also the rate of stochastic
            depth; `weight_decay`; and for ImageNet-21k, `epochs`.

    Returns:
        A nested dict, as in `pretraining`.

    Raises:
        ValueError: the dataset or a choice is not in AugReg, a choice is missing, or the model is a
            BiT ResNet.
    """
    if _is_bit(model):
        raise ValueError(
            "`model` must be a Vision Transformer or a hybrid for AugReg. Received: "
            f"model={model!r}"
        )
    values = _row_of(tables.AUGREG, "AugReg", model, dataset, choices)
    loss, head_bias = tables.PRETRAINING_LOSS[dataset]
    dropout = {"dropout": values["dropout"], "stochastic_depth": values["dropout"]}
    # As in big_vision, only kernels decay, and the first moment is stored in bfloat16.
    as_big_vision = {"decay_mask": "kernels", "momentum_dtype": "bfloat16"}
    return {
        "recipe": f"pre-training of {model} on {dataset}, AugReg",
        "batch_size": 4096,
        "total_epochs": values["epochs"],
        "clip_norm": 1.0,
        "loss": loss,
        "model": {**dropout, "head_bias": head_bias},
        "data": {**_PRETRAINING_DATA, "augreg": values["augreg"], "randaugment_form": "original"},
        "optimizer": {"name": "adamw", "weight_decay": values["weight_decay"], **as_big_vision},
        "schedule": {"decay": "cosine", "base": 1e-3, "warmup_steps": 10_000},
    }


def finetuning(model: str, dataset: str, /, **choices: Any) -> dict[str, Any]:
    """Returns the fine-tuning recipe for a dataset from the paper's Table 4.

    The learning rate is one of the `rates` of the dataset: 0.03 if Table 4 lists it, else the
    first.

    Args:
        model: name of the model, such as "ViT-B/16".
        dataset: "imagenet2012", "cifar100", "cifar10", "pets", "flowers" or "vtab/...".
        **choices: `resolution` in pixels: 384 (the default) or 512. For 14-pixel patches, the
            values are 378 and 518, because 14 divides neither 384 nor 512. ImageNet at 512 or 518
            pixels has Polyak averaging, as in the paper; the other datasets' runs are too short for
            it.

    Returns:
        A nested dict, as in `pretraining`.

    Raises:
        ValueError: Table 4 has no row for the dataset, or a choice is unknown or out of range.
    """
    model = families.canonical_name(model)
    row = _finetuning_row(dataset)
    plain, large = (378, 518) if "/14" in model else (384, 512)
    resolution = choices.get("resolution", plain)
    if set(choices) - {"resolution"} or resolution not in (plain, large):
        raise ValueError(f"{model} takes only resolution={plain} or {large}. Received: {choices=}")
    dropout = {} if _is_bit(model) else {"dropout": tables.FINETUNING_DROPOUT.get(model, 0.0)}
    # As in section 4.1 and BiT, which resize to 448 and crop to 384.
    resized = resolution * 448 // 384
    averaged = resolution == large and dataset == "imagenet2012"
    rate = tables.UNSWEPT_RATE if tables.UNSWEPT_RATE in row.rates else row.rates[0]
    return {
        "recipe": f"fine-tuning of {model} on {dataset}, Table 4, {resolution} pixels",
        "batch_size": 512,
        "total_steps": row.steps,
        "clip_norm": 1.0,
        "ema_decay": tables.POLYAK_DECAY if averaged else 0.0,
        "model": dropout,
        "data": {
            "image_size": resolution,
            "train_crop": "resize_crop",
            "eval_crop": "resize",
            "resize_size": resized,
            "exif": "off",
        },
        "optimizer": {"name": "sgd", "momentum_dtype": "bfloat16"},
        "schedule": {"decay": "cosine", "base": rate, "warmup_steps": row.warmup_steps},
    }


def rates(dataset: str) -> tuple[float, ...]:
    """Returns the learning rates that Table 4 sweeps for a dataset; raises a `ValueError` for an
    unknown dataset."""
    return _finetuning_row(dataset).rates


def _finetuning_row(dataset):
    rows = [row for row in tables.TABLE_4 if _has(row.datasets, dataset)]
    known = [name for row in tables.TABLE_4 for name in row.datasets]
    if not rows:
        raise ValueError(f"Table 4 has rows for {', '.join(known)}. Received: dataset={dataset!r}")
    return rows[0]


def _has(patterns, name):
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _row_of(rows, table, model, dataset, choices):
    """Returns the row for a dataset as a dict, with each tuple of values replaced by the chosen
    value."""
    chosen = next((row for row in rows if row.dataset == dataset), None)
    if chosen is None:
        datasets = dict.fromkeys(row.dataset for row in rows)
        known = f"rows for {', '.join(datasets)}" if datasets else "no row for this model"
        raise ValueError(f"{table} has {known}. Received: model={model!r}, dataset={dataset!r}")
    fields = chosen._asdict()
    fields.pop("models", None)
    options = {name: values for name, values in fields.items() if isinstance(values, tuple)}
    is_complete = all(choices.get(name) in values for name, values in options.items())
    if not is_complete or set(choices) - set(options):
        known = [f"{name} from {', '.join(map(str, options[name]))}" for name in options]
        raise ValueError(
            f"{model} on {dataset} needs {'; '.join(known) or 'no choices'}. Received: {choices=}"
        )
    # Take the values of the table, because a choice on the command line may be an int.
    return fields | {name: values[values.index(choices[name])] for name, values in options.items()}


def _number(text):
    try:
        return float(text) if "." in text or "e" in text else int(text)
    except ValueError:
        return text
