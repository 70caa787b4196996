"""Every field of a config, with its default. Fields that are 0, "" or False are off."""

from typing import Any

from keras_vit import families

FIELDS = {
    "recipe": "",  # source of the numbers, in one line
    "task": "classification",  # classification, masked_patches, or another key of keras_vit.tasks.TASKS
    "architecture": "VisionTransformer",  # a size, such as ViT-B/16, or a constructor with the sizes in `model`
    "seed": 0,  # of the initial weights, the order of the data, augmentation and dropout
    "batch_size": 512,  # global: the sum over all devices
    "total_steps": 0,  # length of the run in steps, or 0 to set total_epochs
    "total_epochs": 0.0,  # length of the run in epochs, or 0 to set total_steps
    "strategy": "auto",  # on TensorFlow: auto, default (one device), mirrored, multi_worker, tpu
    "tpu_address": "",  # "" is TPU_NAME, or the TPU of this machine
    "precision": "float32",  # float32, mixed_bfloat16, mixed_float16
    "accumulate_steps": 1,  # number of micro-batches per batch, to save memory
    "steps_per_call": 1,  # steps per call of the compiled function
    "patch_sizes": (),  # each step draws one, as FlexiViT; the weights are of model.patch_size; () is that size alone
    "clip_norm": 0.0,  # largest global norm of the gradients; 0 is off
    "ema_decay": 0.0,  # decay of the moving average of the weights, which is evaluated and exported; 0 is off
    "remat": False,  # gradient checkpointing: recomputes the blocks in the backward pass, to save memory
    "xla": False,  # compiles the step with XLA on TensorFlow; JAX always compiles
    "shard": "",  # on JAX, what is sharded over the devices: optimizer (ZeRO-1) or parameters (FSDP); "" is neither
    "loss": "softmax",  # softmax, sigmoid
    "weights": "",  # initial weights: a path or a published name; "" is random
    "weights_channels": "",  # how RGB weights are adapted to other channels: sum, tile; "" is an error
    "skip_nonfinite": False,  # skips steps whose loss or gradient is not finite, instead of stopping
    "checkpoint_every_steps": 1000,  # steps between checkpoints
    "eval_every_steps": 0,  # steps between evaluations; 0 evaluates at the end only
    "evals": (),  # further evaluators, such as ("top1", "fewshot:digits")
    "best_metric": "accuracy",  # selects the best checkpoint: highest, or lowest if the name ends in loss or error
    "log_every_steps": 100,  # steps between printed lines
    "profile": False,  # writes a trace of some steps for TensorBoard
    "model": {},  # arguments of the architecture: `model_fields`
    "data": {},  # keras_vit.data.defaults()
    "optimizer": {  # arguments of keras_vit.optimizers.get
        "name": "sgd",  # sgd, adamw
        "weight_decay": 0.0,  # multiplied by the learning rate; 0 is off
        "decay_mask": "all",  # which weights decay: all, kernels
        "no_decay": "",  # parts of names that do not decay, such as "bias,cls"
        "layer_decay": 1.0,  # factor on the learning rate from each block to the one below; 1 is off
        "momentum_dtype": "float32",  # dtype of the first moment: float32, bfloat16
    },
    "schedule": {  # arguments of keras_vit.optimizers.Schedule
        "decay": "cosine",  # cosine, linear, rsqrt, constant
        "base": 0.03,  # peak learning rate
        "warmup_steps": 0,  # steps of linear warm-up
        "end": 1e-5,  # last learning rate of linear
        "timescale": 10_000.0,  # steps after the warm-up until rsqrt falls to base / sqrt(2)
    },
}


def model_fields(task: str, architecture: str) -> dict[str, Any]:
    """Returns the fields of `model` for a task and an architecture, with their defaults, or their types if they have
    none. Classes, preprocessing, `weights` and `remat` come from the rest of the config."""
    fields = families.model_fields(architecture)
    if task == "masked_patches":
        fields = {name: value for name, value in fields.items() if name not in ("representation_size", "head_bias")}
        fields |= {"masking_rate": 0.5, "target": "mean_color"}
    return fields


def defaults(**changes: Any) -> dict[str, Any]:
    """Returns every field of a config with its default, as a nested dict.

    Args:
        **changes: other values for some of the fields. The groups `model`, `optimizer` and `schedule` are merged with
            the defaults; `data` is replaced. Without `architecture` and `model`, `model` is empty.

    Raises:
        ValueError: there is no such field, or a value has another type than its default.
    """
    merged = _merged(FIELDS, changes, "a config")
    if (merged["model"] or "architecture" in changes) and merged["task"] in ("classification", "masked_patches"):
        fields = model_fields(merged["task"], merged["architecture"])
        optional = {name: value for name, value in fields.items() if not isinstance(value, type)}
        merged["model"] = {**optional, **_checked(fields, merged["model"], "`model`")}
    return merged


def _merged(fields, changes, where):
    merged = {name: dict(value) if isinstance(value, dict) else value for name, value in fields.items()}
    for name, value in _checked(fields, changes, where).items():
        if name in ("model", "data"):
            merged[name] = dict(value)
        elif isinstance(fields[name], dict):
            merged[name] = _merged(fields[name], value, f"`{name}`")
        else:
            merged[name] = value
    return merged


def _checked(fields, changes, where):
    """Returns the changes if they are known fields of the right types; `fields` has a default or a type for each."""
    unknown = sorted(set(changes) - set(fields))
    if unknown:
        raise ValueError(f"The fields of {where} are {', '.join(fields)}. Received: {', '.join(unknown)}")
    for name, value in changes.items():
        # The command line converts overrides to the type of the value here, so an int would not accept 0.5.
        kind = fields[name] if isinstance(fields[name], type) else type(fields[name])
        if type(value) is not kind and kind is not dict:
            raise ValueError(f"`{name}` must be of type {kind.__name__}. Received: {name}={value!r}")
    return changes
