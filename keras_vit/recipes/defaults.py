"""Every field of a config, with its default. What is 0, "" or False is off."""

FIELDS = {
    "recipe": "",  # where the numbers come from, in a line, for whoever reads the config
    "task": "classification",  # what is learned; a name of keras_vit.tasks
    "seed": 0,
    "batch_size": 512,  # over all replicas
    "total_steps": 0,  # one of these two is 0
    "total_epochs": 0.0,
    "strategy": "auto",  # auto, default, mirrored, multi_worker, tpu
    "tpu_address": "",  # "" is TPU_NAME, or the TPU of this machine
    "precision": "float32",  # float32, mixed_bfloat16, mixed_float16
    "accumulate_steps": 1,  # parts of a batch that are computed one after the other
    "steps_per_call": 1,  # steps that run before Python looks again
    "clip_norm": 0.0,  # the largest global norm of the gradients
    "ema_decay": 0.0,  # of the average of the weights that is evaluated and exported, 0.9999 in the paper
    "remat": False,  # computes the blocks again in the backward pass, to save memory
    "xla": False,
    "loss": "softmax",  # softmax, sigmoid
    "weights": "",  # what training starts from: "" for random numbers, a path, or a name of published weights
    "weights_channels": "",  # how weights for other channels are adapted: sum, tile; "" refuses them
    "skip_nonfinite": False,  # leaves steps out whose loss or gradient is not finite, instead of stopping
    "checkpoint_every_steps": 1000,
    "eval_every_steps": 0,  # 0 is at the end only
    "evals": (),  # names of further evaluators, of keras_vit.evaluation
    "best_metric": "accuracy",  # whose best checkpoint is kept; a name that ends in loss or error: the lowest
    "log_every_steps": 100,
    "profile": False,  # writes a trace of some steps for TensorBoard
    "model": {},  # arguments of keras_vit.VisionTransformer; the classes come from the data
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
# Their fields are whatever the model and the input take.
_OPEN = ("model", "data")


def defaults(**changes):
    """Every field of a config with its default, as a nested dict.

    Args:
        **changes: other values for some of the fields; of the groups `optimizer` and `schedule` only what differs, of
            `model` and `data` everything.

    Raises:
        ValueError: there is no such field, or a value is of another type than its default.
    """
    return _merged(FIELDS, changes, "a config")


def _merged(fields, changes, where):
    unknown = sorted(set(changes) - set(fields))
    if unknown:
        raise ValueError(f"The fields of {where} are {', '.join(fields)}. Received: {', '.join(unknown)}")
    merged = dict(fields)
    for name, value in changes.items():
        if name in _OPEN:
            merged[name] = dict(value)
        elif isinstance(fields[name], dict):
            merged[name] = _merged(fields[name], value, f"`{name}`")
        elif type(value) is not type(fields[name]):
            # The type is what the command line converts an override to: an int here would refuse 0.5 there.
            kind = type(fields[name]).__name__
            raise ValueError(f"`{name}` must be of type {kind}. Received: {name}={value!r}")
        else:
            merged[name] = value
    return {name: dict(value) if isinstance(value, dict) else value for name, value in merged.items()}
