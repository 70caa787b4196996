"""Shared helpers for plots and HTML pages; matplotlib is imported on first use."""

import html
import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_vit import files

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font-family: sans-serif; max-width: 84em; margin: 1em auto; padding: 0 1em; overflow-wrap: anywhere; }}
main {{ display: flex; flex-wrap: wrap; gap: 0 2em; }}
section {{ flex: 1 1 30em; max-width: 100%; min-width: 0; }}
section.wide {{ flex-basis: 100%; }}
section a {{ display: block; overflow-x: auto; }}
img {{ max-width: 100%; }}
pre {{ overflow-x: auto; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def plain_text(text: object) -> str:
    """Escapes `$` in a user's text, so that matplotlib does not typeset it as math."""
    return str(text).replace("$", r"\$")


def figure_class() -> Any:
    """Returns matplotlib's `Figure` class, which needs neither a display nor pyplot's global
    state."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            'matplotlib is not installed. Install it with: pip install "keras_vit[plots]"'
        ) from error
    return Figure


def image_axes(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, np.ndarray]:
    """Returns a figure and its grid of axes `(rows, columns)`, without frames, for images."""
    figure = figure_class()(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    return figure, grid


def to_pictures(images: np.ndarray, preprocessing: Any = None) -> np.ndarray:
    """Converts images `(N, H, W, C)` in [-1, 1], or normalized by `preprocessing`, to RGB, float32
    in [0, 1]."""
    images = np.asarray(images, "float32")
    if preprocessing is not None:
        images = preprocessing.layout.pictures(images)
        preprocessing = preprocessing.for_channels(images.shape[-1])
        white = 2**preprocessing.bit_depth - 1
        pixels = images * np.float32(preprocessing.std) + np.float32(preprocessing.mean)
        images = 2 * pixels / white - 1
    images = images[..., :3] if images.shape[-1] >= 3 else np.repeat(images[..., :1], 3, axis=-1)
    low = min(images.min(initial=0), -1)
    high = max(images.max(initial=0), 1)
    return (images - low) / (high - low)


def to_uint8(picture: np.ndarray) -> np.ndarray:
    """Converts a picture with values in [0, 1] to uint8."""
    return np.rint(255 * picture).astype("uint8")


def overlaid(picture: np.ndarray, values: np.ndarray, opacity: float = 0.5) -> np.ndarray:
    """Overlays a heatmap of `values`, `(H, W)`, on a gray version of `picture`, `(H, W, 3)`; both
    are in [0, 1]."""
    import matplotlib

    colors = matplotlib.colormaps["viridis"](values)[..., :3]
    return (1 - opacity) * picture.mean(-1, keepdims=True) + opacity * colors


def shortened(text: str, width: int) -> str:
    """Shortens each line of a user's text to at most `width` characters by omitting its middle, and
    escapes it for matplotlib."""
    half = (width - 1) // 2
    lines = [
        line if len(line) <= width else f"{line[:half]}…{line[-half:]}"
        for line in text.splitlines()
    ]
    return plain_text("\n".join(lines))


def draw(path: str | os.PathLike, function: Callable[..., object], *arguments: Any) -> None:
    """Draws the file `path`, which may be remote, with `function(local_path, *arguments)`."""
    with tempfile.TemporaryDirectory() as folder:  # matplotlib cannot write to remote paths
        function(f"{folder}/picture.png", *arguments)
        files.copy(f"{folder}/picture.png", path)


class Page:
    """An HTML page and its pictures, in one folder."""

    def __init__(self, folder, title, write=print):
        self.folder = files.as_path(folder)
        files.make_dirs(self.folder)
        self._title = title
        self._write = write
        self._parts = []

    def draw(self, name, heading, text, function, *arguments, wide=False, columns=1):
        """Draws a picture with `function(path, *arguments)` and adds it to the page, at full width
        if `wide`.

        `columns` is the number of columns in the picture. On a narrow screen, a picture scrolls
        instead of shrinking below 96 pixels per column.
        """
        draw(self.folder / name, function, *arguments)
        self._write(f"drew {self.folder / name}")
        heading = html.escape(heading)
        text = html.escape(text)
        self._parts.append(
            f"<section{' class=wide' if wide else ''}>\n<h2>{heading}</h2>\n<p>{text}</p>\n"
            f'<a href="{name}"><img src="{name}" alt="{heading}" style="min-width: '
            f'{96 * columns}px"></a>\n</section>'
        )

    def save(self, facts, items=(), table=()):
        """Writes `index.html` with the facts, a table, the pictures and a numbered list of items;
        returns its path."""
        body = [f"<p>{html.escape(facts)}</p>"]
        if table:
            lines = "\n".join(table)
            body.append(f"<pre>{html.escape(lines)}</pre>")
        body += ["<main>", *self._parts, "</main>"]
        if items:
            body += ["<ol>", *(f"<li>{html.escape(item)}</li>" for item in items), "</ol>"]
        path = self.folder / "index.html"
        with files.atomic_write(path) as file:
            file.write(_PAGE.format(title=html.escape(self._title), body="\n".join(body)))
        return path
