"""Every field of a config, with its default. What is 0, "" or False is off."""

from typing import Any

from keras_vit import families

FIELDS = {
    "recipe": "",  # one line on where the numbers come from
    "task": "classification",  # what is learned; a name of keras_vit.tasks
    "architecture": "VisionTransformer",  # a size, such as ViT-B/16, or a constructor with the sizes in `model`
    "seed": 0,
    "batch_size": 512,  # over all replicas
    "total_steps": 0,  # one of these two is 0
    "total_epochs": 0.0,
    "strategy": "auto",  # auto, default, mirrored, multi_worker, tpu
    "tpu_address": "",  # "" is TPU_NAME, or the TPU of this machine
    "precision": "float32",  # float32, mixed_bfloat16, mixed_float16
    "accumulate_steps": 1,  # micro-batches of a batch, computed one after the other
    "steps_per_call": 1,  # steps of one call of the compiled function
    "clip_norm": 0.0,  # the largest global norm of the gradients; 0 is off
    "ema_decay": 0.0,  # of the average of the weights, which is evaluated and exported; 0.9999 in the paper; 0 is off
    "remat": False,  # gradient checkpointing: computes the blocks again in the backward pass, to save memory
    "xla": False,  # on TensorFlow; JAX compiles everything
    "shard": "",  # on JAX, what the devices divide among them: optimizer, parameters (and the optimizer); "" is nothing
    "loss": "softmax",  # softmax, sigmoid
    "weights": "",  # what training starts from: "" for random numbers, a path, or a name of published weights
    "weights_channels": "",  # how weights for other channels are adapted: sum, tile; "" refuses them
    "skip_nonfinite": False,  # skips steps whose loss or gradient is not finite, instead of stopping
    "checkpoint_every_steps": 1000,
    "eval_every_steps": 0,  # 0 is at the end only
    "evals": (),  # names of further evaluators, of keras_vit.evaluation
    "best_metric": "accuracy",  # whose best checkpoint is kept; a name that ends in loss or error: the lowest
    "log_every_steps": 100,
    "profile": False,  # writes a trace of some steps for TensorBoard
    "model": {},  # arguments of the architecture: `model_fields`
    "data": {},  # keras_vit.data.defaults()
    "optimizer": {  # arguments of keras_vit.optimizers.get
        "name": "sgd",  # sgd, adamw
        "weight_decay": 0.0,
        "decay_mask": "all",  # all, kernels
        "no_decay": "",  # names that do not decay, "bias,cls"
        "layer_decay": 1.0,
        "momentum_dtype": "float32",  # float32, bfloat16
    },
    "schedule": {  # arguments of keras_vit.optimizers.Schedule
        "decay": "cosine",  # cosine, linear, rsqrt, constant
        "base": 0.03,
        "warmup_steps": 0,
        "end": 1e-5,  # of linear
        "timescale": 10_000.0,  # of rsqrt
    },
}


def model_fields(task: str, architecture: str) -> dict[str, Any]:
    """The fields of `model` for a task and an architecture, with their defaults; a type stands for an argument that has
    none. The classes, the preprocessing, `weights` and `remat` come from the rest of the config."""
    fields = families.model_fields(architecture)
    if task == "masked_patches":
        fields = {name: value for name, value in fields.items() if name not in ("representation_size", "head_bias")}
        fields |= {"masking_rate": 0.5, "target": "mean_color"}
    return fields


def defaults(**changes: Any) -> dict[str, Any]:
    """Every field of a config with its default, as a nested dict.

    Args:
        **changes: other values for some of the fields; of the groups `model`, `optimizer` and `schedule` only what
            differs, of `data` everything. Without `architecture` and `model`, `model` is empty.

    Raises:
        ValueError: there is no such field, or a value is of another type than its default.
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
    """The changes, if they are all fields and of their types. A field is a default, or a type."""
    unknown = sorted(set(changes) - set(fields))
    if unknown:
        raise ValueError(f"The fields of {where} are {', '.join(fields)}. Received: {', '.join(unknown)}")
    for name, value in changes.items():
        # The type is what the command line converts an override to: an int here would refuse 0.5 there.
        kind = fields[name] if isinstance(fields[name], type) else type(fields[name])
        if type(value) is not kind and kind is not dict:
            raise ValueError(f"`{name}` must be of type {kind.__name__}. Received: {name}={value!r}")
    return changes
