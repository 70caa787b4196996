"""Base class of target kinds that have a value for each pixel of an image."""

import tensorflow as tf

from keras_vit.data import images
from keras_vit.data.examples import decode_pixels
from keras_vit.data.targets.target import Target


class PixelValues(Target):
    """A value for each pixel, `(H, W)`, which gets the crop, flip, size and shift of its image.

    Values are not interpolated: each pixel gets the value of the nearest stored pixel. Augmentation
    that changes the geometry in other ways, or mixes images, is refused.

    Attributes:
        dtype: dtype of the values in a batch.
        unknown: value of pixels without a target, and of pixels outside the stored image.
    """

    refused = (*Target.refused, "randaugment_layers")
    dtype = tf.uint8
    unknown = 0

    def __init__(self, source, options):
        super().__init__(source, options)
        if not options.kind.has_pixel_grid:
            fields = [f"{name}={getattr(options, name)}" for name in options.kind.defaults]
            raise ValueError(
                f"The target {self.source_name!r} requires images as grids of pixels; leave "
                f"{' and '.join(options.kind.defaults)} at their defaults. Received: "
                f"{', '.join(fields)}"
            )

    def spec(self):
        return tf.TensorSpec(self.options.image_shape(self.source)[:2], self.dtype)

    def padding(self):
        return tf.fill(self.spec().shape, tf.constant(self.unknown, self.dtype))

    def values(self, example):
        """Returns the stored values `(H, W)` of an example, of `dtype` or wider."""
        raise NotImplementedError

    def is_valid(self, values):
        """Returns whether each of the values, as returned by `values`, is valid."""
        raise NotImplementedError

    def decode(self, example):
        values = self.values(example)
        size = self._image_size(example["image"])
        is_valid = tf.reduce_all(tf.shape(values) == size) & tf.reduce_all(self.is_valid(values))
        unknown = tf.constant(self.unknown, self.dtype)
        blank = tf.fill(size, unknown)  # of the image's size, which `transform` requires
        target = tf.cond(is_valid, lambda: tf.cast(values, self.dtype), lambda: blank)
        weight = tf.cast(tf.reduce_any(target != unknown), tf.float32)
        return target, weight, is_valid

    def transform(self, target, geometry):
        origins = geometry(tf.shape(target))
        nearest = tf.clip_by_value(origins, 0, tf.shape(target) - 1)
        unknown = tf.constant(self.unknown, self.dtype)
        moved = tf.where(origins[..., 0] < 0, unknown, tf.gather_nd(target, nearest))
        return tf.ensure_shape(moved, self.spec().shape)

    def check_splits(self, test):
        for target in (self, test):
            target.check_stored()
            if missing := getattr(target.source, "missing", ()):
                raise ValueError(
                    f"Every image needs a {self.key} file with the same stem, and every {self.key} "
                    f"an image; `keras-vit verify-data` lists all problems. Received: "
                    f"{len(missing)} files without a partner: {', '.join(missing[:10])}"
                )

    def problem_of(self, example):
        try:
            values = self.values(example)
        except tf.errors.OpError as error:
            return f"not decoded, because: {images.reason_of(error)}"
        height, width = self._image_size(example["image"]).numpy()
        if values.shape != (height, width):
            rows, columns = values.shape
            return f"{rows}x{columns} (height x width) for an image of {height}x{width}"
        wrong = values[~self.is_valid(values)].numpy()
        return self.problem_of_values(wrong) if wrong.size else ""

    def shown(self, example):
        return self.problem_of(example)

    def problem_of_values(self, values):
        """Returns what is wrong with values `(N,)` that are not valid, for a message."""
        raise NotImplementedError

    def _image_size(self, image):
        """Returns the size of a stored image after its EXIF rotation: int32 `(height, width)`."""
        if image.dtype != tf.string:
            return tf.shape(image)[:2]
        size = images.header_size(image)
        is_turned = self.options.exif and images.orientation(image) > 4
        return tf.where(is_turned, size[::-1], size)


def reader(target, refuse):
    """Returns a function that maps an index to an example at the size of its stored image.

    It returns `(image, value of a white pixel, values, weight)`. For values that are damaged or not
    valid, it calls `refuse(index)`, which raises an error.
    """

    def decode(index):
        example = target.source.read(index)
        image, white = decode_pixels(example["image"], target.source, target.options)
        return image, tf.constant(float(white)), *target.decode(example)

    decode = tf.function(decode, input_signature=[tf.TensorSpec([], tf.int64)], autograph=False)

    def read(index):
        try:
            *example, is_valid = decode(index)
        except tf.errors.OpError:  # the file with the values is damaged
            is_valid = False
        if not is_valid:
            refuse(index)
        return example

    return read


def apply_to_bytes(function, encoded, dtype):
    """Returns `function(encoded)` as a tensor of `dtype`; the function gets `bytes`.

    Errors of the function become TensorFlow errors, as those of damaged files.
    """

    def apply(value):
        try:
            # An eager call passes an array.
            return function(value if isinstance(value, bytes) else value.item())
        except Exception as error:  # which an eager call would raise unchanged
            raise tf.errors.InvalidArgumentError(None, None, str(error)) from error

    return tf.numpy_function(apply, [encoded], dtype, stateful=False)
