"""Converts image files that training cannot read: HEIC, AVIF and TIFF, with Pillow.

TIFF files and images with transparency become PNG files, which lose nothing; the others become JPEG
files of quality 95. The first image of a file is converted, and its EXIF orientation is applied.
"""

import os
from pathlib import Path

from keras_vit import files, terminal
from keras_vit.data.sources.listing import files_below, printable

HEIC = (".heic", ".heif")
TIFF = (".tif", ".tiff")
ENDINGS = (*HEIC, ".avif", *TIFF)
INSTALL = 'pip install "keras_vit[heic]"'
# The modes of Pillow that PNG files can store; "I" and "F" have no fixed white.
_PNG_MODES = ("1", "L", "LA", "P", "I;16", "RGB", "RGBA")


def convert(folder, target):
    """Converts `a/1.heic` in a folder to `a/1.heic.jpg` in the folder `target`.

    Returns the number of converted files, and a dict from skipped files to reasons.
    """
    names = files_below(folder, ENDINGS)
    _check(folder, target, names)
    skipped = {}
    for name in terminal.track(names, "converting", "images"):
        path = Path(folder, name)
        if reason := _convert(path, Path(target, name)):
            skipped[printable(path)] = reason
    return len(names) - len(skipped), skipped


def _check(folder, target, names):
    if files.is_remote(folder) or files.is_remote(target):
        raise ValueError(f"--convert needs local folders. Received: convert={target!r}")
    if Path(target).is_file():
        raise ValueError(f"--convert must be a folder, not a file. Received: convert={target!r}")
    if Path(target).resolve().is_relative_to(Path(folder).resolve()):
        raise ValueError(
            f"--convert must be a folder outside of --data. Received: convert={target!r}, "
            f"data={folder!r}"
        )
    try:
        import PIL  # noqa: F401

        if any(name.lower().endswith(HEIC) for name in names):
            import pillow_heif

            pillow_heif.register_heif_opener()
    except ImportError as error:
        raise ValueError(
            f"--convert needs the package {error.name}: {INSTALL}. Received: convert={target!r}"
        ) from error


def _convert(path, target):
    """Converts a file; returns "", or why it was skipped."""
    try:
        image = _upright(path)
    except Exception as error:  # Pillow raises errors of many kinds for damaged files
        return terminal.first_line(error)
    is_png = path.suffix.lower() in TIFF or image.has_transparency_data
    if not is_png and image.mode not in ("L", "RGB"):
        image = image.convert("RGB")
    target = target.with_name(f"{target.name}.{'png' if is_png else 'jpg'}")
    if os.path.lexists(target):
        return f"{target} exists"
    files.make_dirs(target.parent)
    with files.atomic_path(target) as temporary:
        # PNG files have no quality.
        image.save(temporary, quality=95, icc_profile=image.info.get("icc_profile"))
    return ""


def _is_misread(file):
    """Returns whether Pillow changes or does not scale the values of a TIFF file."""
    bits = file.tag_v2.get(258, ())
    is_inverted = file.tag_v2.get(262) == 0  # white is zero
    signed_or_float = {*file.tag_v2.get(339, (1,))} - {1}
    is_deep = max(bits, default=8) > 8
    return bool(signed_or_float) or (is_deep and (bits != (16,) or is_inverted))


def _upright(path):
    """Returns the first image of a file, upright, in a mode that PNG files have."""
    from PIL import Image, ImageOps

    with Image.open(path) as file:
        if file.mode in ("I", "F") or (hasattr(file, "tag_v2") and _is_misread(file)):
            raise ValueError("Pillow cannot convert its values without loss; use another program")
        image = ImageOps.exif_transpose(file)
    if image.mode.startswith("I;16"):
        return image.convert("I").convert("I;16")
    if image.mode in _PNG_MODES:
        return image
    return image.convert("RGBA" if image.has_transparency_data else "RGB")
