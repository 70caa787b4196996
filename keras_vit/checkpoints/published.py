"""The table of published weights, and the naming rules of the published files that it does not list."""

import dataclasses
import re

from keras_vit.architectures import VISION_TRANSFORMERS, file_name

# `vit_jax` resizes both sides to the model's and scales to [-1, 1], for all of its files.
_PREPROCESSING = {"mean": [127.5] * 3, "std": [127.5] * 3, "resize": "stretch", "crop_fraction": 1.0}
_BUCKET = "https://storage.googleapis.com/"


@dataclasses.dataclass(frozen=True)
class PublishedWeights:
    """A published file.

    Attributes:
        collection: what `weights=` calls it, such as "imagenet21k".
        folder: its bucket and folder under storage.googleapis.com.
        name: name of the file, without ".npz".
        model: name of the size in `keras_vit.architectures`, such as "ViT-B/16" or "BiT-R50x1".
        classes: units of its head, or None where neither the table nor the name gives them.
        resolution: side in pixels of the images of its last training, or None.
        representation_size: units of `pre_logits`, 0 for none.
        size: of the file, as its publishers list it, "393.69 MiB" or "1.22 GiB", or None.
    """

    collection: str
    folder: str
    name: str
    model: str
    classes: int | None
    resolution: int | None
    representation_size: int = 0
    size: str | None = None

    @property
    def url(self):
        return f"{_BUCKET}{self.folder}/{self.name.replace('+', '%2B')}.npz"

    @property
    def preprocessing(self):
        return _PREPROCESSING


def _rows(collection, classes, resolution, files):
    for model, representation_size, size in files:
        folder, name = f"vit_models/{collection}", file_name(model)
        yield PublishedWeights(collection, folder, name, model, classes, resolution, representation_size, size)


def _augreg(model, aug, wd, do=0.0, sd=0.0):
    name = f"{_augreg_model(model)}-i21k-300ep-lr_0.001-aug_{aug}-wd_{wd}-do_{do}-sd_{sd}"
    return PublishedWeights("augreg", "vit_models/augreg", name, model, 21843, 224)


def _augreg_model(model):
    """How AugReg's file names spell a size: "B_16", "R26_S_32"."""
    return file_name(model).replace("ViT-", "").replace("+", "_")


# fmt: off
PUBLISHED = (
    # The heads of ViT-L_32 and ViT-H_14 are said to be all zeros.
    *_rows("imagenet21k", 21843, 224, [
        ("ViT-B/16", 768, "393.69 MiB"),
        ("ViT-B/32", 768, "400.01 MiB"),
        ("ViT-B/8", 768, "393.72 MiB"),
        ("ViT-L/16", 1024, "1.22 GiB"),
        ("ViT-L/32", 1024, "1.23 GiB"),
        ("ViT-H/14", 1280, "2.46 GiB"),
        ("R26+ViT-B/32", 768, "450.23 MiB"),
        ("R50+ViT-B/16", 768, "439.85 MiB"),
        ("R50+ViT-L/32", 1024, "1.31 GiB"),
    ]),
    *_rows("imagenet21k+imagenet2012", 1000, 384, [
        ("ViT-B/16", 0, "331.4 MiB"),
        ("ViT-B/32", 0, "336.89 MiB"),
        ("ViT-B/8", 0, "334.78 MiB"),
        ("ViT-L/16", 0, None),
        ("ViT-L/32", 0, None),
        ("R50+ViT-B/16", 0, "377.57 MiB"),
    ]),
    *(
        PublishedWeights("imagenet21k+imagenet2012", "vit_models/imagenet21k+imagenet2012", f"{file_name(model)}-224",
                         model, 1000, 224, size=size)
        for model, size in [("ViT-B/16", "330.29 MiB"), ("ViT-L/16", None)]
    ),
    # The file of ViT-S_16 holds its optimizer's state too.
    *_rows("sam", 1000, 224, [
        ("ViT-B/16", 0, None), ("ViT-B/32", 0, None), ("ViT-L/16", 0, None), ("ViT-L/32", 0, None),
        ("ViT-S/16", 0, None),
    ]),
    # The pre-trained file that AugReg's authors recommend for each size. Their "light0" and "light1" are light1 and
    # light2 of the paper.
    _augreg("ViT-L/16", "strong1", 0.1),
    _augreg("ViT-B/16", "medium1", 0.1),
    _augreg("ViT-S/16", "light1", 0.03),
    _augreg("R50+ViT-L/32", "medium1", 0.1, 0.1, 0.1),
    _augreg("R26+ViT-S/32", "light1", 0.1),
    _augreg("ViT-Ti/16", "none", 0.03),
    _augreg("ViT-B/32", "light1", 0.1),
    _augreg("ViT-S/32", "none", 0.1),
    _augreg("R+ViT-Ti/16", "none", 0.03),
    _augreg("ViT-B/8", "medium2", 0.1),
    *(
        PublishedWeights(collection, "bit_models", f"{file}-{size}{ending}", f"BiT-{size}", classes, None)
        for collection, file, ending, classes in [
            ("bit_s", "BiT-S", "", 1000),
            ("bit_m", "BiT-M", "", 21843),
            ("bit_m+imagenet2012", "BiT-M", "-ILSVRC2012", 1000),
        ]
        for size in ("R50x1", "R50x3", "R101x1", "R101x3", "R152x2", "R152x4")
    ),
)
# fmt: on

_AUGREG_NAME = re.compile(
    r"(?P<model>\w+)-(?P<ds>i1k|i21k(_30)?)-(?P<epochs>\d+)ep-lr_(?P<lr>[\d.]+)-aug_(?P<aug>\w+)-wd_(?P<wd>[\d.]+)"
    r"-do_(?P<do>[\d.]+)-sd_(?P<sd>[\d.]+)"
    r"(--(?P<adapt_ds>\w+)-steps_(?P<steps>\d+)k-lr_(?P<adapt_lr>[\d.]+)-res_(?P<res>\d+))?"
)
_BIT_NAME = re.compile(r"BiT-(?P<kind>[SM])-(?P<model>R\d+x\d+)(?P<adapted>-ILSVRC2012|-run[012]-[\w-]+)?")
_DOWNSTREAM_CLASSES = {
    "imagenet2012": 1000,
    "cifar10": 10,
    "cifar100": 100,
    "oxford_iiit_pet": 37,
    "oxford_flowers102": 102,
    "resisc45": 45,
}


def find(source, model, resolution=None):
    """The row of published weights that a name means for a model.

    Args:
        source: "imagenet21k", "augreg:B_16-i21k-300ep-...", a path, a URL, ...
        model: the model's size, such as "ViT-B/16", or None where it is not a published size.
        resolution: side of the model's images in pixels, or None. Where a collection holds several files of one
            model, the file of that resolution is taken, or else the first.

    Returns:
        A `PublishedWeights`, or None where `source` is not the name of a collection or of a file in one.

    Raises:
        ValueError: the collection is known and has no such file for the model.
    """
    if not is_name(str(source)):
        return None
    collection, _, name = str(source).removesuffix(".npz").partition(":")
    rows = [row for row in PUBLISHED if row.collection == collection and row.model == model]
    if name:
        rows = [row for row in PUBLISHED if row.collection == collection and row.name == name] or [
            parse(collection, name)
        ]
        if rows[0].model != model:
            raise ValueError(
                f"The file is of {rows[0].model}, and the model is {model or 'not of a published size'}. "
                f"Received: weights={source!r}"
            )
    if not rows:
        raise ValueError(f"{known_names(model)} Received: weights={source!r}")
    return next((row for row in rows if row.resolution == resolution), rows[0])


def parse(collection, name):
    """The row of a file that the table does not list, from its name, such as "B_16-i21k-300ep-lr_0.001-...".

    Raises:
        ValueError: the name does not follow the collection's rule.
    """
    if collection == "augreg" and (match := _AUGREG_NAME.fullmatch(name)):
        model = next((m for m in VISION_TRANSFORMERS if _augreg_model(m) == match["model"]), None)
        if model is not None:
            classes = {"i1k": 1000}.get(match["ds"], 21843)
            if match["adapt_ds"]:
                classes = _DOWNSTREAM_CLASSES.get(match["adapt_ds"])
            return PublishedWeights(collection, "vit_models/augreg", name, model, classes, int(match["res"] or 224))
    if collection == "bit" and (match := _BIT_NAME.fullmatch(name)):
        classes = {"S": 1000, "M": 21843}[match["kind"]]
        if match["adapted"]:
            classes = 1000 if match["adapted"] == "-ILSVRC2012" else None
        return PublishedWeights(collection, "bit_models", name, f"BiT-{match['model']}", classes, None)
    rules = {
        "augreg": "{model}-{ds}-{epochs}ep-lr_{lr}-aug_{aug}-wd_{wd}-do_{do}-sd_{sd}, and for fine-tuned files "
        "--{adapt_ds}-steps_{k}k-lr_{lr}-res_{pixels} after it",
        "bit": "BiT-{S or M}-R{depth}x{width}, and -ILSVRC2012 or -run{0, 1, 2}-{task} after it",
    }
    listed = ", ".join(row.name for row in PUBLISHED if row.collection == collection)
    rule = f"follow the rule {rules[collection]}" if collection in rules else f"be one of {listed}"
    raise ValueError(f"The name of a file in {collection!r} must {rule}. Received: {name!r}")


def known_names(model):
    """A sentence that lists the published weights of a model, for messages."""
    rows = [row for row in PUBLISHED if row.model == model]
    if not rows:
        sizes = ", ".join(dict.fromkeys(row.model for row in PUBLISHED))
        return f"Weights have been published for {sizes}, and the model is not one of them: give a path or a URL."
    names = dict.fromkeys(row.collection for row in rows)
    if "augreg" in names:
        names["augreg:<file name>"] = None
    if "bit_m" in names:
        names["bit:<file name>"] = None
    return f"The published weights of {model} are {', '.join(names)}; a path or a URL works as well."


def preprocessing_of_name(source):
    """The fields of the `Preprocessing` of published weights by their name; None for a path or a URL."""
    return _PREPROCESSING if is_name(str(source)) else None


def is_name(source):
    """Whether a string has the form of a collection's name, or of a file in one, "augreg:<file name>"."""
    collection, _, name = source.partition(":")
    return collection in {"bit", *(row.collection for row in PUBLISHED)} and "/" not in name
