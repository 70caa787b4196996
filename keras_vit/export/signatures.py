"""Defines the signatures of a SavedModel. To add a signature, write a function and add it to
`SIGNATURES`."""

import dataclasses
import functools
from collections.abc import Callable

import keras
import tensorflow as tf

from keras_vit.data.images import checked
from keras_vit.export import dense_signatures
from keras_vit.export.comparison import example_images
from keras_vit.export.decoding import Decoder
from keras_vit.inspection.attention_maps import rollout_map
from keras_vit.models.any_model import gives_probabilities
from keras_vit.models.features import FeatureModel
from keras_vit.preprocessing import find_preprocessing

ENCODED = "image/encoded"  # the feature of a `tf.train.Example` that contains an image file
ACTIVATIONS = {"softmax": tf.nn.softmax, "sigmoid": tf.nn.sigmoid}


@dataclasses.dataclass(frozen=True)
class ServedModel:
    """A model and the functions that its signatures share.

    The first access makes a function, so it must come before the trace of a graph that calls the
    function.
    """

    model: keras.Model  # returns logits or probabilities `(B, classes)`, or features without a head
    activation: str  # key of `ACTIVATIONS`; ignored if the model returns probabilities
    decoder: Decoder | None  # None if no signature takes image files
    class_names: tuple
    top: int  # maximum number of top classes
    in_graphs: bool = True  # False to run the shared functions eagerly

    def shared(self, function):
        """Returns a function of images, float32 `(B, H, W, C)`, as one graph for all signatures."""
        if not self.in_graphs:
            return function
        images = tf.TensorSpec((None, *self.model.input_shape[1:]), tf.float32)
        return tf.function(function, input_signature=[images], autograph=False)

    @functools.cached_property
    def probabilities(self):
        """A function from images, float32 `(B, H, W, C)`, to probabilities `(B, classes)`."""
        activate = tf.identity if gives_probabilities(self.model) else ACTIVATIONS[self.activation]
        return self.shared(
            lambda images: activate(tf.cast(self.model(images, training=False), tf.float32))
        )

    @functools.cached_property
    def outputs(self):
        """A function from images to `{name: tensor}`: what a dense model predicts for each pixel,
        or the "probabilities" of other models."""
        if dense_signatures.predicts_of(self.model):
            return dense_signatures.outputs_of(self)
        compute = self.probabilities
        return lambda images: {"probabilities": compute(images)}

    @functools.cached_property
    def features(self):
        """A function from images to "representation", the head's input `(B, F)`, and "patches".

        The patch tokens are `(B, rows, columns, D)`, or `(B, N, D)` for images of any size.
        """
        features = FeatureModel(self.model, tokens="all")
        vit = features.vit

        def function(images):
            tokens = features(images, training=False)
            patches = tokens[:, vit.num_prefix_tokens :]
            if not vit.has_padding:
                patches = tf.reshape(patches, (-1, *vit.grid, vit.hidden_size))
            outputs = {"representation": vit.pool(tokens), "patches": patches}
            return {name: tf.cast(output, tf.float32) for name, output in outputs.items()}

        return self.shared(function)

    @functools.cached_property
    def attention(self):
        """A function from images to the attention rollout `(B, H, W)`."""
        size = self.model.input_shape[1:3]
        return self.shared(
            lambda images: tf.image.resize(rollout_map(self.model, images)[..., None], size)[..., 0]
        )

    def top_classes(self, probabilities):
        """Returns the names of the top classes, string `(B, top)`, and their probabilities, float32
        `(B, top)`."""
        top = min(self.top, len(self.class_names))
        top_probabilities, indices = tf.math.top_k(probabilities, top)
        return tf.gather(tf.constant(self.class_names), indices), top_probabilities


@dataclasses.dataclass(frozen=True)
class Signature:
    """A signature of a served model."""

    function: Callable  # maps a tensor to `{name: tensor}`, batch axis first
    spec: tf.TensorSpec
    example_inputs: Callable  # maps image files to an input tensor, for warm-up and verification


def _of_files(served, compute):
    """Returns a signature that maps image files to `compute(images)`."""
    return Signature(
        lambda image_bytes: compute(served.decoder(image_bytes)),
        tf.TensorSpec((None,), tf.string, "image_bytes"),
        tf.constant,
    )


def _serving_default(served):
    compute = served.outputs
    if dense_signatures.predicts_of(served.model):
        return _of_files(served, compute)

    def function(images):
        outputs = compute(images)
        top_classes, top_probabilities = served.top_classes(outputs["probabilities"])
        return {**outputs, "top_classes": top_classes, "top_probabilities": top_probabilities}

    return _of_files(served, function)


def _tensor(served):
    compute = served.outputs

    def function(images):
        images = tf.debugging.check_numerics(images, "pixels must be finite")
        outputs = compute(images)
        # Check the outputs too, because finite but huge pixels overflow inside the model.
        return {name: _checked_output(output) for name, output in outputs.items()}

    shape = tuple(served.model.input_shape[1:])

    def example_inputs(image_files):
        preprocessing = find_preprocessing(served.model)
        if preprocessing is None or shape[-1] > 4:
            return tf.constant(example_images(shape, len(image_files)))
        return Decoder(shape, preprocessing)(tf.constant(image_files))

    return Signature(function, tf.TensorSpec((None, *shape), tf.float32, "images"), example_inputs)


def _checked_output(output):
    if not output.dtype.is_floating:
        return output
    return tf.debugging.check_numerics(output, "the output is not finite")


def _classify(served):
    compute = served.probabilities

    def function(inputs):
        features = tf.io.parse_example(inputs, {ENCODED: tf.io.FixedLenFeature([], tf.string)})
        classes, scores = served.top_classes(compute(served.decoder(features[ENCODED])))
        return {"classes": classes, "scores": scores}

    def example_inputs(image_files):
        examples = []
        for file in image_files:
            example = tf.train.Example()
            example.features.feature[ENCODED].bytes_list.value.append(file)
            examples.append(example.SerializeToString())
        return tf.constant(examples)

    return Signature(function, tf.TensorSpec((None,), tf.string, "inputs"), example_inputs)


def _features(served):
    return _of_files(served, served.features)


def _attention(served):
    compute = served.attention
    return _of_files(served, lambda images: {"attention": compute(images)})


SIGNATURES = {
    "serving_default": _serving_default,
    "tensor": _tensor,
    "classify": _classify,
    "features": _features,
    "attention": _attention,
}
"""Functions that build the signatures of a SavedModel, by name; see `saved_model`."""


def build_signatures(names, served, max_batch_size):
    """Returns `{name: Signature}`; each signature checks its input, because a wrong rank would
    abort the process."""
    return {name: _with_input_check(SIGNATURES[name](served), max_batch_size) for name in names}


def _with_input_check(signature, max_batch_size):
    def function(inputs):
        inputs = tf.ensure_shape(inputs, signature.spec.shape)
        size = tf.shape(inputs)[0]
        message = f"a batch must contain 1 to {max_batch_size} images; images:"
        in_range = (size > 0) & (size <= max_batch_size)
        return signature.function(checked(inputs, in_range, message, size))

    return dataclasses.replace(signature, function=function)
