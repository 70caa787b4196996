"""Writes an HTML report with all plots of a model."""

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
    """Draws all plots of a model and writes an `index.html` that shows them.

    Args:
        model: a `keras.Model` that contains a Vision Transformer, which may be nested inside other models.
        images: `(N, H, W, C)`, preprocessed for the model; all of them are used for the attention distance.
        output: folder to write to, created if necessary; existing plots in it are replaced.
        title: name of the model in the report.
        others: additional models by title; the report shows their position embeddings next to the model's.
        shown: number of images to draw.
        write: function that is called with one line of text for each plot.
        captions: text for each drawn image, such as its class and file name, which may have several lines.

    Returns:
        The path of `index.html`.

    Raises:
        ValueError: the model does not contain a Vision Transformer or is a NaFlex model, or the images are empty or of
            the wrong size.
        ImportError: matplotlib is not installed.
    """
    vit, images = as_images(model, np.asarray(images, "float32"))
    vit.check_grid()
    page = Page(output, title, write)
    few, photographs = images[:shown], to_pictures(images[:shown], vit.preprocessing)
    # Draw attention maps of the images.
    maps = {
        "rollout": attention_maps(model, few),
        "rollout without residual": attention_maps(model, few, residual=False),
        "last layer": attention_maps(model, few, "mean"),
    }
    shape = getattr(model, "output_shape", ())  # a subclassed `keras.Model` has none
    if isinstance(shape, tuple) and len(shape) == 2 and isinstance(shape[-1], int):
        relevance = attention_maps(model, few, "relevance")
        if relevance.any():
            maps["relevance"] = relevance
        else:
            write("the relevance is not drawn, because it is zero everywhere, as for a head of zeros")
    page.draw(
        "attention.png", "Attention",
        "Attention of the output to each location, as colors over each image: the product of all layers' attention "
        "(rollout, with and without the residual connections), the mean over the heads of the last layer, and, unless "
        "the head is zero, all layers weighted by the gradient of the predicted class (relevance).",
        plots.attention, photographs, maps, captions, wide=True, columns=1 + len(maps),
    )  # fmt: skip
    heads = token_row(model, attention_scores(model, few[:1], -1)[0])
    page.draw(
        "heads.png", "Heads of the last layer",
        "Attention of each head in the last layer to the first image.",
        plots.attention_heads, photographs[0], np.asarray(heads), columns=min(5, 1 + vit.num_heads),
    )  # fmt: skip
    page.draw(
        "attention_distance.png", "Attention distance",
        f"Mean attention distance of each head over {len(images)} images, excluding attention to the class token.",
        plots.attention_distance, attention_distance(model, images), images.shape[2],
    )  # fmt: skip
    page.draw(
        "positions.png", "Position embeddings",
        "Each tile shows the similarity of one patch's position embedding to the embeddings of all patches.",
        plots.position_similarity,
        {name: position_similarity(other) for name, other in {title: model, **(others or {})}.items()},
    )  # fmt: skip
    if vit.stem is None:
        page.draw(
            "filters.png", "Filters",
            "Principal components of the patch embedding's filters.",
            plots.filters, filter_components(model),
        )  # fmt: skip
    if min(len(few) * vit.grid[0] * vit.grid[1], vit.hidden_size) >= 3:
        page.draw(
            "patches.png", "Patches",
            "The first three principal components of the last layer's patch tokens, computed over all images and shown "
            "as red, green and blue.",
            plots.patch_components, photographs, patch_components(model, few), "last layer", wide=True,
            columns=2 * min(3, len(few)),
        )  # fmt: skip
    # Summarize the model.
    return page.save(
        f"{vit.num_layers} layers, {vit.num_heads} heads, tokens of size {vit.hidden_size}, "
        f"{vit.grid[0]} x {vit.grid[1]} patches"
        f"{'' if vit.class_token is None else ' and a class token'}; {len(images)} images"
    )
