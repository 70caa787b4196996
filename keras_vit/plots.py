"""What the files called plots.py share; they alone import matplotlib, and only when a picture is asked for."""

from typing import Any

import numpy as np


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


def to_pictures(images: np.ndarray) -> np.ndarray:
    """Converts a model's images to RGB pictures.

    Args:
        images: `(N, H, W, C)` of any range and number of channels. One or two channels are drawn as the gray of the
            first one, and of more than three the first three are drawn.

    Returns:
        float32 `(N, H, W, 3)` in [0, 1].
    """
    images = np.asarray(images, "float32")
    images = images[..., :3] if images.shape[-1] >= 3 else np.repeat(images[..., :1], 3, axis=-1)
    low, high = min(images.min(initial=0), -1), max(images.max(initial=0), 1)
    return (images - low) / (high - low)
