"""The signatures of an export. A new one is a function here and its row in `SIGNATURES`."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

ENCODED = "image/encoded"  # the feature of a tf.train.Example that holds an image file


@dataclasses.dataclass(frozen=True)
class Served:
    """What signatures are made of.

    Attributes:
        probabilities: from images, float32 `(B, H, W, C)`, to probabilities, float32 `(B, classes)`.
        image_shape: `(H, W, C)`.
        decoder: from image files, string `(B,)`, to images.
        class_names: the name of each class, in order.
        top: how many classes are named, best first.
    """

    probabilities: Callable
    image_shape: tuple
    decoder: Callable
    class_names: tuple
    top: int

    def top_classes(self, probabilities):
        """The names of the best classes, string `(B, top)`, and their probabilities, float32 `(B, top)`."""
        best, indices = tf.math.top_k(probabilities, self.top)
        return tf.gather(tf.constant(self.class_names), indices), best


@dataclasses.dataclass(frozen=True)
class Signature:
    """One of the ways to ask a served model.

    Attributes:
        answer: from a tensor to `{name: tensor}`, the batch first.
        spec: of that tensor: shape, dtype and name.
        example: from image files, a list of bytes, to such a tensor, for the warm-up and the export's test of itself.
    """

    answer: Callable
    spec: tf.TensorSpec
    example: Callable


def _image_bytes(served):
    def answer(image_bytes):
        probabilities = served.probabilities(served.decoder(image_bytes))
        names, best = served.top_classes(probabilities)
        return {"probabilities": probabilities, "top_classes": names, "top_probabilities": best}

    return Signature(answer, tf.TensorSpec((None,), tf.string, "image_bytes"), tf.constant)


def _tensor(served):
    def answer(images):
        images = tf.debugging.check_numerics(images, "pixels must be finite")
        # Huge ones overflow on their way.
        answer = tf.debugging.check_numerics(served.probabilities(images), "the answer is not finite")
        return {"probabilities": answer}

    height, width, channels = served.image_shape

    def example(files):
        decoded = [tf.image.resize(tf.io.decode_jpeg(file), (height, width)) / 127.5 - 1.0 for file in files]
        return tf.repeat(tf.reduce_mean(decoded, -1, keepdims=True), channels, -1)

    return Signature(answer, tf.TensorSpec((None, *served.image_shape), tf.float32, "images"), example)


def _classify(served):
    def answer(inputs):
        features = tf.io.parse_example(inputs, {ENCODED: tf.io.FixedLenFeature([], tf.string)})
        names, best = served.top_classes(served.probabilities(served.decoder(features[ENCODED])))
        return {"classes": names, "scores": best}

    def example(files):
        features = [{ENCODED: tf.train.Feature(bytes_list=tf.train.BytesList(value=[file]))} for file in files]
        examples = [tf.train.Example(features=tf.train.Features(feature=feature)) for feature in features]
        return tf.constant([example.SerializeToString() for example in examples])

    return Signature(answer, tf.TensorSpec((None,), tf.string, "inputs"), example)


SIGNATURES = {"serving_default": _image_bytes, "tensor": _tensor, "classify": _classify}


def make_signatures(names, served, max_batch_size):
    """Signatures that check their input before anything else: `{name: Signature}`.

    A signature call does not check what it is fed, and a wrong rank aborts the whole process in a convolution.

    Args:
        names: some of `SIGNATURES`.
        served: a `Served`.
        max_batch_size: larger batches are refused, 1 or more.

    Raises:
        ValueError: there is no such signature, or none at all.
    """
    unknown = [name for name in names if name not in SIGNATURES]
    if unknown or not names:
        raise ValueError(f"The signatures are {', '.join(SIGNATURES)}. Received: signatures={tuple(names)}")
    return {name: _checked(SIGNATURES[name](served), max_batch_size) for name in names}


def _checked(signature, max_batch_size):
    def answer(given):
        given = tf.ensure_shape(given, signature.spec.shape)
        size = tf.shape(given)[0]
        right = (size > 0) & (size <= max_batch_size)
        message = f"a batch must hold 1 to {max_batch_size} images; it holds:"
        with tf.control_dependencies([tf.raw_ops.Assert(condition=right, data=[message, size])]):
            return signature.answer(tf.identity(given))

    return dataclasses.replace(signature, answer=answer)
