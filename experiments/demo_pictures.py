"""The pictures of the page of `demo.py`: arrays in; arrays of pixels, or HTML, out."""

import html

import numpy as np

SIDE = 448  # of a picture, in pixels: small images are enlarged by a whole number to about this
_COLORS = "viridis"


def attention_picture(picture, attention, patch=None, opacity=0.6):
    """An image under the colors of what is attended to.

    Args:
        picture: uint8 `(H, W, 3)`.
        attention: `(rows, columns)` of the patches, or `(H, W)`; 0 or more. Its largest value is the brightest color.
        patch: `(row, column)` of a patch to outline, or None.
        opacity: of the colors, in [0, 1].

    Returns:
        uint8 `(H', W', 3)`, H' and W' the same multiple of H and W.
    """
    picture = enlarge(picture)
    height, width = picture.shape[:2]
    unit = attention / max(float(attention.max()), 1e-30)
    rows, columns = (np.arange(size) * count // size for size, count in zip((height, width), attention.shape))
    colors = 255 * _colormap()(unit)[..., :3][rows[:, None], columns]
    gray = picture.mean(-1, keepdims=True) if opacity else picture
    picture = np.uint8(np.rint((1 - opacity) * gray + opacity * colors))
    if patch is not None:
        _outline(picture, rows == patch[0], columns == patch[1])
    return picture


def enlarge(picture):
    """uint8 `(H, W, 3)`, each pixel repeated so that the longer side is about `SIDE`."""
    factor = max(1, round(SIDE / max(picture.shape[:2])))
    return picture.repeat(factor, 0).repeat(factor, 1)


def patch_at(x, y, size, grid):
    """The patch `(row, column)` of a pixel of a picture of `size`, `(height, width)`; of one outside the nearest."""
    place = zip((y, x), size, grid)
    return tuple(min(max(int(i) * count // side, 0), count - 1) for i, side, count in place)


def color_scale(attention):
    """HTML of what the colors mean: from 0 to the largest share of an attention map."""
    stops = ", ".join(
        f"rgb({', '.join(str(round(255 * float(channel))) for channel in _colormap()(place)[:3])})"
        for place in np.linspace(0, 1, 9)
    )
    return (
        '<div style="display: flex; align-items: center; gap: 0.6em; font-size: 0.9em">0 %'
        f'<div style="flex: 1; height: 0.8em; border-radius: 0.2em; background: linear-gradient(90deg, {stops})"></div>'
        f"{_percent(float(attention.max()))} of its attention</div>"
    )


def class_bars(name, predictions):
    """HTML of the predicted classes of an image, `(class, name, probability)` as of `keras_vit.decode_predictions`."""
    cells = []
    for _, class_name, probability in predictions:
        width = 100 * min(max(probability, 0), 1)
        cells.append(
            f'<span style="overflow-wrap: anywhere">{html.escape(class_name)}</span>'
            '<span style="background: var(--border-color-primary); border-radius: 0.2em">'
            f'<span style="display: block; width: {width:.2f}%; min-width: 2px; height: 0.9em; '
            'background: #31688e; border-radius: 0.2em"></span></span>'
            f'<span style="text-align: right">{_percent(probability)}</span>'
        )
    return (
        f'<h3 style="margin: 0 0 0.5em; overflow-wrap: anywhere">Best classes of {html.escape(name)}</h3>'
        '<div style="display: grid; grid-template-columns: minmax(4em, 1fr) 2fr 5em; gap: 0.35em 1em; '
        f'align-items: center">{"".join(cells)}</div>'
    )


def heading(title, *sentences):
    """HTML of the head of the page."""
    lines = "".join(f'<p style="margin: 0.2em 0">{html.escape(sentence)}</p>' for sentence in sentences if sentence)
    return f'<h1 style="margin: 0; overflow-wrap: anywhere">{html.escape(title)}</h1>{lines}'


def messages(sentences):
    """HTML of sentences about files, one a line; "" of none."""
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f'<ul role="status" style="margin: 0; padding-left: 1.2em">{items}</ul>' if items else ""


def _percent(share):
    return f"{100 * share:.1f} %" if share >= 0.001 or share == 0 else "&lt; 0.1 %"


def _outline(picture, rows, columns):
    """Draws a black and white frame around the pixels where both are true."""
    (top, bottom), (start, end) = ((i[0], i[-1] + 1) for i in (np.flatnonzero(rows), np.flatnonzero(columns)))
    for inset, color in ((0, 0), (2, 255)):
        inner = picture[top + inset : bottom - inset, start + inset : end - inset]
        if inner.size:
            inner[:2], inner[-2:], inner[:, :2], inner[:, -2:] = color, color, color, color


def _colormap():
    import matplotlib

    return matplotlib.colormaps[_COLORS]
