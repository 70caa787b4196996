"""Finds the fields of a config that differ when a run resumes, and decides which of them may."""

import json
import os

from keras_vit import data, recipes, tasks

# Config fields that may change when a run resumes. They affect results only by rounding, with one
# exception: on TensorFlow, dropout masks depend on the number of replicas.
FREE_FIELDS = (
    "recipe",
    "teacher",  # its weights are compared
    "strategy",
    "shard",
    "tpu_address",
    "steps_per_call",
    "checkpoint_every_steps",
    "log_every_steps",
    "profile",
    "data.prefetch",
    "data.threads",
)
# Paths, which may change until the run is finished, because a fingerprint covers the contents of
# the files.
_PATHS = ("data.path", "data.class_names")
_LISTS = ("data.train_split", "data.test_split")  # paths if `data.name` is "list"


def differences(stored, config):
    """Returns the fields in which two flat configs differ, as `{name: [before, now]}`.

    A field that `stored` lacks has its default, because a later version may have added it. Both
    configs have lists instead of tuples, as in JSON.
    """
    # A field without a default has a type, which becomes None.
    defaults = json.loads(json.dumps(flat(default_fields(config)), default=lambda kind: None))
    pairs = {
        name: [stored.get(name, defaults.get(name)), config.get(name)]
        for name in sorted(config.keys() | stored.keys())
    }
    return {name: [before, now] for name, (before, now) in pairs.items() if before != now}


def fixed_changes(changes, config, is_done):
    """Returns the changes of fields other than paths and `FREE_FIELDS`. The data of a finished run
    must also stay at the same paths."""
    paths = _PATHS + (_LISTS if config.get("data.name") == "list" else ())

    def is_free(name, before, now):
        if is_done and name in paths:  # the results are those of the data
            return os.path.realpath(before or "") == os.path.realpath(now or "")
        return name in FREE_FIELDS + paths

    return {name: values for name, values in changes.items() if not is_free(name, *values)}


def check_state_fields(changes):
    """Raises a `ValueError` if a change has no effect, needs state that checkpoints lack, or
    discards the EMA."""
    for name, (before, now) in changes.items():
        if name in ("weights", "weights_channels"):
            reason = "weights are loaded only at its start"
        elif name == "ema_decay" and before and not now:
            reason = "its checkpoints contain an EMA, which would be lost"
        elif name == "optimizer.name" or (name == "ema_decay" and not before):
            reason = "its checkpoints lack state that the new value needs"
        else:
            continue
        raise ValueError(
            f"`{name}` cannot change within a run, because {reason}. Choose another workdir, or "
            f"restore --config.{name}={before}. Received: {name}={now!r}"
        )


def default_fields(config):
    """Returns the defaults of all fields as a nested dict, with the model fields of the config's
    task; a field without a default has its type."""
    fields = {**recipes.defaults(), "data": data.defaults()}
    if config.get("task") in tasks.TASKS:
        fields["model"] = recipes.model_fields(config["task"], config["architecture"])
    return fields


def flat(config, prefix=""):
    """Flattens `{"model": {"classes": 10}}` to `{"model.classes": 10}`."""
    fields = {}
    for name, value in config.items():
        if isinstance(value, dict):
            fields |= flat(value, f"{prefix}{name}.")
        else:
            fields[prefix + name] = value
    return fields
