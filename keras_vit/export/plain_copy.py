"""A model as it is served: a copy in one precision, of no strategy, with nothing of its training."""

import keras

POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def plain_copy(model, precision="float32"):
    """The same model with its own variables on this machine, computing in one precision.

    Args:
        model: a built `keras.Model` of layers that their configs rebuild.
        precision: "float32", or "bfloat16" to compute in bfloat16; variables and the last layer stay float32.

    Returns:
        A `keras.Model` that is not compiled.

    Raises:
        ValueError: the precision is neither, or the model cannot be rebuilt.
    """
    if precision not in POLICIES:
        raise ValueError(f"`precision` must be one of {', '.join(POLICIES)}. Received: precision={precision!r}")
    policy = POLICIES[precision]
    # What a model of mixed precision keeps in float32, it keeps for a reason.
    kept = {"float32"} if is_reduced(model) else set()
    try:
        config = _with_policy(model.get_config(), policy, kept)
        if policy != "float32":
            _keep_last_layer(config)
        copy = type(model).from_config(config)
        copy.set_weights(model.get_weights())
    except (NotImplementedError, TypeError, KeyError, ValueError) as error:
        raise ValueError(f"The model cannot be rebuilt from its config ({error}). Received: {model.name!r}") from error
    return copy


def is_reduced(model):
    """Whether a model computes anything in less than float32."""
    return any(
        is_reduced(layer) if isinstance(layer, keras.Model) else layer.compute_dtype != "float32"
        for layer in model.layers
    )


def _with_policy(config, policy, kept):
    """A config with every dtype policy replaced, but for those whose name is kept."""
    if isinstance(config, list | tuple):
        return type(config)(_with_policy(part, policy, kept) for part in config)
    if not isinstance(config, dict):
        return config
    if config.get("class_name") == "DTypePolicy" and config["config"]["name"] not in kept:
        return keras.dtype_policies.serialize(keras.dtype_policies.DTypePolicy(policy))
    return {key: _with_policy(value, policy, kept) for key, value in config.items()}


def _keep_last_layer(config):
    """Puts the last layer of a model's config, which may be in a model inside it, back into float32."""
    last = config["layers"][-1]
    if "layers" in last["config"]:
        _keep_last_layer(last["config"])
    else:
        config["layers"][-1] = _with_policy(last, "float32", set())
