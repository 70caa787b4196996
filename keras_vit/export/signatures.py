"""The signatures of an export. A new one is a function here and its row in `SIGNATURES`."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

ENCODED = "image/encoded"  # the feature of a tf.train.Example that holds an image file


@dataclasses.dataclass(frozen=True)
class ServingContext:
    """What the signatures of an export share.

    Attributes:
        probabilities: a function from images, float32 `(B, H, W, C)`, to probabilities, float32 `(B, classes)`.
        image_shape: `(H, W, C)`.
        decoder: a function from image files, string `(B,)`, to images; None where no signature takes image files.
        class_names: the name of each class, in order.
        top: how many classes are named, best first.
        representation: a function from images to `(B, F)` and `(B, rows, columns, D)`; None where it is not needed.
        attention: a function from images to `(B, H, W)`; None where it is not needed.
    """

    probabilities: Callable
    image_shape: tuple
    decoder: Callable | None
    class_names: tuple
    top: int
    representation: Callable | None = None
    attention: Callable | None = None

    def top_classes(self, probabilities):
        """The names of the best classes, string `(B, top)`, and their probabilities, float32 `(B, top)`."""
        top_probabilities, indices = tf.math.top_k(probabilities, self.top)
        return tf.gather(tf.constant(self.class_names), indices), top_probabilities


@dataclasses.dataclass(frozen=True)
class Signature:
    """One function of a served model.

    Attributes:
        function: from a tensor to `{name: tensor}`, the batch axis first.
        spec: the shape, dtype and name of that tensor.
        example_inputs: from image files, a list of bytes, to such a tensor, for the warm-up and the verification.
    """

    function: Callable
    spec: tf.TensorSpec
    example_inputs: Callable


def _serving_default(context):
    def function(image_bytes):
        probabilities = context.probabilities(context.decoder(image_bytes))
        top_classes, top_probabilities = context.top_classes(probabilities)
        return {"probabilities": probabilities, "top_classes": top_classes, "top_probabilities": top_probabilities}

    return Signature(function, tf.TensorSpec((None,), tf.string, "image_bytes"), tf.constant)


def _tensor(context):
    def function(images):
        images = tf.debugging.check_numerics(images, "pixels must be finite")
        # Huge finite pixels overflow within the model.
        probabilities = tf.debugging.check_numerics(context.probabilities(images), "the output is not finite")
        return {"probabilities": probabilities}

    height, width, channels = context.image_shape

    def example_inputs(image_files):
        decoded = [tf.io.decode_image(file, expand_animations=False) for file in image_files]
        images = [tf.image.resize(image, (height, width)) / 127.5 - 1.0 for image in decoded]
        return tf.repeat(tf.reduce_mean(images, -1, keepdims=True), channels, -1)

    return Signature(function, tf.TensorSpec((None, *context.image_shape), tf.float32, "images"), example_inputs)


def _classify(context):
    def function(inputs):
        features = tf.io.parse_example(inputs, {ENCODED: tf.io.FixedLenFeature([], tf.string)})
        classes, scores = context.top_classes(context.probabilities(context.decoder(features[ENCODED])))
        return {"classes": classes, "scores": scores}

    def example_inputs(image_files):
        features = [{ENCODED: tf.train.Feature(bytes_list=tf.train.BytesList(value=[file]))} for file in image_files]
        examples = [tf.train.Example(features=tf.train.Features(feature=feature)) for feature in features]
        return tf.constant([example.SerializeToString() for example in examples])

    return Signature(function, tf.TensorSpec((None,), tf.string, "inputs"), example_inputs)


def _features(context):
    def function(image_bytes):
        representation, patches = context.representation(context.decoder(image_bytes))
        return {"representation": representation, "patches": patches}

    return Signature(function, tf.TensorSpec((None,), tf.string, "image_bytes"), tf.constant)


def _attention(context):
    def function(image_bytes):
        return {"attention": context.attention(context.decoder(image_bytes))}

    return Signature(function, tf.TensorSpec((None,), tf.string, "image_bytes"), tf.constant)


SIGNATURES = {
    "serving_default": _serving_default,
    "tensor": _tensor,
    "classify": _classify,
    "features": _features,
    "attention": _attention,
}
"""The functions that build the signatures of a SavedModel, by their names; see `saved_model`."""


def check_names(names):
    """Raises a `ValueError` unless the names are some of `SIGNATURES`."""
    if not names or not set(names) <= set(SIGNATURES):
        raise ValueError(f"The signatures are {', '.join(SIGNATURES)}. Received: signatures={tuple(names)}")


def build_signatures(names, context, max_batch_size):
    """Signatures that check their input before they compute anything: `{name: Signature}`.

    TensorFlow does not check what a signature is fed, and a wrong rank aborts the whole process in a convolution.
    """
    return {name: _with_input_check(SIGNATURES[name](context), max_batch_size) for name in names}


def _with_input_check(signature, max_batch_size):
    def function(inputs):
        inputs = tf.ensure_shape(inputs, signature.spec.shape)
        size = tf.shape(inputs)[0]
        message = f"a batch must hold 1 to {max_batch_size} images; it holds:"
        in_range = (size > 0) & (size <= max_batch_size)
        with tf.control_dependencies([tf.raw_ops.Assert(condition=in_range, data=[message, size])]):
            return signature.function(tf.identity(inputs))

    return dataclasses.replace(signature, function=function)
