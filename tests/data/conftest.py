"""Fixtures of the tests of `data`."""

import pytest

from .helpers import jpeg


@pytest.fixture
def photos(tmp_path):
    """Returns a folder with three classes of 12, 7 and 4 JPEGs."""
    number = 0
    for name, count in (("ant", 12), ("bee", 7), ("cat", 4)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(count):
            (tmp_path / "photos" / name / f"{i:02}.jpg").write_bytes(jpeg(number))
            number += 1
    return tmp_path / "photos"


@pytest.fixture
def broken(photos):
    """Breaks one photo of each class. Returns their paths."""
    (photos / "ant" / "03.jpg").write_bytes(jpeg(3)[:300])
    (photos / "bee" / "01.jpg").write_text("this is no image")
    (photos / "cat" / "02.jpg").write_bytes(b"")
    return {str(photos / name) for name in ("ant/03.jpg", "bee/01.jpg", "cat/02.jpg")}
