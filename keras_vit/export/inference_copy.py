"""The model that an export computes with: a copy in one precision, outside of any strategy, not compiled."""

import keras

from keras_vit.models.image_model import ImageModel

POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def inference_copy(model, precision="float32"):
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
    if any("lora_kernel" in variable.path for variable in model.variables):
        raise ValueError(
            "Adapters of LoRA are exported as part of the kernels: save the model as .keras, which adds them, and "
            f"export what is loaded from there. Received: model={model.name!r}"
        )
    policy = POLICIES[precision]
    # Layers that a model of mixed precision computes in float32 need float32; they keep it.
    kept_policies = {"float32"} if uses_reduced_precision(model) else set()
    try:
        config = _replace_policies(model.get_config(), policy, kept_policies)
        if policy != "float32":
            _keep_last_layer_in_float32(model, config)
        copy = type(model).from_config(config)
        copy.set_weights(model.get_weights())
    except (NotImplementedError, TypeError, KeyError, ValueError) as error:
        raise ValueError(
            f"The model cannot be rebuilt from its config ({error}). Received: model={model.name!r}"
        ) from error
    return copy


def uses_reduced_precision(model):
    """Whether any layer of a model computes in less than float32."""
    return any(
        uses_reduced_precision(layer) if isinstance(layer, keras.Model) else layer.compute_dtype != "float32"
        for layer in model.layers
    )


def _replace_policies(config, policy, kept_policies):
    """A config with every dtype policy replaced, except those whose name is in `kept_policies`."""
    if isinstance(config, list | tuple):
        return type(config)(_replace_policies(part, policy, kept_policies) for part in config)
    if not isinstance(config, dict):
        return config
    if config.get("class_name") == "DTypePolicy" and config["config"]["name"] not in kept_policies:
        return keras.dtype_policies.serialize(keras.dtype_policies.DTypePolicy(policy))
    return {key: _replace_policies(value, policy, kept_policies) for key, value in config.items()}


def _keep_last_layer_in_float32(model, config):
    """Sets the last layer in a model's config, or in that of the model nested last in it, to float32."""
    if isinstance(model, ImageModel):
        return  # its head always is
    last = getattr(model, "operations", model.layers)[-1]
    if isinstance(last, keras.Model):
        _keep_last_layer_in_float32(last, config["layers"][-1]["config"])
    else:
        config["layers"][-1] = _replace_policies(config["layers"][-1], "float32", set())
