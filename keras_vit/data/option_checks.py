"""Checks of the options of the input pipeline: of their values, and of their fit to a source."""

from typing import TYPE_CHECKING

from keras_vit.data.order import FORMS
from keras_vit.data.randaugment import LEVELS
from keras_vit.data.sources.source import Source
from keras_vit.preprocessing.settings import LIBRARIES

if TYPE_CHECKING:
    from keras_vit.data.options import Options

AUGREG_FIELDS = ("randaugment_layers", "randaugment_magnitude", "mixup_alpha")
"""The fields that `augreg` sets, in the order of `LEVELS`."""

_CHOICES = {
    "train_crop": ("auto", "inception", "resize_small_crop", "resize_crop", "resize", "none"),
    "eval_crop": ("auto", "resize", "resize_small_crop", "resize_crop", "none"),
    "bit_depth": (8, 16),
    "rounding": ("float", "uint8"),
    "interpolation": ("", "bilinear", "bicubic"),
    "augreg": tuple(LEVELS),
    "flip": ("auto", "on", "off", True, False),
    "exif": ("auto", "on", "off", True, False),
    "mixup_form": FORMS,
    "randaugment_form": ("corrected", "original"),
    "library": ("", *LIBRARIES),
}
_LEAST = {
    "image_size": 0,
    "channels": 1,
    "resize_size": 0,
    "shift": 0,
    "randaugment_layers": 0,
    "randaugment_magnitude": 0,
    "mixup_alpha": 0,
    "cutmix_alpha": 0,
    "shuffle_buffer": 1,
    "prefetch": 1,
    "threads": 0,
}


def check_values(options: "Options") -> None:
    """Raises a `ValueError` if a field has a value that fits no source, or if two fields contradict
    each other."""
    one_per_channel = f"() or {options.channels} numbers, one for each channel"
    rules = [
        ("mean", len(options.mean) in (0, options.channels), one_per_channel),
        ("std", len(options.std) in (0, options.channels), one_per_channel),
        ("std", min(options.std, default=1) > 0, "above 0"),
        ("max_megapixels", options.max_megapixels > 0, "above 0"),
    ]
    for field, values in _CHOICES.items():
        choices = ", ".join(map(repr, values))
        rules.append((field, getattr(options, field) in values, f"one of {choices}"))
    for field, least in _LEAST.items():
        rules.append((field, getattr(options, field) >= least, f"{least} or more"))
    for field, holds, rule in rules:
        if not holds:
            raise ValueError(
                f"`{field}` must be {rule}. Received: {field}={getattr(options, field)!r}"
            )
    _check_resize_size(options)
    _check_augreg(options)


def _check_resize_size(options):
    """Raises a `ValueError` if a crop would be larger than the image that it is taken from."""
    for crop in ("train_crop", "eval_crop"):
        if getattr(options, crop).endswith("_crop") and options.resize_size < options.image_size:
            raise ValueError(
                f"`resize_size` must be at least `image_size`, {options.image_size}, for this "
                "crop, such as 256 for 224 or 448 for 384. Received: "
                f"resize_size={options.resize_size}, {crop}={getattr(options, crop)!r}"
            )


def _check_augreg(options):
    """Raises a `ValueError` if `augreg` would replace fields that are set."""
    replaced = [
        f"{name}={getattr(options, name)}"
        for name in AUGREG_FIELDS
        if getattr(options, name) != getattr(type(options), name)
    ]
    if options.augreg != "none" and replaced:
        raise ValueError(
            f"`augreg` sets {', '.join(AUGREG_FIELDS)}; leave these fields at their defaults, or "
            f"set augreg='none'. Received: augreg={options.augreg!r}, {', '.join(replaced)}"
        )


def check_source(options: "Options", source: Source) -> None:
    """Raises a `ValueError` unless resolved options fit a source."""
    _check_size(options, source)
    _check_channels(options, source)
    if options.randaugment_layers:
        _check_randaugment(options, source)


def _check_size(options, source):
    """Raises a `ValueError` unless the options give images of one size."""
    stored = source.pixel_shape
    crops = (
        f"image_size={options.image_size}, train_crop={options.train_crop!r}, "
        f"eval_crop={options.eval_crop!r}"
    )
    keeps_size = options.train_crop == options.eval_crop == "none" and stored.is_fully_defined()
    if not options.kind.shape(options) and not keeps_size:
        raise ValueError(
            "`image_size` must be set, as with --config.data.image_size=224, unless images are "
            f"arrays of one size and both crops are 'none'. Received: {crops}"
        )
    has_size = stored.is_compatible_with((options.image_size, options.image_size, None))
    if options.image_size and "none" in (options.train_crop, options.eval_crop) and not has_size:
        raise ValueError(
            f"`image_size` must match the source's size, {stored[0]}x{stored[1]}, if a crop is "
            f"'none'. Received: {crops}"
        )


def _check_channels(options, source):
    """Raises a `ValueError` unless the stored images can have these channels and this depth."""
    spec = source.image_spec
    stored_channels = source.pixel_shape[2]
    is_gray_to_color = (stored_channels, options.channels) == (1, 3)
    if stored_channels not in (None, options.channels) and not is_gray_to_color:
        raise ValueError(
            f"`channels` must be {stored_channels}, as in the source. Received: "
            f"channels={options.channels}"
        )
    if source.is_encoded and spec.shape.rank and options.channels % spec.shape[0]:
        raise ValueError(
            f"`channels` must be a multiple of {spec.shape[0]}, the number of files per image. "
            f"Received: channels={options.channels}"
        )
    if options.bit_depth == 16 and not source.is_encoded:
        raise ValueError(
            f"`bit_depth` must be 8 for pixel values stored as {spec.dtype.name}; only image "
            "files can have 16. Received: bit_depth=16"
        )


def _check_randaugment(options, source):
    """Raises a `ValueError` if RandAugment cannot be applied to the images."""
    if options.channels not in (1, 3):
        raise ValueError(
            "`augreg` must be 'none' and `randaugment_layers` 0, because RandAugment needs images "
            f"with 1 or 3 channels. Received: channels={options.channels}, "
            f"randaugment_layers={options.randaugment_layers}"
        )
    side = options.kind.side(options.image_shape(source))
    farthest = 10 * options.randaugment_magnitude
    if options.randaugment_form == "original" and farthest >= side:
        raise ValueError(
            "`randaugment_form` must be 'corrected', because 'original' moves images by "
            f"{farthest:g} pixels, which leaves nothing of an image of {side} pixels. "
            "Received: randaugment_form='original'"
        )
