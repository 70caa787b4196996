"""Vision Transformers of the paper and AugReg."""

import re

from keras_vit.checkpoints.dialects.timm import TIMM
from keras_vit.checkpoints.dialects.transformers import HUGGING_FACE
from keras_vit.checkpoints.dialects.vit_jax import VIT_JAX
from keras_vit.checkpoints.registry import PublishedWeights
from keras_vit.families.inference import infer
from keras_vit.families.registry import Sizes, sizes
from keras_vit.families.shared import IDENTITY, TI, B, H, L, S

# The number after the slash is the patch size in pixels.
_size = Sizes()
ViT_Ti16 = _size("ViT-Ti/16", "5.7M parameters (AugReg)", patch_size=16, **TI)
ViT_S16 = _size("ViT-S/16", "22.1M parameters (AugReg)", patch_size=16, **S)
ViT_S32 = _size("ViT-S/32", "22.9M parameters (AugReg)", patch_size=32, **S)
ViT_B8 = _size("ViT-B/8", "86.6M parameters (AugReg)", patch_size=8, **B)
ViT_B16 = _size("ViT-B/16", "86.6M parameters (paper Table 1)", patch_size=16, **B)
ViT_B32 = _size("ViT-B/32", "88.2M parameters (paper Table 1)", patch_size=32, **B)
ViT_L16 = _size("ViT-L/16", "304.3M parameters (paper Table 1)", patch_size=16, **L)
ViT_L32 = _size("ViT-L/32", "306.5M parameters (paper Table 1)", patch_size=32, **L)
ViT_H14 = _size("ViT-H/14", "632.0M parameters (paper Table 1)", patch_size=14, **H)

_BUCKET = "https://storage.googleapis.com/vit_models"


def rows(table, collection, classes, resolution, models, ending=""):
    """Yields the `PublishedWeights` of `models` in a collection.

    Files of "imagenet21k" contain `pre_logits`.
    """
    for model in models:
        name = model.replace("/", "_") + ending
        url = f"{_BUCKET}/{collection}/{name.replace('+', '%2B')}.npz"
        units = table[model]["hidden_size"] if collection == "imagenet21k" else 0
        yield PublishedWeights(collection, name, model, url, classes, resolution, units)


def augreg(model, aug, wd, do=0.0, sd=0.0):
    """Returns the `PublishedWeights` of an AugReg file trained on ImageNet-21k.

    The augmentation levels "light0" and "light1" in AugReg's file names are "light1" and "light2"
    in the paper.
    """
    name = f"{_augreg_model(model)}-i21k-300ep-lr_0.001-aug_{aug}-wd_{wd}-do_{do}-sd_{sd}"
    return _augreg_row(name, model, 21843, 224)


def _augreg_row(name, model, classes, side):
    url = f"{_BUCKET}/augreg/{name}.npz"
    return PublishedWeights("augreg", name, model, url, classes, side)


def _augreg_model(model):
    """Returns the name of a size as AugReg's file names spell it, such as "B_16" or "R26_S_32"."""
    return model.replace("/", "_").replace("ViT-", "").replace("+", "_")


_AUGREG_NAME = re.compile(
    r"(?P<model>\w+)-(?P<ds>i1k|i21k(_30)?)-\d+ep-lr_[\d.]+-aug_\w+-wd_[\d.]+-do_[\d.]+-sd_[\d.]+"
    r"(--(?P<adapt_ds>\w+)-steps_\d+k-lr_[\d.]+-res_(?P<res>\d+))?"
)
_DOWNSTREAM_CLASSES = {
    "imagenet2012": 1000,
    "cifar10": 10,
    "cifar100": 100,
    "oxford_iiit_pet": 37,
    "oxford_flowers102": 102,
    "resisc45": 45,
}


def parse_augreg(name):
    """Returns the `PublishedWeights` for a file name in AugReg's naming scheme, or None."""
    match = _AUGREG_NAME.fullmatch(name)
    models = [size for size in sizes() if match and _augreg_model(size) == match["model"]]
    if not models:
        return None
    classes = 1000 if match["ds"] == "i1k" else 21843
    if match["adapt_ds"]:
        classes = _DOWNSTREAM_CLASSES.get(match["adapt_ds"])
    return _augreg_row(name, models[0], classes, int(match["res"] or 224))


AUGREG_RULE = (
    "{model}-{ds}-{epochs}ep-lr_{lr}-aug_{aug}-wd_{wd}-do_{do}-sd_{sd}, followed in fine-tuned "
    "files by --{adapt_ds}-steps_{k}k-lr_{lr}-res_{pixels}",
    parse_augreg,
)
_B_AND_L = ("ViT-B/16", "ViT-B/32", "ViT-B/8", "ViT-L/16", "ViT-L/32")
PUBLISHED = (
    # The heads of ViT-L_32 and ViT-H_14 are reported to be all zeros.
    *rows(_size.table, "imagenet21k", 21843, 224, (*_B_AND_L, "ViT-H/14")),
    *rows(_size.table, "imagenet21k+imagenet2012", 1000, 384, _B_AND_L),
    *rows(_size.table, "imagenet21k+imagenet2012", 1000, 224, ("ViT-B/16", "ViT-L/16"), "-224"),
    # The ViT-S_16 file also contains the optimizer state.
    *rows(
        _size.table, "sam", 1000, 224, ("ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32", "ViT-S/16")
    ),
    # AugReg files pre-trained on ImageNet-21k, one for each of these sizes.
    augreg("ViT-L/16", "strong1", 0.1),
    augreg("ViT-B/16", "medium1", 0.1),
    augreg("ViT-S/16", "light1", 0.03),
    augreg("ViT-Ti/16", "none", 0.03),
    augreg("ViT-B/32", "light1", 0.1),
    augreg("ViT-S/32", "none", 0.1),
    augreg("ViT-B/8", "medium2", 0.1),
)

FAMILY = _size.register(
    identity=IDENTITY,
    infer=infer,
    dialects=(VIT_JAX, TIMM, HUGGING_FACE),
    published=PUBLISHED,
    rules={"augreg": AUGREG_RULE},
    reference="https://github.com/google-research/vision_transformer",
)
