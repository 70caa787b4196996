"""Applies `config.freeze` and `config.lora_rank`: which weights of the model a run trains."""

import re

from keras_vit.models.any_model import find_vision_transformer
from keras_vit.models.freezing import enable_lora, freeze


def validate(config):
    """Raises a `ValueError` unless the fields that freeze weights have valid values."""
    value = config.get("freeze", "")
    rank = config.get("lora_rank", 0)
    if not re.fullmatch(r"|backbone|blocks:\d+", value):
        raise ValueError(
            "`freeze` must be backbone, for a new head only, or blocks:N, for the first N blocks "
            f"and everything before them. Received: freeze={value!r}"
        )
    if value and rank:
        raise ValueError(
            "`freeze` must be '' with `lora_rank`, which freezes all weights before the head. "
            f"Received: freeze={value!r}, lora_rank={rank}"
        )
    if (value or rank) and config.task == "image_text":
        raise ValueError(
            "`freeze` and `lora_rank` must be off for image_text; `model.locked` freezes the image "
            f"tower. Received: freeze={value!r}, lora_rank={rank}"
        )
    if (value or rank) and config.model.get("frozen"):
        raise ValueError(
            "`model.frozen` must be False with `freeze` or `lora_rank`. Received: frozen=True, "
            f"freeze={value!r}, lora_rank={rank}"
        )


def apply(config, model):
    """Freezes weights of a built model, and adds low-rank adapters, before its optimizer is
    built."""
    value = config.get("freeze", "")
    rank = config.get("lora_rank", 0)
    if rank:
        enable_lora(model, rank, write=_ignore)
    elif value == "backbone":
        freeze(model, "head", write=_ignore)
    elif value:
        blocks = int(value.removeprefix("blocks:"))
        last = find_vision_transformer(model).num_layers
        if blocks > last:
            raise ValueError(
                f"`freeze` must be at most blocks:{last}, the number of blocks of the model. "
                f"Received: freeze={value!r}"
            )
        freeze(model, blocks, write=_ignore)


def _ignore(line):
    pass
