"""Tests of TFDS datasets and of the table `data.DATASETS`."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.data import datasets, sources

tfds = pytest.importorskip("tensorflow_datasets")
# TFDS emits unrelated warnings.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Returns the folder of a dataset with 20 training and 10 test images.

    All pixels of image i have the value i. The label of image i is i % 3.
    """
    folder = tmp_path_factory.mktemp("tfds")
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=(None, None, 3)),
            "label": tfds.features.ClassLabel(names=["x", "y", "z"]),
        }
    )

    def split(first, last):
        images = np.stack([np.full((6, 5, 3), i, np.uint8) for i in range(first, last)])
        return tf.data.Dataset.from_tensor_slices(
            {"image": images, "label": np.arange(first, last) % 3}
        )

    tfds.dataset_builders.store_as_tfds_dataset(
        name="flat",
        version="1.0.0",
        features=features,
        split_datasets={"train": split(0, 20), "test": split(20, 30)},
        data_dir=str(folder),
        disable_shuffling=True,
    )
    return str(folder)


@pytest.mark.parametrize(
    ("split", "expected"),
    [("train", range(20)), ("test[50%:]", range(25, 30)), ("train[3:5]+test[:2]", [3, 4, 20, 21])],
)
def test_prepared_tfds_splits_are_read_by_index(prepared, split, expected):
    source = data.load_split("tfds:flat", split, path=prepared)
    assert source.read is not None and source.class_names == ("x", "y", "z")
    order = list(reversed(range(source.num_examples)))
    examples = tf.data.Dataset.from_tensor_slices(order).map(
        lambda i: source.read(tf.cast(i, tf.int64))
    )
    actual = [
        (int(tf.io.decode_image(example["image"])[0, 0, 0]), int(np.squeeze(example["label"])))
        for example in examples
    ]
    assert actual == [(i, i % 3) for i in reversed(list(expected))]


def flat_numbers(source):
    """Returns the numbers of the images in ten training batches of four images."""
    batches = data.train_batches(
        source, batch_size=4, seed=0, image_size=4, train_crop="resize"
    ).take(10)
    return [
        round(127.5 * (1 + float(image[0, 0, 0]))) for images, *_ in batches for image in images
    ]


def test_remote_tfds_epochs_are_complete_and_shuffled(prepared, monkeypatch):
    monkeypatch.setattr(sources.tfds, "_are_local", lambda files: False)
    source = data.load_split("tfds:flat", "train[3:]+test[:3]", path=prepared)
    assert source.read is None and source.num_examples == 20 and sum(source.shards.lengths) == 20
    assert source.name_of(0).endswith("record 3") and source.name_of(17).endswith("record 0")
    numbers = flat_numbers(source)
    assert (
        sorted(numbers[:20]) == sorted(numbers[20:]) == list(range(3, 23))
        and numbers[:20] != numbers[20:]
    )


def test_array_records_are_read_by_index(tmp_path):
    pytest.importorskip("array_record")
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=(None, None, 3)),
            "label": tfds.features.ClassLabel(names=["x", "y", "z"]),
        }
    )
    images = np.stack([np.full((6, 5, 3), i, np.uint8) for i in range(20)])
    tfds.dataset_builders.store_as_tfds_dataset(
        name="flat",
        version="1.0.0",
        features=features,
        data_dir=str(tmp_path),
        disable_shuffling=True,
        split_datasets={
            "train": tf.data.Dataset.from_tensor_slices(
                {"image": images, "label": np.arange(20) % 3}
            )
        },
        file_format="array_record",
    )
    source = data.load_split("tfds:flat", "train[3:]", path=str(tmp_path))
    assert source.read is not None and source.num_examples == 17
    assert [int(np.squeeze(source.read(tf.constant(i, tf.int64))["label"])) for i in range(4)] == [
        0,
        1,
        2,
        0,
    ]
    assert sorted(flat_numbers(source)[:17]) == list(range(3, 20))


def test_class_names_of_tfds_must_be_those_of_the_dataset(prepared, tmp_path):
    names = tmp_path / "names"
    names.write_text("z\nx\ny\n")
    with pytest.raises(ValueError, match="must be the 3 class names of flat, in its order"):
        data.load_split("tfds:flat", "train", path=prepared, class_names=str(names))
    names.write_text("x\ny\nz\n")
    source = data.load_split("tfds:flat", "train", path=prepared, class_names=str(names))
    assert source.class_names == ("x", "y", "z")


def test_numeric_class_names_may_be_replaced():
    sources.tfds._check_class_names("flat", ("0", "1", "2"), ("red", "green", "blue"))
    with pytest.raises(ValueError, match="must be the 3 class names"):
        sources.tfds._check_class_names("flat", ("0", "1", "2"), ("2", "0", "1", "3"))


def weights_of(folder, features, labels, **fields):
    rows = [
        {"image": np.zeros((4, 4, 3), np.uint8), "label": np.array(label, np.int64)}
        for label in labels
    ]
    spec = {"image": tf.TensorSpec((4, 4, 3), tf.uint8), "label": tf.TensorSpec(None, tf.int64)}
    tfds.dataset_builders.store_as_tfds_dataset(
        name="some",
        version="1.0.0",
        data_dir=str(folder),
        disable_shuffling=True,
        features=tfds.features.FeaturesDict(
            {"image": tfds.features.Image(shape=(4, 4, 3)), "label": features}
        ),
        split_datasets={
            "train": tf.data.Dataset.from_generator(lambda: rows, output_signature=spec)
        },
    )
    source = data.load_split("tfds:some", "train", path=str(folder), **fields)
    ((_, actual, weights),) = data.eval_batches(source, batch_size=len(labels), image_size=4)
    return actual.numpy().tolist(), weights.numpy().tolist()


def test_negative_label_is_none_and_empty_list_is_no_class(tmp_path):
    one = tfds.features.ClassLabel(names=["x", "y"])
    rows = weights_of(tmp_path / "one", one, [1, -1, 0])
    assert rows == ([[0, 1], [0, 0], [1, 0]], [1, 0, 1])
    rows = weights_of(tmp_path / "several", tfds.features.Sequence(one), [[1], [], [0, 1]])
    assert rows == ([[0, 1], [0, 0], [1, 1]], [1, 1, 1])


def test_overlapping_tfds_splits_are_refused(prepared):
    data.load("tfds:flat", path=prepared, train_split="train[:10]", test_split="train[10:]")
    with pytest.raises(ValueError, match="no common examples.*train.tfrecord"):
        data.load("tfds:flat", path=prepared, train_split="train[:11]", test_split="train[10:]")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "tfds:flta", "split": "train"}, "flta"),
        ({"name": "tfds:flat", "split": "valid"}, r"has the splits \['test', 'train'\].*'valid'"),
        (
            {"name": "tfds:flat", "split": "train", "label_key": "class"},
            r"features \['image', 'label'\].*class",
        ),
        ({"name": "cifar11", "split": "train"}, "cifar100.*tfds:NAME.*'cifar11'"),
    ],
)
def test_rejects_unknown_tfds_datasets(prepared, arguments, message):
    with pytest.raises(ValueError, match=message):
        data.load_split(arguments.pop("name"), arguments.pop("split"), path=prepared, **arguments)


ROWS = {name: row for name, row in data.DATASETS.items() if row.tfds}


@pytest.mark.parametrize("name", ROWS)
def test_dataset_table_agrees_with_tfds(name, tmp_path):
    row = ROWS[name]
    info = tfds.builder(row.tfds, data_dir=str(tmp_path)).info
    assert row.image in info.features
    if not callable(row.label):
        assert info.features[row.label].num_classes == row.classes
    if row.test_tfds:
        other = tfds.builder(row.test_tfds, data_dir=str(tmp_path)).info.features[row.test_label]
        assert getattr(other, "feature", other).num_classes == row.classes


DATASETS_WITH_ONE_BUILDER = [name for name, row in data.DATASETS.items() if not row.test_tfds]


@pytest.mark.parametrize("name", DATASETS_WITH_ONE_BUILDER)
def test_no_other_split_equals_the_test_split(name):
    splits = dict(data.DATASETS[name].splits)
    assert splits.pop("test") not in splits.values()


def test_vtab_has_19_tasks_with_800_and_200_examples():
    tasks = {
        name.removeprefix("vtab/"): row
        for name, row in data.DATASETS.items()
        if name.startswith("vtab/")
    }
    assert {
        name: (row.splits["tune_val"], row.splits["test"], row.classes)
        for name, row in tasks.items()
    } == {
        "caltech101": ("train[2753:2953]", "test", 102),
        "cifar100": ("train[45000:45200]", "test", 100),
        "dtd": ("validation[:200]", "test", 47),
        "flowers": ("validation[:200]", "test", 102),
        "pets": ("train[3312:3512]", "test", 37),
        "sun397": ("validation[:200]", "test", 397),
        "svhn": ("train[65931:66131]", "test", 10),
        "camelyon": ("validation[:200]", "test", 2),
        "eurosat": ("train[16200:16400]", "train[21600:]", 10),
        "resisc45": ("train[18900:19100]", "train[25200:]", 45),
        "retinopathy": ("validation[:200]", "test", 5),
        "clevr_count": ("train[63000:63200]", "validation", 8),
        "clevr_distance": ("train[63000:63200]", "validation", 6),
        "dmlab": ("validation[:200]", "test", 6),
        "dsprites_location": ("train[589824:590024]", "train[663552:]", 16),
        "dsprites_orientation": ("train[589824:590024]", "train[663552:]", 16),
        "kitti": ("validation[:200]", "test", 4),
        "smallnorb_azimuth": ("test[:200]", "test[50%:]", 18),
        "smallnorb_elevation": ("test[:200]", "test[50%:]", 9),
    }
    for row in tasks.values():
        assert row.splits["train"] == f"train[:800]+{row.splits['tune_val']}"
        assert row.splits["tune_train"] == "train[:800]"


def test_vtab_tasks_without_flips_or_random_crops():
    names_with = lambda field, value: {  # noqa: E731
        n for n, row in data.DATASETS.items() if row.options.get(field) == value
    }
    assert names_with("flip", "off") == {
        "vtab/dsprites_orientation",
        "vtab/smallnorb_azimuth",
        "vtab/dsprites_location",
    }
    assert names_with("train_crop", "resize") == {
        "vtab/clevr_count",
        "vtab/clevr_distance",
        "vtab/dmlab",
        "vtab/kitti",
        "vtab/dsprites_location",
    }


def depths(values):
    return np.array([[0, 0, z] for z in values], np.float32).reshape(-1, 3)


@pytest.mark.parametrize(
    ("nearest", "label"),
    [(7.9, 0), (8.0, 0), (8.1, 1), (8.6, 2), (9.2, 3), (9.8, 4), (10.0, 4), (11.0, 5)],
)
def test_clevr_labels_encode_object_count_and_depth(nearest, label):
    objects = {"color": np.zeros(7), "pixel_coords": depths([12.0, nearest])}
    assert datasets._clevr_distance({"objects": objects}) == label
    assert datasets._clevr_count({"objects": objects}) == 4


@pytest.mark.parametrize(
    ("values", "kinds", "label"),
    [([7, 30], [0, 1], 0), ([7, 15], [4, 2], 1), ([25], [1], 2), ([5], [3], 3), ([], [], 3)],
)
def test_kitti_label_bins_the_depth_of_the_nearest_vehicle(values, kinds, label):
    objects = {"location": depths(values), "type": np.array(kinds, np.int64)}
    assert datasets._kitti_distance({"objects": objects}) == label


def test_dsprites_labels_bin_positions_and_angles():
    location = lambda x: int(datasets._dsprites_location({"label_x_position": tf.constant(x)}))  # noqa: E731
    angle = lambda x: int(datasets._dsprites_orientation({"label_orientation": tf.constant(x)}))  # noqa: E731
    assert [location(x) for x in (0, 1, 2, 31)] == [0, 0, 1, 15]
    assert [angle(x) for x in (0, 2, 3, 39)] == [0, 0, 1, 15]
