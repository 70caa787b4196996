"""Builds the inference copy of a model and writes its TensorFlow graph."""

import keras
import tensorflow as tf

from keras_vit.export.devices import use_forms_for_cpus
from keras_vit.layers.validation import check_choice
from keras_vit.models.image_model import ImageModel

# Names of dtype policies. "mixed_bfloat16" would cast float32 variables in each call, which takes a
# fifth of the time on CPUs.
PRECISIONS = ("float32", "bfloat16")


def inference_copy(model, precision="float32", device="any"):
    """Copies a model to new variables on this machine; the copy is not compiled.

    The last layer computes in float32, as do the float32 layers of a mixed-precision model; others
    use `precision`. For the device "cpu", its layers have the forms for CPUs.
    """
    check_choice("precision", precision, PRECISIONS)
    if any("lora_kernel" in variable.path for variable in model.variables):
        raise ValueError(
            "LoRA adapters must be merged before an export. Save the model as .keras, which "
            f"merges them, and export the loaded model. Received: model={model.name!r}"
        )
    # In a mixed-precision model, keep the policy of float32 layers, because these layers require
    # float32.
    kept_policies = {"float32"} if uses_reduced_precision(model) else set()
    try:
        config = _replace_policies(model.get_config(), precision, kept_policies)
        if precision != "float32":
            _keep_last_layer_in_float32(model, config)
        copy = type(model).from_config(config)
        copy.set_weights(model.get_weights())
    except (NotImplementedError, TypeError, KeyError, ValueError) as error:
        raise ValueError(
            f"The model cannot be rebuilt: {error}. Received: model={model.name!r}"
        ) from error
    if device == "cpu":
        use_forms_for_cpus(copy)
    return copy


def uses_reduced_precision(model):
    """Returns whether any layer of a model computes in a lower precision than float32."""
    return any(
        uses_reduced_precision(layer)
        if isinstance(layer, keras.Model)
        else layer.compute_dtype != "float32"
        for layer in model.layers
    )


def _replace_policies(config, policy, kept_policies):
    """Returns a config in which `policy` replaces all dtype policies except `kept_policies`."""
    if isinstance(config, list | tuple):
        return type(config)(_replace_policies(part, policy, kept_policies) for part in config)
    if not isinstance(config, dict):
        return config
    if config.get("class_name") == "DTypePolicy" and config["config"]["name"] not in kept_policies:
        return keras.dtype_policies.serialize(keras.dtype_policies.DTypePolicy(policy))
    return {key: _replace_policies(value, policy, kept_policies) for key, value in config.items()}


def _keep_last_layer_in_float32(model, config):
    """Sets the dtype policy of a model's last layer, which may be in a nested model, to float32 in
    the config."""
    if isinstance(model, ImageModel):
        return  # the head of an `ImageModel` always computes in float32
    last = getattr(model, "operations", model.layers)[-1]
    if isinstance(last, keras.Model):
        _keep_last_layer_in_float32(last, config["layers"][-1]["config"])
    else:
        config["layers"][-1] = _replace_policies(config["layers"][-1], "float32", set())


def write_logits_graph(folder, model, spec):
    """Writes a SavedModel with a signature from `images` with the `TensorSpec` to `logits`."""

    def logits_of(images):
        return {"logits": model(images, training=False)}

    write_graph(folder, model, {"logits": (logits_of, spec)})


def write_graph(folder, model, endpoints):
    """Writes a SavedModel with the signatures `{name: (function, TensorSpec)}`."""
    # `ExportArchive` of Keras would write every variable twice, as a Keras variable and as a
    # TensorFlow variable.
    module = tf.Module()
    module.tracked = [variable.value for variable in model.variables]
    signatures = {
        name: tf.function(function, autograph=False).get_concrete_function(spec)
        for name, (function, spec) in endpoints.items()
    }
    tf.saved_model.save(module, folder, signatures)
