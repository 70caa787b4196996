"""What the files called plots.py share; they alone import matplotlib, and only when a picture is asked for."""

from typing import Any


def plain_text(text: object) -> str:
    """A text of the user's as matplotlib draws it, without taking what stands between two `$` for mathematics."""
    return str(text).replace("$", r"\$")


def figure_class() -> Any:
    """matplotlib's `Figure`, which draws without a screen and without pyplot's global state.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('matplotlib is not installed; pip install "keras_vit[plots]" adds it.') from error
    return Figure
