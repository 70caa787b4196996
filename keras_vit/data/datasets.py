"""The datasets of the paper, one row each, and the one function that loads any dataset by name.

Splits are in TFDS's words. "train" is what a final run trains on; "tune_train" and "tune_val" divide it to choose
hyper-parameters; "test" is what is reported.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable

import tensorflow as tf

from keras_vit.data.objectnet import objectnet
from keras_vit.data.sources import (
    check_splits,
    digits,
    file_list,
    first_of_each_class,
    folder,
    read_text_file,
    shapes,
    subset,
    tfds,
    tfrecords,
)
from keras_vit.data.sources.source import warn_of_empty_classes


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A row.

    Attributes:
        tfds: the name, the config and the version of its TFDS builder; "" for one that is a folder.
        classes: how many.
        splits: TFDS's words for "train", "tune_train", "tune_val" and "test".
        label: the feature with the label, or a function of all features to it.
        image: the feature with the image.
        scale: what pixels are multiplied by.
        test_tfds, test_label: the same for the test split, where another dataset has it.
        options: the values of `Options` for its images wherever a field is "auto".
    """

    tfds: str
    classes: int
    splits: dict
    label: str | Callable = "label"
    image: str = "image"
    scale: int = 1
    test_tfds: str = ""
    test_label: str = "label"
    options: dict = dataclasses.field(default_factory=dict)


def _splits(train, test, tune_train, tune_val):
    return {"train": train, "tune_train": tune_train, "tune_val": tune_val, "test": test}


def _vtab(validation, test="test"):
    """800 examples of train and 200 of what VTAB takes for validation."""
    return _splits(f"train[:800]+{validation}", test, "train[:800]", validation)


def _clevr_count(record):
    return tf.shape(record["objects"]["color"])[0] - 3  # scenes hold 3 to 10 objects


def _clevr_distance(record):
    """How far the nearest object is: the largest of some thresholds below its depth."""
    return _largest_below(
        tf.reduce_min(record["objects"]["pixel_coords"][:, 2]), [0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0]
    )


def _kitti_distance(record):
    """How far the nearest car, van or truck is; 3 where there is none."""
    depths = record["objects"]["location"][:, 2]
    vehicles = tf.boolean_mask(depths, record["objects"]["type"] < 3)
    return _largest_below(tf.reduce_min(tf.concat([vehicles, [1000.0]], 0)), [-100.0, 8.0, 20.0, 999.0])


def _dsprites_location(record):
    return record["label_x_position"] // 2


def _dsprites_orientation(record):
    return tf.floor(tf.cast(record["label_orientation"], tf.float32) / 2.5)


def _largest_below(value, thresholds):
    return tf.reduce_sum(tf.cast(tf.constant(thresholds) < value, tf.int64)) - 1


_SAME_SIDE = {"flip": "off"}  # a mirrored image has another label
_WHOLE = {"train_crop": "resize"}  # a crop may lose what the label counts or measures
_IMAGENET = _splits("train", "validation", "train[:99%]", "train[99%:]")
_DSPRITES = _vtab("train[589824:590024]", "train[663552:]")  # 80 % and 90 % of 737,280
_NORB = _vtab("test[:200]", "test[50%:]")
_CLEVR = _vtab("train[63000:63200]", "validation")  # 90 % of 70,000

DATASETS = {
    # The paper's fine-tuning tasks, with the held-out part of train that its Table 4 names.
    "imagenet2012": Dataset("imagenet2012:5.*.*", 1000, _IMAGENET),
    "cifar10": Dataset("cifar10:3.*.*", 10, _splits("train", "test", "train[:98%]", "train[98%:]")),
    "cifar100": Dataset("cifar100:3.*.*", 100, _splits("train", "test", "train[:98%]", "train[98%:]")),
    "pets": Dataset("oxford_iiit_pet", 37, _splits("train", "test", "train[:90%]", "train[90%:]")),
    "flowers": Dataset("oxford_flowers102:2.*.*", 102, _splits("train", "test", "train[:90%]", "train[90%:]")),
    # ImageNet with other answers, or other photographs, to be tested on.
    "imagenet2012_real": Dataset(
        "imagenet2012:5.*.*", 1000, _IMAGENET, test_tfds="imagenet2012_real", test_label="real_label"
    ),
    "imagenet_v2": Dataset("imagenet2012:5.*.*", 1000, {**_IMAGENET, "test": "test"}, test_tfds="imagenet_v2"),
    # Not datasets of TFDS: folders, one subfolder a class.
    "imagenet21k": Dataset("", 21843, _splits("train", "test", "tune_train", "tune_val")),
    "objectnet": Dataset("", 1000, {"test": ""}),
    # VTAB-1k: natural, specialized, structured.
    "vtab/caltech101": Dataset("caltech101:3.*.*", 102, _vtab("train[2753:2953]")),  # 90 % of 3,059
    "vtab/cifar100": Dataset("cifar100:3.*.*", 100, _vtab("train[45000:45200]")),
    "vtab/dtd": Dataset("dtd:3.*.*", 47, _vtab("validation[:200]")),
    "vtab/flowers": Dataset("oxford_flowers102:2.*.*", 102, _vtab("validation[:200]")),
    # VTAB has version 3, which this TFDS no longer has.
    "vtab/pets": Dataset("oxford_iiit_pet", 37, _vtab("train[3312:3512]")),  # 90 % of 3,680
    "vtab/sun397": Dataset("sun397/tfds:4.*.*", 397, _vtab("validation[:200]")),
    "vtab/svhn": Dataset("svhn_cropped:3.*.*", 10, _vtab("train[65931:66131]")),  # 90 % of 73,257
    "vtab/camelyon": Dataset("patch_camelyon:2.*.*", 2, _vtab("validation[:200]")),
    "vtab/eurosat": Dataset(
        "eurosat/rgb:2.*.*", 10, _vtab("train[16200:16400]", "train[21600:]")
    ),  # 60, 80 % of 27,000
    "vtab/resisc45": Dataset("resisc45:3.*.*", 45, _vtab("train[18900:19100]", "train[25200:]")),  # 60, 80 % of 31,500
    "vtab/retinopathy": Dataset("diabetic_retinopathy_detection/btgraham-300:3.*.*", 5, _vtab("validation[:200]")),
    "vtab/clevr_count": Dataset("clevr:3.*.*", 8, _CLEVR, _clevr_count, options=_WHOLE),
    "vtab/clevr_distance": Dataset("clevr:3.*.*", 6, _CLEVR, _clevr_distance, options=_WHOLE),
    "vtab/dmlab": Dataset("dmlab:2.0.1", 6, _vtab("validation[:200]"), options=_WHOLE),
    "vtab/dsprites_location": Dataset(
        "dsprites:2.*.*", 16, _DSPRITES, _dsprites_location, scale=255, options=_SAME_SIDE | _WHOLE
    ),
    "vtab/dsprites_orientation": Dataset(
        "dsprites:2.*.*", 16, _DSPRITES, _dsprites_orientation, scale=255, options=_SAME_SIDE
    ),
    "vtab/kitti": Dataset("kitti:3.1.0", 4, _vtab("validation[:200]"), _kitti_distance, options=_WHOLE),
    "vtab/smallnorb_azimuth": Dataset("smallnorb:2.*.*", 18, _NORB, "label_azimuth", options=_SAME_SIDE),
    "vtab/smallnorb_elevation": Dataset("smallnorb:2.*.*", 9, _NORB, "label_elevation"),
}


# Which arguments of `load_split` each kind of dataset understands, besides its name and split.
_UNDERSTOOD = {
    "digits": (),
    "shapes": ("num_examples", "image_shape", "split_seed"),
    "folder": ("path", "class_names", "test_share", "split_seed"),
    "list": ("path", "class_names"),
    "tfrecords": (
        *("path", "classes", "class_names", "image_key", "label_key", "label_offset"),
        *("num_examples", "image_dtype", "image_shape", "max_value"),
    ),
    "tfds": ("path", "class_names", "image_key", "label_key"),
    "row": ("path", "class_names"),
    "objectnet": ("path",),
}


def load(name, *, train_split="train", test_split="test", **details):
    """The train and the test source of a dataset.

    Args:
        name: see `load_split`.
        train_split, test_split: see `load_split`.
        **details: the other arguments of `load_split`.

    Raises:
        ValueError: as `load_split`; or the two splits have different classes, or a class no examples.
    """
    train = load_split(name, train_split, **details)
    test = load_split(name, test_split, **details)
    check_splits(train, test)
    for split, source in ((train_split, train), (test_split, test)):
        warn_of_empty_classes(source, f"{name} {split}")
    return train, test


def load_split(
    name,
    split,
    *,
    path="",
    classes=0,
    class_names="",
    test_share=0.1,
    split_seed=0,
    image_key="",
    label_key="",
    label_offset=0,
    num_examples=0,
    image_dtype="",
    image_shape=(),
    max_value=0.0,
):
    """One split of a dataset.

    Args:
        name: "digits", the 1,797 handwritten digits (8x8 pixels of 0 to 16) of scikit-learn;
            "shapes:LABEL", images that are drawn when they are read, by one of their factors or "shape"; a row of
            `DATASETS`; "tfds:NAME" for any other classification dataset of TFDS; "folder", "list" or "tfrecords".
        split: of a row or of "tfds:", a split of `DATASETS` or in TFDS's words, `train[:90%]`; of "folder", see
            there; of "shapes", see there; of "list", the list; of "tfrecords", the pattern of the files' names.
        path: of TFDS, its data folder, unless it is in the usual place; of "folder" and the rows that are folders,
            the folder; of "list", where relative names start; of "tfrecords", the folder of the files.
        classes: of "tfrecords", how many.
        class_names: a text file with the name of each class, in order, one a line.
        test_share, split_seed: see `folder`. Of "shapes" the seed of all images.
        image_key, label_key, label_offset, num_examples, image_dtype, image_shape, max_value: see `tfrecords`; the
            keys of "tfds:" too. Of "shapes" the number of training examples, and `(H, W, C)`.

    Returns:
        A `Source`.

    Raises:
        ValueError: the name is not known, something that it needs is missing, something is set that it does not
            understand, or what the source itself refuses.
    """
    arguments = dict(locals())
    _check_understood(name, {field: arguments[field] for field in arguments.keys() - {"name", "split"}})
    names = _lines(class_names) if class_names else None
    if name == "digits":
        return _digits(split)
    if name.split(":")[0] == "shapes":
        label = name.partition(":")[2] or "shape"
        return shapes(split, label, num_examples, image_shape, split_seed)
    if name == "folder":
        return folder(path, split, names, test_share, split_seed)
    if name == "list":
        return file_list(split, path, names)
    if name == "tfrecords":
        if not (names or classes):
            raise ValueError("TFRecords need `classes` or `class_names`. Received: classes=0, class_names=''")
        keys = {"image_key": image_key or "image/encoded", "label_key": label_key or "image/class/label"}
        pattern = f"{path.rstrip('/')}/{split}" if path else split
        names = names or tuple(map(str, range(classes)))
        numbers = {"label_offset": label_offset, "num_examples": num_examples, "max_value": max_value}
        return tfrecords(pattern, names, image_dtype=image_dtype, image_shape=image_shape, **numbers, **keys)
    if name.startswith("tfds:"):
        keys = {"image_key": image_key or "image", "label_key": label_key or "label"}
        return tfds(name.removeprefix("tfds:"), split, path, class_names=names, **keys)
    if name not in DATASETS:
        raise ValueError(
            f"The datasets known by name are: digits, shapes, {', '.join(DATASETS)}; shapes:LABEL, tfds:NAME, folder, "
            "list, tfrecords. "
            f"Received: name={name!r}"
        )
    return _row(name, split, path, names, test_share, split_seed)


def _check_understood(name, arguments):
    """Refuses what would have no effect on a dataset, except at its default."""
    kind = name.split(":")[0]
    if kind in DATASETS:
        kind = kind if kind == "objectnet" else "row" if DATASETS[kind].tfds else "folder"
    if kind not in _UNDERSTOOD:
        return
    understood = _UNDERSTOOD[kind]
    parameters = inspect.signature(load_split).parameters
    unused = {field: value for field, value in arguments.items() if value != parameters[field].default}
    unused = {field: unused[field] for field in sorted(unused.keys() - set(understood))}
    if unused:
        received = ", ".join(f"{field}={value!r}" for field, value in unused.items())
        raise ValueError(
            f"The dataset {name!r} is found by {', '.join(['name', 'split', *understood])} alone. Received: {received}"
        )


def _row(name, split, path, class_names, test_share, split_seed):
    row = DATASETS[name]
    words = row.splits.get(split, split)
    if name == "objectnet":
        if split != "test":
            raise ValueError(f"ObjectNet is only for testing, its split is 'test'. Received: split={split!r}")
        return objectnet(path)
    if not row.tfds:
        source = folder(path, words, class_names, test_share, split_seed)
    else:
        other = row.test_tfds if split == "test" else ""
        label = row.test_label if other else row.label
        source = tfds(
            other or row.tfds,
            words,
            path,
            row.image,
            **({"label": label} if callable(label) else {"label_key": label}),
            class_names=class_names or (tuple(map(str, range(row.classes))) if callable(label) else None),
            scale=row.scale,
        )
    if len(source.class_names) != row.classes:
        raise ValueError(f"{name} has {row.classes} classes. Received: {len(source.class_names)} in {path!r}")
    return dataclasses.replace(source, options=row.options)


def _digits(split):
    sources = digits()
    match = re.fullmatch(r"(\w+)(?:\[:(\d+)\])?", split)
    if not match or match[1] not in sources:
        raise ValueError(
            f"The splits of the digits are {', '.join(sources)}, or the first ones of a split, train[:100]. "
            f"Received: split={split!r}"
        )
    source = sources[match[1]]
    if match[2] is None:
        return source
    if not 0 < int(match[2]) <= source.num_examples:
        raise ValueError(f"The split {match[1]!r} has {source.num_examples} examples. Received: split={split!r}")
    return subset(source, first_of_each_class(source.labels, int(match[2])))


def _lines(path):
    return tuple(line.strip() for line in read_text_file(path).splitlines() if line.strip())
