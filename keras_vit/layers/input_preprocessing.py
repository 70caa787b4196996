"""What images must have gone through before a model sees them."""

import keras

PREPROCESSING = {
    "mean": [127.5, 127.5, 127.5],
    "std": [127.5, 127.5, 127.5],
    "resize": "stretch",
    "crop_fraction": 1.0,
}


@keras.saving.register_keras_serializable(package="keras_vit")
class InputPreprocessing(keras.layers.Layer):
    """Changes nothing, and says in its config how the images were prepared: `(B, H, W, C)` to `(B, H, W, C)`.

    It stands first in every model here. What a checkpoint was trained on belongs to the model as its weights do, and
    a layer's config is what survives saving, `from_config` and `clone_model`. `keras_vit.preprocessing_of` reads it.

    Args:
        preprocessing: None for the original's, or a dict with
            "mean", "std": of each channel, on the scale of [0, 255]; what the model sees is `(image - mean) / std`.
            "resize": "stretch" (both sides to the model's, bilinear, without antialiasing; the original's) or
                "shorter_side" (that side to the model's over `crop_fraction`, then the middle is cut out).
            "crop_fraction": share of the resized image's side that is kept, in (0, 1].

    Call arguments:
        images: `(B, H, W, C)`, float.

    Returns:
        The same images in the compute dtype.

    Raises:
        ValueError: the dict has other keys, or a value is out of range.
    """

    def __init__(self, preprocessing=None, **kwargs):
        super().__init__(**kwargs)
        self.preprocessing = check_preprocessing(PREPROCESSING if preprocessing is None else preprocessing)

    def call(self, images):
        return images

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        # Checked again: a plain copy, and an attribute that somebody set is not saved unseen.
        return {**super().get_config(), "preprocessing": check_preprocessing(dict(self.preprocessing))}


def check_preprocessing(preprocessing):
    """A copy of the dict, in plain numbers; raises a `ValueError` where it is no preprocessing."""
    keys = sorted(PREPROCESSING)
    if not isinstance(preprocessing, dict) or sorted(preprocessing) != keys:
        raise ValueError(f"`preprocessing` must be a dict with {', '.join(keys)}. Received: {preprocessing!r}")
    mean, std = ([float(value) for value in preprocessing[key]] for key in ("mean", "std"))
    if len(mean) != len(std) or min(std, default=0) <= 0:
        raise ValueError(f"`mean` and `std` must be of equal length, `std` above 0. Received: {preprocessing!r}")
    if preprocessing["resize"] not in ("stretch", "shorter_side"):
        raise ValueError(f'`resize` must be "stretch" or "shorter_side". Received: {preprocessing!r}')
    crop_fraction = float(preprocessing["crop_fraction"])
    if not 0 < crop_fraction <= 1:
        raise ValueError(f"`crop_fraction` must be in (0, 1]. Received: {preprocessing!r}")
    return {"mean": mean, "std": std, "resize": preprocessing["resize"], "crop_fraction": crop_fraction}
