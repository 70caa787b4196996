"""What the files called plots.py and the pages of pictures share; matplotlib is imported only for a picture."""

import html
from typing import Any

import numpy as np

from keras_vit import files

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font-family: sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em; }}
img {{ max-width: 100%; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def plain_text(text: object) -> str:
    """A text of the user's as matplotlib draws it, without taking what stands between two `$` for mathematics."""
    return str(text).replace("$", r"\$")


def figure_class() -> Any:
    """Returns matplotlib's `Figure`, which draws without a screen and without pyplot's global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('matplotlib is not installed; pip install "keras_vit[plots]" adds it.') from error
    return Figure


def to_pictures(images: np.ndarray) -> np.ndarray:
    """Converts images `(N, H, W, C)` of any range and number of channels to RGB, float32 in [0, 1]."""
    images = np.asarray(images, "float32")
    images = images[..., :3] if images.shape[-1] >= 3 else np.repeat(images[..., :1], 3, axis=-1)
    low, high = min(images.min(initial=0), -1), max(images.max(initial=0), 1)
    return (images - low) / (high - low)


def colormap(name: str) -> Any:
    """matplotlib's colormap of that name."""
    import matplotlib

    return matplotlib.colormaps[name]


class Page:
    """An HTML page of pictures, and the pictures next to it in a folder."""

    def __init__(self, folder, title, write=print):
        self.folder = files.as_path(folder)
        files.make_dirs(self.folder)
        self._title, self._write, self._parts = title, write, []

    def draw(self, name, heading, text, function, *arguments):
        """Draws a picture with `function(path, *arguments)`."""
        with files.atomic_path(self.folder / name) as path:
            function(path, *arguments)
        self._write(f"drew {self.folder / name}")
        heading, text = html.escape(heading), html.escape(text)
        self._parts.append(
            f'<h2>{heading}</h2>\n<p>{text}</p>\n<a href="{name}"><img src="{name}" alt="{heading}"></a>'
        )

    def save(self, facts, items=()):
        """Writes `index.html`: the facts, the pictures, and a numbered list of items. Returns its path."""
        listed = [f"<li>{html.escape(item)}</li>" for item in items]
        parts = [f"<p>{html.escape(facts)}</p>", *self._parts, *(["<ol>", *listed, "</ol>"] if listed else [])]
        with files.atomic_write(self.folder / "index.html") as file:
            file.write(_PAGE.format(title=html.escape(self._title), body="\n".join(parts)))
        return self.folder / "index.html"
