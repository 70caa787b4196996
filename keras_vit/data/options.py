"""Every choice between a stored image and a batch, in one place."""

import dataclasses

from keras_vit.data.mixup import FORMS
from keras_vit.data.randaugment import LEVELS

TRAIN_CROPS = ("auto", "inception", "resize_small_crop", "resize_crop", "resize", "none")
EVAL_CROPS = ("auto", "resize", "resize_small_crop", "resize_crop", "none")


@dataclasses.dataclass(frozen=True)
class Options:
    """What happens to images on their way into a batch; the fields of a config's `data` group.

    Attributes:
        image_size: height and width of what leaves, in pixels; 0 for images in memory that stay as they are.
        train_crop: "inception", a random window resized; "resize_small_crop", the smaller side resized to
            `resize_size`, then a random crop; "resize_crop", both sides resized to `resize_size`, then a random crop;
            "resize", the whole image resized, its aspect not kept; "none"; or "auto", as the dataset wants, which is
            "inception" for most.
        eval_crop: "resize", "resize_small_crop" and "resize_crop", these two with a central crop, "none"; or "auto",
            which is "resize" for most.
        resize_size: pixels before the crop; 256 for 224 and 448 for 384 in the original. Only for the `_crop` ones.
        rounding: what a resize gives: "float", float32 as it comes, as in the original's fine-tuning code; "uint8",
            the fraction cut off, as in its pre-training code. RandAugment always has uint8.
        flip: whether half of the training images are mirrored: "on", "off" or "auto", "on" for most. Or a bool.
        shift: pixels by which a training image may move in each direction.
        augreg: a level of AugReg by its name, "none", "light1", "light2", "medium1", "medium2", "strong1" or
            "strong2", which sets the next two and `mixup_alpha`.
        randaugment_layers: operations of RandAugment for each image; 0 means off.
        randaugment_magnitude: their strength; 10 is the strongest of the RandAugment paper.
        solarize_wrap: whether a solarize threshold of 256 or more counts modulo 256, as with TensorFlow's uint8.
        mixup_alpha: both parameters of mixup's Beta distribution; 0 means off.
        mixup_form: "roll" or "reverse", with whom an example is mixed (see `mixup.py`).
        cutmix_alpha: the same for CutMix; 0 means off. With both on, a batch has one of them, drawn half and half.
        label_smoothing: the share of a label that is spread over all classes, in [0, 1).
        max_megapixels: larger images count as broken and are not decoded.
        exif: whether photographs are turned as their EXIF orientation says. The original does not.
        shuffle_buffer: encoded examples held in memory to shuffle a source without access by index. All others are
            shuffled as a whole and hold nothing.
        prefetch: batches made ahead.
        threads: threads that work on images; 0 for one a processor.
        service: addresses of tf.data service dispatchers, "grpc://host:5050,grpc://other:5050", each with one worker;
            "" to work in this process.
    """

    image_size: int = 0
    train_crop: str = "auto"
    eval_crop: str = "auto"
    resize_size: int = 0
    rounding: str = "float"
    flip: str | bool = "auto"
    shift: int = 0
    augreg: str = "none"
    randaugment_layers: int = 0
    randaugment_magnitude: float = 10.0
    solarize_wrap: bool = False
    mixup_alpha: float = 0.0
    mixup_form: str = "roll"
    cutmix_alpha: float = 0.0
    label_smoothing: float = 0.0
    max_megapixels: float = 100.0
    exif: bool = False
    shuffle_buffer: int = 10_000
    prefetch: int = 2
    threads: int = 0
    service: str = ""

    def __post_init__(self):
        for field, known in (
            ("train_crop", TRAIN_CROPS),
            ("eval_crop", EVAL_CROPS),
            ("rounding", ("float", "uint8")),
            ("flip", ("auto", "on", "off", True, False)),
            ("augreg", tuple(LEVELS)),
            ("mixup_form", FORMS),
        ):
            value = getattr(self, field)
            if value not in known:
                raise ValueError(f"`{field}` must be one of {', '.join(map(str, known))}. Received: {field}={value!r}")
        for field, lowest in (
            ("image_size", 0), ("resize_size", 0), ("shift", 0), ("randaugment_layers", 0), ("threads", 0),
            ("randaugment_magnitude", 0), ("mixup_alpha", 0), ("cutmix_alpha", 0), ("shuffle_buffer", 1),
            ("prefetch", 1),
        ):  # fmt: skip
            value = getattr(self, field)
            if value < lowest:
                raise ValueError(f"`{field}` must be {lowest} or more. Received: {field}={value!r}")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"`label_smoothing` must be in [0, 1). Received: label_smoothing={self.label_smoothing}")
        if self.max_megapixels <= 0:
            raise ValueError(f"`max_megapixels` must be above 0. Received: max_megapixels={self.max_megapixels}")
        for crop in ("train_crop", "eval_crop"):
            if getattr(self, crop).endswith("_crop") and self.resize_size < self.image_size:
                raise ValueError(
                    f"A crop of {self.image_size} pixels needs a `resize_size` of as many or more, such as 256 for 224 "
                    f"and 448 for 384. Received: resize_size={self.resize_size}, {crop}={getattr(self, crop)!r}"
                )
        if self.augreg != "none" and (self.randaugment_layers or self.mixup_alpha):
            raise ValueError(
                "`augreg` sets `randaugment_layers` and `mixup_alpha`, which must then be 0. Received: "
                f"augreg={self.augreg!r}, randaugment_layers={self.randaugment_layers}, mixup_alpha={self.mixup_alpha}"
            )

    def resolve(self, source):
        """These options with "auto" and `augreg` replaced by what they mean for a source."""
        wants = {"train_crop": "inception", "eval_crop": "resize", "flip": "on", **source.options}
        if self.image_size and wants["train_crop"] == wants["eval_crop"] == "none":
            wants |= {"train_crop": "resize", "eval_crop": "resize"}
        changes = {field: want for field, want in wants.items() if getattr(self, field) == "auto"}
        if self.augreg != "none":
            layers, magnitude, alpha = LEVELS[self.augreg]
            changes |= {
                "augreg": "none",
                "randaugment_layers": layers,
                "randaugment_magnitude": magnitude,
                "mixup_alpha": alpha,
            }
        changes["flip"] = changes.get("flip", self.flip) in ("on", True)
        resolved = dataclasses.replace(self, **changes)
        if not self.image_size and (resolved.train_crop != "none" or resolved.eval_crop != "none"):
            raise ValueError(
                "The size of the images that leave must be given, such as 224. "
                f"Received: image_size={self.image_size} with train_crop={resolved.train_crop!r}, "
                f"eval_crop={resolved.eval_crop!r}"
            )
        return resolved
