"""The outlines of the shapes, as numbers: each is a union of two intersections of half planes and discs."""

import numpy as np

RADIUS = 512  # of a shape, in the units of its coordinates
NAMES = ("disc", "ring", "half_disc", "crescent", "triangle", "square", "star", "cross")

# A side is (a, b, q, c): a*u + b*v + q*(u^2 + v^2)/1024 + c, which is 0 or less inside and about the distance outside.
_EVERYWHERE = (0.0, 0.0, 0.0, -4096.0)


def _half_plane(degrees, distance):
    """The side that looks in a direction, `distance` radii from the center."""
    a, b = (np.round(512 * f(np.deg2rad(degrees))) / 512 for f in (np.cos, np.sin))
    return (a, b, 0.0, -distance * RADIUS)


def _disc(radius, x=0.0, sign=1):
    """The inside of a circle, or with sign -1 the outside; its radius and center in radii of the shape."""
    u = x * RADIUS
    # (u^2 + v^2 - r^2) / 1024 around (u, 0): the distance at the rim of radius 512, and less steep inside of it.
    return tuple(sign * part for part in (-2 * u / 1024, 0.0, 1.0, (u * u - (radius * RADIUS) ** 2) / 1024))


def _polygon(first_degrees, *distances):
    """Half planes in directions that divide the circle evenly."""
    return [_half_plane(first_degrees + 360 * i / len(distances), d) for i, d in enumerate(distances)]


_UNIONS = {
    "disc": [[_disc(1.0)]],
    "ring": [[_disc(1.0), _disc(0.5, sign=-1)]],
    "half_disc": [[_disc(1.0), _half_plane(0, 0.0)]],
    "crescent": [[_disc(1.0), _disc(0.75, x=0.5, sign=-1)]],
    "triangle": [_polygon(60, 0.5, 0.5, 0.5)],
    "square": [_polygon(0, 0.6875, 0.6875, 0.6875, 0.6875)],
    "star": [_polygon(60, 0.5, 0.5, 0.5), _polygon(0, 0.5, 0.5, 0.5)],
    "cross": [_polygon(0, 0.9375, 0.3125, 0.9375, 0.3125), _polygon(0, 0.3125, 0.9375, 0.3125, 0.9375)],
}


def _table():
    rows = []
    for name in NAMES:
        parts = _UNIONS[name] if len(_UNIONS[name]) == 2 else 2 * _UNIONS[name]
        rows.append([side for part in parts for side in [*part, *[_EVERYWHERE] * (4 - len(part))]])
    return np.array(rows, "float32")


COEFFICIENTS = _table()  # (shapes, 2 * 4, 4)
