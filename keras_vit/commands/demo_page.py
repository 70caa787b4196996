"""The start of the demo's page: the title and a description of the model."""

import contextlib

from keras_vit.export.assets import image_size_text


def description_of(model):
    """Returns the number of parameters and the image size of a model as a text."""
    return f"{model.count_params():,} parameters; {image_size_text(model)}"


@contextlib.contextmanager
def new_page(model, gradio):
    """Yields a `gradio.Blocks` with the title and description of a `PixelModel` or `DemoModel`."""
    with gradio.Blocks(
        title=f"keras_vit: {model.title}", analytics_enabled=False, delete_cache=(600, 3600)
    ) as page:
        gradio.Markdown(f"# {model.title}\n{model.description}")
        yield page
