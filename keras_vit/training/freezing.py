"""Applies `config.freeze`, `config.unfreeze_at_step` and `config.lora_rank`: which weights of the
model a run trains."""

import re

import keras
from keras import ops

from keras_vit.models.any_model import find_vision_transformer
from keras_vit.models.freezing import enable_lora, freeze, frozen_weights, unfreeze


def validate(config):
    """Raises a `ValueError` unless the fields that freeze weights have valid values."""
    value = config.freeze
    rank = config.lora_rank
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
    if config.unfreeze_at_step and not value:
        raise ValueError(
            "`unfreeze_at_step` requires `freeze`. Received: "
            f"unfreeze_at_step={config.unfreeze_at_step}, freeze=''"
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
    """Freezes weights of a built model, and adds low-rank adapters, before its optimizer is built.

    Returns the weights that are trained only from `config.unfreeze_at_step` on. They are not
    frozen, because they have slots and averages from the start.
    """
    value = config.freeze
    rank = config.lora_rank
    if rank:
        enable_lora(model, rank, write=_ignore)
    elif value == "backbone":
        freeze(model, write=_ignore)
    elif value:
        blocks = int(value.removeprefix("blocks:"))
        last = find_vision_transformer(model).num_layers
        if blocks > last:
            raise ValueError(
                f"`freeze` must be at most blocks:{last}, the number of blocks of the model. "
                f"Received: freeze={value!r}"
            )
        freeze(model, blocks, write=_ignore)
    if not config.unfreeze_at_step:
        return []
    late = frozen_weights(model)
    unfreeze(model, write=_ignore)
    return late


class Held:
    """A task whose gradients of some weights are zero."""

    def __init__(self, task, weights):
        self.metrics = task.metrics
        self._task = task
        self._held = {id(weight) for weight in weights}

    def losses_and_metrics(self, model, batch, training=False):
        # This scope hides that of the engine, which also has the values of frozen models.
        values = [
            (v, ops.stop_gradient(v.value) if id(v) in self._held else v.value)
            for each in (model, *self._task.frozen_models)
            for v in each.variables
        ]
        with keras.StatelessScope(values) as scope:
            outputs = self._task.losses_and_metrics(model, batch, training=training)
        for variable in model.non_trainable_variables:  # such as the moments of BatchNorm
            variable.assign(scope.get_current_value(variable))
        return outputs


def _ignore(line):
    pass
