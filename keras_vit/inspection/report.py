"""Writes an HTML report with plots of a model."""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np

from keras_vit.inspection import plots
from keras_vit.inspection.attention_maps import attention_maps, token_row
from keras_vit.inspection.distance import attention_distance
from keras_vit.inspection.embeddings import filter_components, patch_components, position_similarity
from keras_vit.inspection.scores import attention_scores, check_inputs
from keras_vit.layers.validation import check_positive_int
from keras_vit.plots import Page, to_pictures
from keras_vit.preprocessing import find_preprocessing


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
    """Draws the plots that the model supports and writes an `index.html` that shows them.

    Args:
        model: a `keras.Model` that is or contains a Vision Transformer.
        images: `(N, H, W, C)`, preprocessed for the model; all of them are used for the attention
            distance.
        output: folder to write to, created if necessary; existing plots in it are replaced.
        title: name of the model in the report.
        others: `{title: model}` of additional models, with other titles. The report shows their
            position embeddings next to those of `model`.
        shown: number of images to draw, 1 or more.
        write: function that is called with each line of progress.
        captions: text for each drawn image, such as its class and file name; may have several
            lines.

    Returns:
        The path of `index.html`.

    Raises:
        ValueError: the model does not contain a Vision Transformer or takes images of any size, the
            images are empty or have the wrong size or dtype, or another argument is invalid.
        ImportError: matplotlib is not installed.
    """
    vit, images = check_inputs(model, images)
    vit.check_grid()
    check_positive_int("shown", shown)
    others = others or {}
    if title in others:
        raise ValueError(
            "`others` must not contain the title of `model`, because each title has one plot. "
            f"Received: title={title!r}, others={list(others)}"
        )
    images = np.asarray(images, "float32")
    page = Page(output, title, write)
    few = images[:shown]
    preprocessing = None
    with contextlib.suppress(ValueError):  # the model changes images without declaring their range
        preprocessing = find_preprocessing(model)
    photographs = to_pictures(few, preprocessing)
    _draw_attention(page, model, few, photographs, captions, write)
    _draw_heads(page, model, images, photographs)
    _draw_embeddings(page, {title: model, **others}, vit)
    # Three principal components need three patches and tokens of size 3.
    if min(len(few) * vit.grid[0] * vit.grid[1], vit.hidden_size) >= 3:
        _draw_patches(page, model, few, photographs)
    class_token = "" if vit.class_token is None else " and a class token"
    return page.save(
        f"{vit.num_layers} layers, {vit.num_heads} heads, tokens of size {vit.hidden_size}, "
        f"{vit.grid[0]} x {vit.grid[1]} patches{class_token}; {len(images)} images"
    )


def _draw_attention(page, model, images, photographs, captions, write):
    maps = {
        "rollout": attention_maps(model, images),
        "rollout without residual": attention_maps(model, images, residual=False),
        "last layer": attention_maps(model, images, "mean"),
    }
    shape = getattr(model, "output_shape", ())  # a subclassed `keras.Model` has no `output_shape`
    if isinstance(shape, tuple) and len(shape) == 2 and isinstance(shape[-1], int):
        relevance = attention_maps(model, images, "relevance")
        if relevance.any():
            maps["relevance"] = relevance
        else:
            write(
                "the relevance map is omitted, because it is zero everywhere, as with an "
                "untrained head"
            )
    page.draw(
        "attention.png",
        "Attention",
        "Attention of the output to each location, drawn over each image. Rollout multiplies the "
        "attention of all layers, with or without the residual connections. The last layer is "
        "averaged over its heads. Relevance weights all layers by the gradient of the predicted "
        "class. It is omitted if it is zero everywhere.",
        plots.attention,
        photographs,
        maps,
        captions,
        wide=True,
        columns=1 + len(maps),
    )


def _draw_heads(page, model, images, photographs):
    heads = token_row(model, attention_scores(model, images[:1], -1)[0])
    page.draw(
        "heads.png",
        "Heads of the last layer",
        "Attention of the output to the patches of the first image, for each head of the last "
        "layer.",
        plots.attention_heads,
        photographs[0],
        np.asarray(heads),
        columns=min(5, 1 + len(heads)),
    )
    page.draw(
        "attention_distance.png",
        "Attention distance",
        f"Mean attention distance of each head over {len(images)} images, excluding class and "
        "register tokens.",
        plots.attention_distance,
        attention_distance(model, images),
        images.shape[2],
    )


def _draw_embeddings(page, models, vit):
    page.draw(
        "positions.png",
        "Position embeddings",
        "Each tile shows the similarity of one patch's position embedding to the embeddings of "
        "all patches.",
        plots.position_similarity,
        {title: position_similarity(model) for title, model in models.items()},
    )
    if vit.stem is None:
        page.draw(
            "filters.png",
            "Filters",
            "Principal components of the patch embedding's filters.",
            plots.filters,
            filter_components(vit),
        )


def _draw_patches(page, model, images, photographs):
    page.draw(
        "patches.png",
        "Patches",
        "The first three principal components of the last layer's patch tokens, computed over "
        "the drawn images and shown as red, green and blue.",
        plots.patch_components,
        photographs,
        patch_components(model, images),
        "last layer",
        wide=True,
        columns=2 * min(3, len(images)),
    )
