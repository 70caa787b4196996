"""The demo's page for models that predict a class or a depth for each pixel."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from keras_vit.commands.pixels import checked_details, decode_file, reason_of
from keras_vit.evaluation.dense import picture_of, predict_pixels
from keras_vit.export.dense_signatures import predicts_of
from keras_vit.preprocessing import preprocessing_of


class PixelModel:
    """A model that predicts pixels, with its class names."""

    def __init__(self, model, details, title, class_names=""):
        self._model = model
        self._details = checked_details(model, details, class_names)
        self.title = title
        height, width, _ = model.input_shape[1:]
        self.facts = f"{model.count_params():,} parameters; images of {width} x {height} pixels"

    def annotations(self, path):
        """Returns the picture of a file, uint8 `(H, W, 3)`, and a list of `(mask, label)`: Boolean
        masks of the classes that occur, or the depths in [0, 1]."""
        preprocessing = preprocessing_of(self._model)
        image = decode_file(path, preprocessing, self._details)
        outputs = predict_pixels(self._model, image, preprocessing)
        picture = picture_of(image, 2**preprocessing.bit_depth - 1)
        picture = np.uint8(np.rint(255 * picture))
        if predicts_of(self._model) == "depth":
            depths = outputs[..., 0]
            low, high = float(depths.min()), float(depths.max())
            share = (depths - low) / max(high - low, 1e-12)
            return picture, [(share, f"depth, {low:.4g} to {high:.4g}")]
        classes = outputs.argmax(-1)
        names = self._details.get("class_names") or range(outputs.shape[-1])
        found = np.flatnonzero(np.bincount(classes.ravel()))
        shares = [100 * (classes == i).mean() for i in found]
        masks = [classes == i for i in found]
        return picture, [
            (mask, f"{names[i]} {share:.1f} %") for mask, i, share in zip(masks, found, shares)
        ]


def build_page(model, gradio):
    """Builds the `gradio.Blocks` for a `PixelModel`."""

    def read(path):
        if path is None:
            return None
        try:
            return model.annotations(Path(path))
        except (OSError, ValueError, tf.errors.OpError) as error:
            text = f"{Path(path).name} cannot be read: {reason_of(error)}"
            raise gradio.Error(text, print_exception=False) from error

    options = {"concurrency_limit": 1, "api_visibility": "private"}
    with gradio.Blocks(
        title=f"keras_vit: {model.title}", analytics_enabled=False, delete_cache=(600, 3600)
    ) as page:
        gradio.Markdown(f"# {model.title}\n{model.facts}")
        with gradio.Row():
            with gradio.Column(scale=2, min_width=300):
                upload = gradio.File(label="Drop or choose an image", height=170, elem_id="upload")
            with gradio.Column(scale=5):
                shown = gradio.AnnotatedImage(label="Prediction", elem_id="pixels", format="png")
        upload.change(read, upload, shown, **options)
    return page
