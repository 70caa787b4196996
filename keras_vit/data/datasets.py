"""The paper's public datasets, and ImageNet-V2.

Splits of TFDS datasets use the syntax of TFDS. "train" is for final runs; "tune_train" and
"tune_val" divide "train" for hyperparameter tuning; "test" is for the reported results.
"""

import dataclasses
from collections.abc import Callable

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A dataset in `DATASETS`."""

    tfds: str  # TFDS builder, if necessary with config and version; "" for a folder
    classes: int
    # Maps "train", "tune_train", "tune_val" and "test" to TFDS splits, or to split names of a
    # folder.
    splits: dict
    # The name of the label feature, or a function that maps all features to the label.
    label: str | Callable = "label"
    image: str = "image"  # name of the image feature
    scale: int = 1  # factor that multiplies pixel values
    test_tfds: str = ""  # TFDS builder of the test split, if different
    test_label: str = "label"  # name of the label feature of `test_tfds`
    # Values that replace "auto" in `Options`.
    options: dict = dataclasses.field(default_factory=dict)


def _splits(train, test, tune_train, tune_val):
    return {"train": train, "tune_train": tune_train, "tune_val": tune_val, "test": test}


def _tuned(percent, test="test"):
    """Returns splits in which "tune_train" has this percentage of "train"."""
    return _splits("train", test, f"train[:{percent}%]", f"train[{percent}%:]")


def _vtab(validation, test="test"):
    """Returns the splits of a VTAB-1k task; "train" has the 800 examples of "tune_train" and the
    200 of "tune_val"."""
    return _splits(f"train[:800]+{validation}", test, "train[:800]", validation)


def _clevr_count(record):
    return tf.shape(record["objects"]["color"])[0] - 3  # scenes contain 3 to 10 objects


def _clevr_distance(record):
    """Returns the depth class of the nearest object."""
    depths = record["objects"]["pixel_coords"][:, 2]
    return _largest_below(tf.reduce_min(depths), [0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0])


def _kitti_distance(record):
    """Returns the depth class of the nearest car, van or truck, or 3 for an image without these
    vehicles."""
    depths = record["objects"]["location"][:, 2]
    vehicles = tf.boolean_mask(depths, record["objects"]["type"] < 3)
    return _largest_below(
        tf.reduce_min(tf.concat([vehicles, [1000.0]], 0)), [-100.0, 8.0, 20.0, 999.0]
    )


def _dsprites_location(record):
    return record["label_x_position"] // 2


def _dsprites_orientation(record):
    return record["label_orientation"] * 2 // 5  # 40 orientations, 16 classes


def _largest_below(value, thresholds):
    """Returns the index of the last of the increasing `thresholds` below a value."""
    return tf.reduce_sum(tf.cast(tf.constant(thresholds) < value, tf.int64)) - 1


_NO_FLIP = {"flip": "off"}  # a mirrored image has a different label
_NO_CROP = {"train_crop": "resize"}  # a crop could change the label
_IMAGENET = _tuned(99, "validation")
# Validation and test start at 80 % and 90 % of 737,280.
_DSPRITES = _vtab("train[589824:590024]", "train[663552:]")
_NORB = _vtab("test[:200]", "test[50%:]")
_CLEVR = _vtab("train[63000:63200]", "validation")  # 63,000 is 90 % of 70,000

DATASETS = {
    # The paper's fine-tuning tasks. "tune_val" is 1, 2 or 10 % of the training set (appendix B.1).
    "imagenet2012": Dataset("imagenet2012:5.*.*", 1000, _IMAGENET),
    "cifar10": Dataset("cifar10:3.*.*", 10, _tuned(98)),
    "cifar100": Dataset("cifar100:3.*.*", 100, _tuned(98)),
    "pets": Dataset("oxford_iiit_pet", 37, _tuned(90)),
    "flowers": Dataset("oxford_flowers102:2.*.*", 102, _tuned(90)),
    # ImageNet with different test labels or test images.
    "imagenet2012_real": Dataset(
        "imagenet2012:5.*.*",
        1000,
        _IMAGENET,
        test_tfds="imagenet2012_real",
        test_label="real_label",
    ),
    "imagenet_v2": Dataset(
        "imagenet2012:5.*.*", 1000, {**_IMAGENET, "test": "test"}, test_tfds="imagenet_v2"
    ),
    # Not in TFDS: a folder with one subfolder per class.
    "imagenet21k": Dataset("", 21843, _splits("train", "test", "tune_train", "tune_val")),
    # VTAB-1k: natural, specialized and structured tasks. A comment such as "90 % of 3,059" shows
    # where a split starts.
    "vtab/caltech101": Dataset("caltech101:3.*.*", 102, _vtab("train[2753:2953]")),  # 90 % of 3,059
    "vtab/cifar100": Dataset("cifar100:3.*.*", 100, _vtab("train[45000:45200]")),
    "vtab/dtd": Dataset("dtd:3.*.*", 47, _vtab("validation[:200]")),
    "vtab/flowers": Dataset("oxford_flowers102:2.*.*", 102, _vtab("validation[:200]")),
    # VTAB uses version 3 of this dataset, which TFDS does not provide.
    "vtab/pets": Dataset("oxford_iiit_pet", 37, _vtab("train[3312:3512]")),  # 90 % of 3,680
    "vtab/sun397": Dataset("sun397/tfds:4.*.*", 397, _vtab("validation[:200]")),
    "vtab/svhn": Dataset("svhn_cropped:3.*.*", 10, _vtab("train[65931:66131]")),  # 90 % of 73,257
    "vtab/camelyon": Dataset("patch_camelyon:2.*.*", 2, _vtab("validation[:200]")),
    # 60 % and 80 % of 27,000.
    "vtab/eurosat": Dataset("eurosat/rgb:2.*.*", 10, _vtab("train[16200:16400]", "train[21600:]")),
    # 60 % and 80 % of 31,500.
    "vtab/resisc45": Dataset("resisc45:3.*.*", 45, _vtab("train[18900:19100]", "train[25200:]")),
    "vtab/retinopathy": Dataset(
        "diabetic_retinopathy_detection/btgraham-300:3.*.*", 5, _vtab("validation[:200]")
    ),
    "vtab/clevr_count": Dataset("clevr:3.*.*", 8, _CLEVR, _clevr_count, options=_NO_CROP),
    "vtab/clevr_distance": Dataset("clevr:3.*.*", 6, _CLEVR, _clevr_distance, options=_NO_CROP),
    "vtab/dmlab": Dataset("dmlab:2.0.1", 6, _vtab("validation[:200]"), options=_NO_CROP),
    "vtab/dsprites_location": Dataset(
        "dsprites:2.*.*", 16, _DSPRITES, _dsprites_location, scale=255, options=_NO_FLIP | _NO_CROP
    ),
    "vtab/dsprites_orientation": Dataset(
        "dsprites:2.*.*", 16, _DSPRITES, _dsprites_orientation, scale=255, options=_NO_FLIP
    ),
    "vtab/kitti": Dataset(
        "kitti:3.1.0", 4, _vtab("validation[:200]"), _kitti_distance, options=_NO_CROP
    ),
    "vtab/smallnorb_azimuth": Dataset(
        "smallnorb:2.*.*", 18, _NORB, "label_azimuth", options=_NO_FLIP
    ),
    "vtab/smallnorb_elevation": Dataset("smallnorb:2.*.*", 9, _NORB, "label_elevation"),
}
"""The paper's public datasets and ImageNet-V2, by name."""
