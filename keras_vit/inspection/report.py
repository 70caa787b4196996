"""Everything there is to see of a model on some images, as pictures and a page that shows them."""

import os
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np

from keras_vit.inspection import plots
from keras_vit.inspection.attention_maps import attention_maps, token_row
from keras_vit.inspection.distance import attention_distance
from keras_vit.inspection.embeddings import filter_components, patch_components, position_similarity
from keras_vit.inspection.scores import as_images, attention_scores
from keras_vit.plots import Page, to_pictures


def write_report(
    model: keras.Model,
    images: np.ndarray,
    output: str | os.PathLike,
    title: str = "model",
    others: Mapping[str, keras.Model] | None = None,
    shown: int = 8,
    write: Callable[[str], object] = print,
    captions: Sequence[str] = (),
) -> os.PathLike:
    """Draws all pictures of a model, and writes `index.html` beside them.

    Args:
        model: a `keras.Model` with a Vision Transformer in it, also wrapped inside other models.
        images: `(N, H, W, C)`, as the model takes them; all of them count for the attention distance.
        output: the folder to write to, made if it does not exist; pictures in it are replaced.
        title: what the page calls the model.
        others: further models by their titles, whose position embeddings are drawn side by side with the model's.
        shown: how many images are drawn.
        write: takes a line for each picture.
        captions: lines for each image that is drawn, such as its class and the name of its file.

    Returns:
        The path of the page.

    Raises:
        ValueError: there is no Vision Transformer in the model, no image, or the images are not of its size.
        ImportError: matplotlib is not installed.
    """
    vit, images = as_images(model, np.asarray(images, "float32"))
    page = Page(output, title, write)
    few, photographs = images[:shown], to_pictures(images[:shown], vit.preprocessing)
    maps = {
        "rollout": attention_maps(model, few),
        "rollout without residual": attention_maps(model, few, residual=False),
        "last layer": attention_maps(model, few, "mean"),
    }
    shape = getattr(model, "output_shape", ())  # a subclass of `keras.Model` does not say
    if isinstance(shape, tuple) and len(shape) == 2 and isinstance(shape[-1], int):
        relevance = attention_maps(model, few, "relevance")
        if relevance.any():
            maps["relevance"] = relevance
        else:
            write("the relevance is not drawn: it is zero everywhere, as that of a head of zeros is")
    page.draw(
        "attention.png", "Attention",
        "What the output attends to, as colors over each image: the attention of all layers multiplied (rollout, "
        "with and without the residual connections), the mean over the heads of the last layer, and, unless the head "
        "is still zero, all layers weighted by the gradient of the predicted class (relevance).",
        plots.attention, photographs, maps, captions, wide=True,
    )  # fmt: skip
    heads = token_row(model, attention_scores(model, few[:1], -1)[0])
    page.draw(
        "heads.png", "Heads of the last layer",
        "What each head of the last layer attends to in the first image.",
        plots.attention_heads, photographs[0], np.asarray(heads),
    )  # fmt: skip
    page.draw(
        "attention_distance.png", "Attention distance",
        f"How far each head looks, the mean over {len(images)} images; attention to the class token is left out.",
        plots.attention_distance, attention_distance(model, images), images.shape[2],
    )  # fmt: skip
    page.draw(
        "positions.png", "Position embeddings",
        "Each tile is the similarity of the position of one patch to those of all patches.",
        plots.position_similarity,
        {name: position_similarity(other) for name, other in {title: model, **(others or {})}.items()},
    )  # fmt: skip
    if vit.stem is None:
        page.draw(
            "filters.png", "Filters",
            "The principal components of the filters that embed the patches.",
            plots.filters, filter_components(model),
        )  # fmt: skip
    if min(len(few) * vit.grid[0] * vit.grid[1], vit.hidden_size) >= 3:
        page.draw(
            "patches.png", "Patches",
            "The first three principal components of the last layer's tokens, of all images together, as red, green "
            "and blue.",
            plots.patch_components, photographs, patch_components(model, few), "last layer", wide=True,
        )  # fmt: skip
    return page.save(
        f"{vit.num_layers} layers, {vit.num_heads} heads, tokens of size {vit.hidden_size}, "
        f"{vit.grid[0]} x {vit.grid[1]} patches"
        f"{'' if vit.class_token is None else ' and a class token'}; {len(images)} images"
    )
