"""The demo's page for models that predict a class or a depth for each pixel."""

from pathlib import Path

import numpy as np

from keras_vit.commands.demo_page import description_of, new_page
from keras_vit.commands.image_files import decoded, names_and_decoder
from keras_vit.commands.pixels import predict_image, scaled
from keras_vit.commands.shared_flags import with_class_names
from keras_vit.export.dense_signatures import predicts_of
from keras_vit.plots import to_uint8


class PixelModel:
    """A model that predicts a class or a depth for each pixel, with its class names."""

    def __init__(self, model, details, title, class_names=""):
        self._model = model
        details = with_class_names(details, class_names, model)
        _, self._decoder = names_and_decoder(model, details)
        self._class_names = details.get("class_names")
        self.title = title
        self.description = description_of(model)

    def annotations(self, path):
        """Returns the picture of a file, uint8 `(H, W, 3)`, and a list of `(mask, label)`: Boolean
        masks of the classes that occur, or the depths in [0, 1]."""
        image = decoded(self._decoder.decode, path.name, path.read_bytes())
        picture, outputs = predict_image(self._model, image, self._decoder.preprocessing)
        picture = to_uint8(picture)
        if predicts_of(self._model) == "depth":
            depths, text = scaled(outputs[..., 0])
            return picture, [(depths, f"depth, {text}")]
        classes = outputs.argmax(-1)
        names = self._class_names or range(outputs.shape[-1])
        masks = {i: classes == i for i in np.unique(classes)}
        return picture, [
            (mask, f"{names[i]} {100 * mask.mean():.1f} %") for i, mask in masks.items()
        ]


def build_page(model, gradio):
    """Builds the `gradio.Blocks` for a `PixelModel`."""

    def read(path):
        if path is None:
            return None
        try:
            return model.annotations(Path(path))
        except (OSError, ValueError) as error:
            raise gradio.Error(str(error), print_exception=False) from error

    options = {"concurrency_limit": 1, "api_visibility": "private"}
    with new_page(model, gradio) as page:
        with gradio.Row():
            with gradio.Column(scale=2, min_width=300):
                upload = gradio.File(label="Drop or choose an image", height=170, elem_id="upload")
            with gradio.Column(scale=5):
                shown = gradio.AnnotatedImage(label="Prediction", elem_id="pixels", format="png")
        upload.change(read, upload, shown, **options)
    return page
