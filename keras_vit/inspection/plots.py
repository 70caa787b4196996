"""Plots the arrays that `inspection` computes.

Every function writes an image file to `path`, whose extension selects the format. If matplotlib is
not installed (`pip install "keras_vit[plots]"`), every function raises an `ImportError`.
"""

import os
from collections.abc import Mapping, Sequence

import numpy as np

from keras_vit.plots import figure_class, image_axes, overlaid, plain_text, shortened


def attention(
    path: str | os.PathLike,
    images: np.ndarray,
    maps: Mapping[str, np.ndarray],
    captions: Sequence[str] = (),
) -> None:
    """Draws each image next to overlays of its attention maps (Figures 6 and 14).

    Args:
        path: file to write.
        images: float `(N, H, W, 3)` in [0, 1].
        maps: `{title: (N, H, W)}`, nonnegative; each map is divided by its maximum.
        captions: text below each image, which may have several lines.
    """
    columns = 1 + len(maps)
    row_height = 2.4 * images.shape[1] / images.shape[2] + (0.42 if captions else 0.15)
    figure, grid = image_axes(
        len(images), columns, (2.4 * columns + 0.8, row_height * len(images) + 0.4)
    )
    for axes, title in zip(grid[0], ["image", *maps]):
        axes.set_title(plain_text(title), fontsize=11)
    for caption, axes in zip(captions, grid[:, 0]):
        text = shortened(caption, 30)
        axes.text(0.5, -0.03, text, fontsize=9, ha="center", va="top", transform=axes.transAxes)
    for image, row, *maps_of_image in zip(images, grid, *maps.values()):
        row[0].imshow(image)
        for axes, values in zip(row[1:], maps_of_image):
            axes.imshow(overlaid(image, values / max(values.max(), 1e-30)))
    from matplotlib.cm import ScalarMappable

    last_column = grid[:, -1].tolist()
    figure.colorbar(ScalarMappable(), ax=last_column, label="share of the maximum", fraction=0.08)
    figure.savefig(path, dpi=100)


def attention_heads(path: str | os.PathLike, image: np.ndarray, maps: np.ndarray) -> None:
    """Draws the attention maps `(heads, rows, columns)` of one layer for one image `(H, W, 3)` in
    [0, 1]."""
    columns = min(5, len(maps) + 1)
    rows = -(-(len(maps) + 1) // columns)
    figure, _ = image_axes(rows, columns, (2.2 * columns + 0.8, 2.4 * rows))
    height, width, _ = image.shape
    first, *others = figure.axes
    first.imshow(image)
    first.set_title("image")
    for number, (axes, values) in enumerate(zip(others, maps), start=1):
        shown = axes.imshow(values, vmin=0, vmax=maps.max(), extent=(0, width, height, 0))
        axes.set_title(f"head {number}")
    figure.colorbar(shown, ax=figure.axes, label="attention to a patch")
    figure.savefig(path, dpi=100)


def attention_distance(path: str | os.PathLike, distances: np.ndarray, side: float) -> None:
    """Draws attention distances `(layers, heads)`, in pixels, over the layers (Figure 7, right;
    Figure 11).

    The title contains `side`, the width of the images in pixels.
    """
    layers = range(1, len(distances) + 1)
    figure = figure_class()(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(layers, distances, "o")
    axes.plot(layers, distances.mean(1), "k-", label="mean over heads")
    axes.set_xlabel("layer")
    axes.set_ylabel("mean attention distance (pixels)")
    axes.set_title(f"Attention distance in images of {side} pixels")
    axes.set_ylim(bottom=0)
    axes.locator_params("x", integer=True)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=100)


def position_similarity(path: str | os.PathLike, similarities: Mapping[str, np.ndarray]) -> None:
    """Draws similarities `{title: (rows, columns, rows, columns)}` of position embeddings (Figures
    7 and 10)."""
    figure = figure_class()(figsize=(6 * len(similarities) + 1, 5.8), layout="constrained")
    parts = figure.subplots(1, len(similarities), squeeze=False)[0].tolist()
    for axes, (title, similarity) in zip(parts, similarities.items()):
        rows, columns = similarity.shape[:2]
        # Repeat each value, so that the gaps between tiles are thin.
        cells = -(-14 // min(rows, columns))
        tiles = similarity.transpose(0, 2, 1, 3).repeat(cells, 1).repeat(cells, 3)
        tiles = np.pad(tiles, ((0, 0), (0, 1), (0, 0), (0, 1)), constant_values=np.nan)
        shown = axes.imshow(
            tiles.reshape(rows * tiles.shape[1], -1)[:-1, :-1],
            vmin=-1,
            vmax=1,
            interpolation="nearest",
            extent=(0.5, columns + 0.5, rows + 0.5, 0.5),
        )
        axes.locator_params(integer=True)
        axes.set_xlabel("column of the patch")
        axes.set_ylabel("row of the patch")
        axes.set_title(plain_text(title))
    figure.colorbar(shown, ax=parts, label="cosine similarity")
    figure.savefig(path, dpi=100)


def filters(path: str | os.PathLike, components: np.ndarray) -> None:
    """Draws principal components `(N, P, P, C)`, in [0, 1], of the patch embedding's filters
    (Figure 7, left).

    If C is not 3, only the first channel is drawn.
    """
    columns = min(7, len(components))
    rows = -(-len(components) // columns)
    figure, _ = image_axes(rows, columns, (1.2 * columns, 1.2 * rows + 0.5))
    figure.suptitle("Principal components of the patch embedding")
    pictures = components if components.shape[-1] == 3 else components[..., 0]
    for axes, picture in zip(figure.axes, pictures):
        axes.imshow(picture, cmap="gray", vmin=0, vmax=1)
    figure.savefig(path, dpi=100)


def patch_components(
    path: str | os.PathLike, images: np.ndarray, colors: np.ndarray, title: str = "components"
) -> None:
    """Draws each image next to a map that shows three components of its patch tokens as colors.

    Args:
        path: file to write.
        images: float `(N, H, W, 3)` in [0, 1].
        colors: float `(N, rows, columns, 3)` in [0, 1], as returned by
            `inspection.patch_components`.
        title: text above each map.
    """
    height, width = images.shape[1:3]
    pairs = min(3, len(images))
    rows = -(-len(images) // pairs)
    figure, grid = image_axes(rows, 2 * pairs, (5 * pairs, 2.5 * rows * height / width + 0.5))
    pictures = [picture for pair in zip(images, colors) for picture in pair]
    for axes, picture in zip(figure.axes, pictures):
        axes.imshow(picture, extent=(0, width, height, 0), interpolation="nearest")
    for axes, text in zip(grid[0], ("image", title) * pairs):
        axes.set_title(plain_text(text))
    figure.savefig(path, dpi=100)
