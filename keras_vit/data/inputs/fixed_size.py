"""Images of one size, resized and cropped: float32 `(H, W, C)`."""

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import tensorflow as tf

from keras_vit.data import transforms
from keras_vit.preprocessing import Preprocessing

if TYPE_CHECKING:
    from keras_vit.data.options import Options
    from keras_vit.data.sources.source import Source


class FixedSize:
    """Images of one size. Other input kinds override these methods.

    Attributes:
        defaults: the kind's fields of `config.data`, with their default values.
        resizes: values of `Preprocessing.resize` of models for this kind.
        has_pixel_grid: whether images stay grids of pixels, which targets of pixels require.
    """

    defaults: ClassVar[dict[str, Any]] = {}
    resizes: tuple[str, ...] = ("stretch", "shorter_side")
    has_pixel_grid = True

    def is_chosen(self, options: "Options") -> bool:
        """Returns whether data options choose this kind."""
        return True

    def check(self, options: "Options") -> None:
        """Raises a `ValueError` if a field of this kind is out of range."""

    def resolve(self, options: "Options") -> "Options":
        """Returns options in which the kind has replaced "auto"; raises a `ValueError` for bad
        fields."""
        return options

    def shape(self, options: "Options", source: "Source | None" = None) -> tuple[int, ...]:
        """Returns the shape of an image in a batch, or () if it is unknown without a source."""
        if options.image_size:
            return options.image_size, options.image_size, options.channels
        return () if source is None else (*source.image_spec.shape[:2], options.channels)

    def side(self, shape: tuple[int, ...]) -> int:
        """Returns the side, in pixels, of a square image of this shape, or the shorter side."""
        return min(shape[:2])

    def resize(self, options: "Options") -> str:
        """Returns `Preprocessing.resize` of a model that is trained with these options."""
        return "shorter_side" if options.eval_crop == "resize_small_crop" else "stretch"

    def training_image(
        self, image: tf.Tensor, seed: tf.Tensor, options: "Options", shape: tuple[int, ...]
    ) -> tf.Tensor:
        """Resizes and crops a decoded training image; `seed` draws the crop."""
        crop = options.train_crop
        if crop == "none":
            return image
        if not crop.endswith("_crop"):  # the whole image, or its inception crop
            return transforms.resize(image, shape[:2], options.rounding)
        resize = transforms.resize_to_cover if crop == "resize_small_crop" else transforms.resize
        image = resize(image, (options.resize_size,) * 2, options.rounding)
        return tf.image.stateless_random_crop(image, [*shape[:2], image.shape[2]], seed)

    def finish(self, image: tf.Tensor, shape: tuple[int, ...]) -> tf.Tensor:
        """Returns an augmented and normalized image in the shape of a batch."""
        return image

    def evaluation_image(
        self, image: tf.Tensor, size: tuple[int, int] | None, preprocessing: Preprocessing
    ) -> tf.Tensor:
        """Resizes, crops and normalizes an image for evaluation or an exported model.

        `size` has the first two sides of the shape in a batch; None keeps the size of the image.
        """
        if size:
            resized = preprocessing.resized(size)
            how = (preprocessing.rounding, preprocessing.interpolation)
            library = preprocessing.library
            if preprocessing.resize == "stretch":
                image = transforms.resize(image, resized, *how)
            else:
                image = transforms.resize_to_cover(image, resized, *how, library)
            image = transforms.central_crop(image, size, library)
        return preprocessing.normalized(tf.cast(image, tf.float32))

    def blank(self, shape: tuple[int, ...]) -> np.ndarray:
        """Returns the image of an example that cannot be read."""
        return np.zeros(shape, "float32")

    def options_for(
        self, shape: tuple[int, ...], preprocessing: Preprocessing
    ) -> dict[str, Any] | None:
        """Returns the data options that make images of a model's shape, or None if the source
        decides too."""
        return None
