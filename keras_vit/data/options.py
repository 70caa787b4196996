"""The options of the input pipeline, from a stored image to a batch."""

import dataclasses
from typing import Any

from keras_vit.data import inputs, targets
from keras_vit.data.option_checks import AUGREG_FIELDS, check_source, check_values
from keras_vit.data.randaugment import LEVELS
from keras_vit.data.sources.source import Source
from keras_vit.preprocessing import Preprocessing

_SMALL = 64  # size in pixels below which training images are shifted instead of cropped

# The fields of the input kinds and the target kinds; see `data.inputs` and `data.targets`.
_FieldsOfKinds: Any = dataclasses.make_dataclass(
    "_FieldsOfKinds",
    [(name, type(value), value) for name, value in {**inputs.DEFAULTS, **targets.DEFAULTS}.items()],
    frozen=True,
)


@dataclasses.dataclass(frozen=True)
class Options(_FieldsOfKinds):
    """The options of the input pipeline; each attribute is a field of a config's `data` group.

    The input kinds in `data.inputs` and the target kinds in `data.targets` add their own fields.

    Attributes:
        image_size: height and width of the images in a batch, in pixels; 0 keeps the size of
            in-memory images.
        channels: number of channels. If it is 1 or 3, image files are converted; otherwise, the
            files of an image must have this number of channels in total. If it is 3, gray arrays
            are repeated to 3 channels.
        bit_depth: 8, or 16 for 16-bit PNG files.
        mean: mean of each channel, in units of the stored pixel values: the model's input is
            `(image - mean) / std`. `()` means half the value of a white pixel. If `std` is also
            `()`, inputs are in [-1, 1].
        std: standard deviation of each channel, above 0; `()` means half the value of a white
            pixel.
        train_crop: crop of training images. "inception" resizes a random window;
            "resize_small_crop" resizes the shorter side to `resize_size` and takes a random crop;
            "resize_crop" resizes both sides to `resize_size` and takes a random crop; "resize"
            resizes the whole image without keeping its aspect ratio; "none" is for images that
            already have `image_size`. "auto" is "inception" for most datasets. For an `image_size`
            below 64, it is "resize" with a `shift` of an eighth of the side unless `shift` is set,
            because random windows of a small image are too small.
        eval_crop: crop of evaluation images. "resize" and "none" work as in `train_crop`.
            "resize_small_crop" and "resize_crop" take the central crop. "auto" is "resize" for most
            datasets.
        resize_size: size in pixels to which an image is resized before a crop whose name ends in
            `_crop`. `vit_jax` uses 256 for an `image_size` of 224, and 448 for 384.
        rounding: "float" keeps the float values of resized images, as in `vit_jax`; "uint8"
            truncates them, as in big_vision's pre-training. RandAugment always uses "uint8".
        interpolation: interpolation for resizing evaluation images: "bilinear" or "bicubic",
            antialiased as in PyTorch; "" for bilinear without antialiasing, or for area
            interpolation if `eval_crop` is "resize_small_crop".
        flip: "on" mirrors half of the training images, "off" mirrors none; "auto" is "on" for most
            datasets. True and False also work.
        shift: largest random shift of a training image in each direction, in pixels. 0 is off,
            except for small images with `train_crop="auto"`, see there.
        augreg: augmentation level of AugReg: "none", "light1", "light2", "medium1", "medium2",
            "strong1" or "strong2". It sets `randaugment_layers`, `randaugment_magnitude` and
            `mixup_alpha`.
        randaugment_layers: number of RandAugment operations per image; 0 is off.
        randaugment_magnitude: strength of these operations, usually 0 to 10; AugReg uses up to 20.
        randaugment_form: "corrected", or "original" for the behavior of big_vision's code, which
            AugReg used: `Contrast` blends with the number of pixels / 256 instead of the mean gray
            value, and `Solarize` takes thresholds modulo 256, so that thresholds above 255 also
            invert pixels. Translations of up to 10 pixels per unit of magnitude, and the cutout of
            8 pixels, are scaled by `image_size / 224`; with "original" they are not, and
            `image_size` must be larger than 10 times the magnitude.
        mixup_alpha: both parameters of mixup's Beta distribution; 0 is off.
        mixup_form: mixup partner of an example: "roll" is the previous example of the batch;
            "reverse" is the example at the same distance from the end of the batch.
        cutmix_alpha: like `mixup_alpha`, for CutMix. If both are on, each batch uses one of them,
            with equal probability.
        max_megapixels: largest size of an image, in megapixels; larger images count as unreadable
            and are not decoded.
        library: library whose JPEG decoder and rounding of crops apply: "vit_jax", "torchvision"
            (timm, open_clip) or "transformers", see `keras_vit.Preprocessing`; "" for that of the
            weights, or "vit_jax" without weights.
        exif: "on" applies the EXIF orientation of photographs; "off" ignores it, as in `vit_jax`.
            "auto" is "on" for your own image files, such as "folder" and "list", and "off" for
            other datasets. True and False also work.
        shuffle_buffer: number of encoded examples to keep in memory, over all hosts, for shuffling
            sources that cannot be read by index.
        prefetch: number of batches to prepare ahead.
        threads: number of threads that decode and transform images; 0 is one per CPU core.
    """

    image_size: int = 0
    channels: int = 3
    bit_depth: int = 8
    mean: tuple = ()
    std: tuple = ()
    train_crop: str = "auto"
    eval_crop: str = "auto"
    resize_size: int = 0
    rounding: str = "float"
    interpolation: str = ""
    flip: str | bool = "auto"
    shift: int = 0
    augreg: str = "none"
    randaugment_layers: int = 0
    randaugment_magnitude: float = 10.0
    randaugment_form: str = "corrected"
    mixup_alpha: float = 0.0
    mixup_form: str = "roll"
    cutmix_alpha: float = 0.0
    max_megapixels: float = 100.0
    library: str = ""
    exif: str | bool = "auto"
    shuffle_buffer: int = 10_000
    prefetch: int = 2
    threads: int = 0

    def __post_init__(self):
        # The command line passes True and False as text. 1 and 0 are the keys True and False, too.
        switch = {"on": True, "true": True, True: True, "off": False, "false": False, False: False}
        for field in ("flip", "exif"):
            value = getattr(self, field)
            key = value.lower() if isinstance(value, str) else value
            object.__setattr__(self, field, switch.get(key, value))
        check_values(self)
        for kind in (*inputs.KINDS, *targets.TARGETS.values()):
            kind.check(self)

    @property
    def kind(self) -> inputs.FixedSize:
        """The input kind that these options choose."""
        return inputs.kind_chosen_by(self)

    def resolve(self, source: Source) -> "Options":
        """Returns these options for a source, with "auto" and `augreg` replaced by the values that
        they stand for.

        Raises:
            ValueError: the options do not fit the source.
        """
        chosen = self.kind.resolve(self)
        is_small = 0 < chosen.image_size < _SMALL
        changes: dict = {
            field: default
            for field, default in _defaults_for(source, chosen.image_size, is_small).items()
            if getattr(chosen, field) == "auto"
        }
        if chosen.augreg != "none":
            changes |= {"augreg": "none", **dict(zip(AUGREG_FIELDS, LEVELS[chosen.augreg]))}
        # Small images are shifted instead of cropped, unless the source specifies a crop.
        if is_small and "train_crop" in changes and "train_crop" not in source.options:
            changes["shift"] = chosen.shift or chosen.image_size // 8
        if changes.get("randaugment_layers", chosen.randaugment_layers):
            changes["rounding"] = "uint8"
        resolved = dataclasses.replace(chosen, **changes)
        check_source(resolved, source)
        return resolved

    # The methods below require resolved options.

    def image_shape(self, source: Source) -> tuple[int, ...]:
        """Returns the shape of an image in a batch, such as `(H, W, C)`."""
        return self.kind.shape(self, source)

    def white(self, source: Source) -> float:
        """Returns the value of a white pixel in the stored images of a source."""
        return 65535 if self.bit_depth == 16 and source.max_value == 255 else source.max_value

    def preprocessing(self, source: Source, white: float | None = None) -> Preprocessing:
        """Returns the preprocessing of evaluation images whose white pixels have the value `white`.

        If `white` is None, it is the value of a white pixel in the stored images.
        """
        stored = self.white(source)
        white = stored if white is None else white
        scale = white / stored
        middle = (white / 2,) * self.channels
        is_cropped = self.eval_crop.endswith("_crop")
        return Preprocessing(
            mean=tuple(value * scale for value in self.mean) or middle,
            std=tuple(value * scale for value in self.std) or middle,
            resize=self.kind.resize(self),
            crop_fraction=self.image_size / self.resize_size if is_cropped else 1.0,
            rounding=self.rounding,
            interpolation=self.interpolation,
            exif=self.exif is True,
            bit_depth=self.bit_depth,
            library=self.library or "vit_jax",
        )

    def model_preprocessing(self, source: Source) -> Preprocessing:
        """Returns the preprocessing that a model trained on a source needs for image files.

        White pixels of these files have the value 255, or 65,535 if the source has image files with
        a `bit_depth` of 16 or arrays of other types than uint8. For example, uint8 arrays with
        values from 0 to 16 correspond to 8-bit PNG files, and uint16 arrays to 16-bit PNG files.
        """
        stored_type = source.image_spec.dtype.name
        is_deep = self.bit_depth == 16 if source.is_encoded else stored_type != "uint8"
        bit_depth = 16 if is_deep else 8
        return dataclasses.replace(
            self.preprocessing(source, white=2**bit_depth - 1), bit_depth=bit_depth
        )


def _defaults_for(source, image_size, is_small):
    """Returns the values that "auto" stands for."""
    defaults = {
        "train_crop": "resize" if is_small else "inception",
        "eval_crop": "resize",
        "flip": "on",
        "exif": "off",
    }
    if not image_size and source.pixel_shape.is_fully_defined():  # arrays keep their size
        defaults |= {"train_crop": "none", "eval_crop": "none"}
    defaults |= source.options
    # A source of images of one size needs no crops, unless the images get another size.
    if image_size and defaults["train_crop"] == defaults["eval_crop"] == "none":
        defaults |= {"train_crop": "resize", "eval_crop": "resize"}
    return defaults
