"""The fields of a config, with their defaults. The values 0, "" and False turn an optional feature
off."""

import copy
from collections.abc import Mapping
from typing import Any

from keras_vit import families
from keras_vit.families import dense_heads

FIELDS = {
    "recipe": "",  # one line that names the source of the values
    # classification, masked_patches, distillation, or another key of keras_vit.tasks.TASKS
    "task": "classification",
    # a size, such as ViT-B/16, or a constructor; its arguments are in `model`
    "architecture": "VisionTransformer",
    "seed": 0,  # seed of the initial weights, the order of the data, augmentation and dropout
    "batch_size": 512,  # global batch size, over all devices
    "total_steps": 0,  # length of the run in steps; 0 if total_epochs is set
    "total_epochs": 0.0,  # length of the run in epochs; 0 if total_steps is set
    "strategy": "auto",  # devices: auto, default (one device), mirrored (GPUs), multi_worker, tpu
    # address of the TPU; "" uses the environment variable TPU_NAME, or a local TPU
    "tpu_address": "",
    "precision": "float32",  # float32, mixed_bfloat16, mixed_float16
    "accumulate_steps": 1,  # number of micro-batches per batch, to save memory
    # training steps per call of the compiled function, fewer if they take over ten seconds
    "steps_per_call": 1,
    # FlexiViT: each step draws one of these patch sizes; () always uses model.patch_size
    "patch_sizes": (),
    "clip_norm": 0.0,  # largest global norm of the gradients; 0 is off
    # decay of the EMA of the weights, which replaces them in evaluations and exports; 0 is off
    "ema_decay": 0.0,
    # recomputes the blocks in the backward pass to save memory (gradient checkpointing)
    "remat": False,
    "xla": False,  # compiles the step with XLA on TensorFlow; JAX always compiles
    # on JAX, state to shard over the devices: optimizer (ZeRO-1) or parameters (FSDP); "" is none
    "shard": "",
    "loss": "softmax",  # softmax, sigmoid
    # initial weights: a path, a published name, or a run, an export or a .keras file; "" is random
    "weights": "",
    # how to adapt RGB weights to other channels: sum, tile; "" raises an error
    "weights_channels": "",
    # weights that are not trained: backbone (all but the head), or blocks:8 (the first eight blocks
    # and everything before them)
    "freeze": "",
    # the step from which the weights of `freeze` are trained too; 0 never trains them
    "unfreeze_at_step": 0,
    # rank of adapters for the queries and values of all blocks (LoRA), which are trained with the
    # head and merged into the exported weights; 0 is off
    "lora_rank": 0,
    # skips steps with a loss or gradient that is not finite, instead of stopping
    "skip_nonfinite": False,
    "checkpoint_every_steps": 1000,  # steps between checkpoints
    "eval_every_steps": 0,  # steps between evaluations; 0 evaluates at the end only
    # for the task distillation, the model to imitate: a run, an export, a .keras file, or a source
    # of from_pretrained
    "teacher": "",
    "evals": (),  # additional evaluators, such as ("top1", "fewshot:digits")
    # selects the best checkpoint: highest, or lowest if the name ends in loss or error
    "best_metric": "accuracy",
    # stops after this many evaluations in a row without a better best_metric; 0 is off
    "early_stop_evals": 0,
    # with eval_every_steps, the checkpoint to evaluate and export at the end: best, last
    "export_model": "best",
    "log_every_steps": 100,  # steps between log lines
    "profile": False,  # writes a profile of some steps for TensorBoard
    "model": {},  # arguments of the architecture; see `model_fields`
    "data": {},  # fields of the input pipeline; see `keras_vit.data.defaults`
    "distillation": {  # fields of the task distillation; see keras_vit.tasks.Distillation
        # difference from the teacher: kl, hard (its class), cosine, squared_error (its features)
        "loss": "kl",
        "temperature": 1.0,  # divides the logits of kl
        "labels": True,  # whether the images have classes; False for images alone
        "label_weight": 0.0,  # share of the labels in the loss, in [0, 1)
        # image size of a teacher from from_pretrained, in pixels; 0 is that of its file
        "teacher_size": 0,
    },
    "optimizer": {  # arguments of keras_vit.optimizers.get
        "name": "sgd",  # sgd, adamw
        # weight decay factor, which is multiplied by the learning rate; 0 is off
        "weight_decay": 0.0,
        "decay_mask": "all",  # which weights decay: all, kernels
        # comma-separated names of parameters or layers that do not decay, such as "bias,cls"
        "no_decay": "",
        # factor on the learning rate for each block further from the head; 1 is off
        "layer_decay": 1.0,
        "momentum_dtype": "float32",  # dtype of the first moment: float32, bfloat16
    },
    "schedule": {  # arguments of keras_vit.optimizers.Schedule
        "decay": "cosine",  # cosine, linear, rsqrt, constant
        "base": 0.03,  # peak learning rate
        "warmup_steps": 0,  # steps of linear warm-up
        "end": 1e-5,  # final learning rate of linear decay
        "timescale": 10_000.0,  # steps after the warm-up until rsqrt decay reaches base / sqrt(2)
    },
}


def model_fields(task: str, architecture: str) -> dict[str, Any]:
    """Returns the fields of a config's `model` group for a task and an architecture.

    The dict maps each field to its default, or to its type if it has no default. It does not
    include the number of classes, the preprocessing, `weights` and `remat`, which come from the
    data or from other fields of the config.
    """
    fields = families.model_fields(architecture)
    if task == "masked_patches":
        fields |= {"masking_rate": 0.5, "target": "mean_color"}
        for name in ("representation_size", "head_bias"):
            fields.pop(name, None)
    if task in dense_heads.TASKS:
        fields |= dense_heads.FIELDS
    return fields


def with_defaults(fields: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a model and the defaults of its other `model_fields`."""
    optional = {name: value for name, value in fields.items() if not isinstance(value, type)}
    return {**optional, **arguments}


def defaults(**changes: Any) -> dict[str, Any]:
    """Returns all fields of a config as a nested dict: their defaults, updated with `changes`.

    Args:
        **changes: values for some of the fields. The groups `model`, `optimizer`, `schedule` and
            `distillation` are merged with their defaults; `data` is replaced. If neither
            `architecture` nor `model` is set, `model` is empty.

    Raises:
        ValueError: a field is unknown, or a value does not have the type of its default.
    """
    merged = _merged(FIELDS, changes, "a config")
    if (merged["model"] or "architecture" in changes) and merged["task"] in (
        "classification",
        "masked_patches",
        *dense_heads.TASKS,
        "distillation",
    ):
        fields = model_fields(merged["task"], merged["architecture"])
        merged["model"] = with_defaults(fields, _checked(fields, merged["model"], "`model`"))
    return merged


def _merged(fields, changes, where):
    """Returns a copy of `fields`, updated with checked changes."""
    merged = copy.deepcopy(fields)
    for name, value in _checked(fields, changes, where).items():
        if name in ("model", "data"):
            merged[name] = dict(value)
        elif isinstance(fields[name], dict):
            merged[name] = _merged(fields[name], value, f"`{name}`")
        else:
            merged[name] = value
    return merged


def _checked(fields, changes, where):
    """Returns the changes after checking their names and types; `fields` maps names to defaults or
    types."""
    unknown = sorted(set(changes) - set(fields))
    if unknown:
        raise ValueError(
            f"The fields of {where} are {', '.join(fields)}. Received: {', '.join(unknown)}"
        )
    for name, value in changes.items():
        # The types must be equal: the command line converts an override to the type of this value,
        # so an int in a float field would refuse 0.5.
        kind = fields[name] if isinstance(fields[name], type) else type(fields[name])
        # A group may also be a `ConfigDict`.
        if type(value) is not kind and not (kind is dict and hasattr(value, "keys")):
            raise ValueError(
                f"`{name}` must be of type {kind.__name__}. Received: {name}={value!r}"
            )
    return changes
