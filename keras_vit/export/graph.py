"""The TensorFlow graph of a model: from images to probabilities, and written as a SavedModel."""

import keras
import tensorflow as tf

from keras_vit.inspection.attention_maps import rollout_map
from keras_vit.models.features import FeatureModel
from keras_vit.models.inside import find_vision_transformer
from keras_vit.models.shapes import gives_probabilities, last_activation_of

ACTIVATIONS = {"softmax": tf.nn.softmax, "sigmoid": tf.nn.sigmoid}


def require_tensorflow(format_name):
    """Raises a `ValueError` unless Keras runs on TensorFlow, whose graphs the format is converted from."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"{format_name} is converted from a TensorFlow graph: save the model as .keras and export it with "
            f"KERAS_BACKEND=tensorflow. Received: backend={keras.backend.backend()!r}"
        )


def check_outputs(model, activation):
    """Raises a `ValueError` unless a model gives logits or probabilities `(B, classes)` and the activation is known."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"`activation` must be one of {', '.join(ACTIVATIONS)}. Received: activation={activation!r}")
    if len(model.output_shape) != 2:
        raise ValueError(
            "Only models to logits or probabilities (B, classes) can be served. "
            f"Received: output_shape={model.output_shape}"
        )
    last_activation = last_activation_of(model)
    if last_activation not in ("linear", "softmax", "sigmoid"):
        raise ValueError(
            "The activation of the model's last layer must be none, softmax or sigmoid. "
            f"Received: activation={last_activation!r}"
        )


def probability_function(model, activation):
    """A function from images to probabilities, float32 `(B, classes)`; a model's own probabilities stay as they are."""
    gives_logits = not gives_probabilities(model)

    def probabilities(images):
        outputs = tf.cast(model(images, training=False), tf.float32)
        return ACTIVATIONS[activation](outputs) if gives_logits else outputs

    return probabilities


def representation_function(model):
    """A function from images to `(representation, patches)`: float32 `(B, F)`, what the model's head reads, and `(B,
    rows, columns, D)`, the tokens of the patches after the last norm.

    Raises:
        ValueError: there is no Vision Transformer in the model.
    """
    feature_model = FeatureModel(model, tokens="all")
    vit = feature_model.vit

    def representation(images):
        tokens = feature_model(images, training=False)
        patches = tf.reshape(tokens[:, vit.num_prefix_tokens :], (-1, *vit.grid, vit.hidden_size))
        return tf.cast(vit.pool(tokens), tf.float32), tf.cast(patches, tf.float32)

    return representation


def attention_function(model):
    """A function from images to what the model attends to: the attention of all layers multiplied, float32 `(B, H, W)`.

    Raises:
        ValueError: there is no Vision Transformer in the model.
    """
    find_vision_transformer(model)
    height, width, _ = model.input_shape[1:]

    def attention(images):
        return tf.image.resize(rollout_map(model, images)[..., None], (height, width))[..., 0]

    return attention


def write_graph(folder, model, endpoints):
    """Writes a SavedModel whose signatures are functions of a model.

    Keras' `ExportArchive` would write every variable twice, as Keras' and as TensorFlow's.

    Args:
        folder: the folder to write to.
        model: the model whose variables the functions read.
        endpoints: `{signature name: (function from a tensor to {name: tensor}, the tensor's spec)}`.
    """
    module = tf.Module()
    module.tracked = [variable.value for variable in model.variables]
    signatures = {
        name: tf.function(function, autograph=False).get_concrete_function(spec)
        for name, (function, spec) in endpoints.items()
    }
    tf.saved_model.save(module, folder, signatures)
