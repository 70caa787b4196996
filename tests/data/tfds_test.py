"""Tests of TFDS datasets and of the table `data.DATASETS`."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.data import datasets, sources

from .helpers import read_all, store_tfds

tfds = pytest.importorskip("tensorflow_datasets")
# TFDS emits unrelated warnings.
pytestmark = pytest.mark.filterwarnings("ignore")


LABEL = tfds.features.ClassLabel(names=["x", "y", "z"])
IMAGE = tfds.features.Image(shape=(None, None, 3))


def store_numbered(folder, **options):
    """Stores a dataset "flat" with 20 training and 10 test images.

    All pixels of image i have the value i. The label of image i is i % 3.
    """

    def split(numbers):
        images = np.stack([np.full((6, 5, 3), number, np.uint8) for number in numbers])
        return tf.data.Dataset.from_tensor_slices({"image": images, "label": numbers % 3})

    splits = {"train": split(np.arange(20)), "test": split(np.arange(20, 30))}
    store_tfds(folder, "flat", {"image": IMAGE, "label": LABEL}, splits, **options)


def store_examples(folder, features, examples):
    """Stores a dataset "some" whose split "train" has these examples, a dict of arrays."""
    train = tf.data.Dataset.from_tensor_slices(examples)
    store_tfds(folder, "some", features, {"train": train})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Returns the folder of the dataset of `store_numbered`."""
    folder = tmp_path_factory.mktemp("tfds")
    store_numbered(folder)
    return str(folder)


def numbers_and_labels(source):
    """Returns the numbers and the labels of all images, in order."""
    examples = read_all(source)
    numbers = [int(tf.io.decode_image(example["image"])[0, 0, 0]) for example in examples]
    return numbers, [int(np.squeeze(example["label"])) for example in examples]


def trained_numbers(source):
    """Returns the numbers of the images in training batches of 40 images."""
    options = {"image_size": 4, "train_crop": "resize"}
    images, *_ = next(iter(data.train_batches(source, batch_size=40, seed=0, **options)))
    return np.rint(127.5 * (1 + images[:, 0, 0, 0])).tolist()


def test_prepared_tfds_splits_are_read_by_index(prepared):
    source = data.load_split("tfds:flat", "train[3:5]+test[80%:]", path=prepared)
    assert source.class_names == ("x", "y", "z")
    expected = [3, 4, 28, 29]
    assert numbers_and_labels(source) == (expected, [number % 3 for number in expected])


def test_array_records_are_read_by_index(tmp_path):
    pytest.importorskip("array_record")
    store_numbered(tmp_path, file_format="array_record")
    source = data.load_split("tfds:flat", "train[3:]", path=str(tmp_path))
    numbers, labels = numbers_and_labels(source)
    assert numbers == [*range(3, 20)] and labels[:4] == [0, 1, 2, 0]
    assert sorted(trained_numbers(source)[:17]) == numbers


def test_remote_tfds_epochs_are_complete_and_shuffled(prepared, monkeypatch):
    monkeypatch.setattr(sources.record_files, "is_remote", lambda file: True)
    source = data.load_split("tfds:flat", "train[3:]+test[:3]", path=prepared)
    assert source.read is None and source.num_examples == sum(source.shards.lengths) == 20
    assert source.name_of(0).endswith("record 3") and source.name_of(17).endswith("record 0")
    numbers = trained_numbers(source)
    first, second = numbers[:20], numbers[20:]
    assert sorted(first) == sorted(second) == [*range(3, 23)] and first != second


@pytest.mark.parametrize(
    ("known", "given"),
    [
        ((), ()),
        (("x", "y", "z"), ("z", "x", "y")),
        (("0", "1", "2"), ("2", "0", "1")),
        (("0", "1", "2"), ("red", "green")),
    ],
    ids=["none", "another order", "another order of numbers", "another number"],
)
def test_other_class_names_are_refused(known, given):
    with pytest.raises(ValueError, match="`class_names` must be"):
        sources.tfds._check_class_names("flat", known, given)


def test_numeric_class_names_may_be_replaced():
    sources.tfds._check_class_names("flat", ("0", "1", "2"), ("red", "green", "blue"))


@pytest.mark.parametrize(
    ("feature", "labels", "targets", "weights"),
    [
        (LABEL, [1, -1, 0], [[0, 1, 0], [0, 0, 0], [1, 0, 0]], [1, 0, 1]),
        (
            tfds.features.Sequence(LABEL),
            tf.ragged.constant([[1], [], [0, 1]]),
            [[0, 1, 0], [0, 0, 0], [1, 1, 0]],
            [1, 1, 1],
        ),
    ],
    ids=["a negative label is none", "an empty list is no class"],
)
def test_images_without_a_class(feature, labels, targets, weights, tmp_path):
    examples = {"image": np.zeros((3, 4, 4, 3), np.uint8), "label": labels}
    store_examples(tmp_path, {"image": IMAGE, "label": feature}, examples)
    source = data.load_split("tfds:some", "train", path=str(tmp_path))
    ((_, *batch),) = data.eval_batches(source, batch_size=3, image_size=4)
    assert [part.numpy().tolist() for part in batch] == [targets, weights]


def test_masks_of_tfds_are_class_numbers(tmp_path):
    masks = np.random.default_rng(0).integers(0, 3, (4, 6, 5, 1), np.uint8)
    features = {"image": IMAGE, "segmentation_mask": tfds.features.Image(shape=(6, 5, 1))}
    examples = {"image": masks.repeat(3, -1), "segmentation_mask": masks}
    store_examples(tmp_path, features, examples)
    fields = {"path": str(tmp_path), "class_names": ("sky", "tree", "road")}
    source = data.load_split("tfds_masks:some", "train", **fields)
    assert source.class_names == ("sky", "tree", "road") and source.target == "masks"
    np.testing.assert_array_equal([example["mask"] for example in read_all(source)], masks)
    assert source.is_encoded


def test_images_of_tfds_may_be_arrays_of_floats(tmp_path):
    pixels = np.arange(96, dtype=np.float32).reshape(2, 4, 4, 3)
    features = {"image": tfds.features.Tensor(shape=(4, 4, 3), dtype=np.float32), "label": np.int64}
    store_examples(tmp_path, features, {"image": pixels, "label": [0, 1]})
    source = data.tfds("some", "train", str(tmp_path), class_names=("a", "b"))
    assert sorted(source.read(i)["image"].numpy().max() for i in (0, 1)) == [47, 95]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"label_key": "angle"}, "with integers.*'angle'"),
        ({"image_key": "angle"}, r"with image files .*'angle'.* shape \(\)"),
        ({"image_key": "heat"}, "with image files .*'heat'.*float32"),
    ],
)
def test_fractions_are_neither_labels_nor_images(keys, message, tmp_path):
    """TFDS stores a float32 image as a PNG file whose colors are the bytes of the numbers."""
    heat = tfds.features.Image(shape=(4, 4, 1), dtype=np.float32)
    features = {"image": IMAGE, "label": np.int64, "heat": heat, "angle": np.float32}
    zeros = np.zeros((2, 4, 4, 1), np.float32)
    image = np.uint8(zeros.repeat(3, -1))
    examples = {"image": image, "label": [0, 1], "heat": zeros, "angle": [0.2, 1.7]}
    store_examples(tmp_path, features, examples)
    with pytest.raises(ValueError, match=message):
        data.tfds("some", "train", str(tmp_path), class_names=("a", "b"), **keys)


def test_missing_records_are_an_error(tmp_path):
    store_numbered(tmp_path)
    (file,) = tmp_path.rglob("*train.tfrecord*")
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(file))]
    with tf.io.TFRecordWriter(str(file)) as writer:
        for record in records[:18]:
            writer.write(record)
    with pytest.raises(ValueError, match="must have 20 records.*18"):
        data.load_split("tfds:flat", "train", path=str(tmp_path))
    assert data.load_split("tfds:flat", "train[:18]", path=str(tmp_path)).num_examples == 18


def test_overlapping_tfds_splits_are_refused(prepared):
    data.load("tfds:flat", path=prepared, train_split="train[:10]", test_split="train[10:]")
    with pytest.raises(ValueError, match="no common examples.*train.tfrecord"):
        data.load("tfds:flat", path=prepared, train_split="train[:11]", test_split="train[10:]")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "tfds:flta"}, "flta"),
        ({"name": "tfds"}, "as in tfds:mnist"),
        ({"name": "tfds:flat", "split": "valid"}, r"has the splits \['test', 'train'\]"),
        ({"name": "tfds:flat", "label_key": "class"}, r"features \['image', 'label'\]"),
        ({"name": "cifar11"}, "cifar100.*tfds:NAME"),
    ],
)
def test_rejects_unknown_tfds_datasets(prepared, arguments, message):
    with pytest.raises(ValueError, match=message):
        data.load_split(**{"split": "train", "path": prepared, **arguments})


@pytest.mark.parametrize("name", [name for name, row in data.DATASETS.items() if row.tfds])
def test_dataset_table_agrees_with_tfds(name, tmp_path):
    row = data.DATASETS[name]
    info = tfds.builder(row.tfds, data_dir=str(tmp_path)).info
    assert row.image in info.features
    if not callable(row.label):
        assert info.features[row.label].num_classes == row.classes
    if row.test_tfds:
        other = tfds.builder(row.test_tfds, data_dir=str(tmp_path)).info.features[row.test_label]
        assert getattr(other, "feature", other).num_classes == row.classes


@pytest.mark.parametrize("name", [name for name, row in data.DATASETS.items() if not row.test_tfds])
def test_no_other_split_equals_the_test_split(name):
    splits = data.DATASETS[name].splits
    assert [split for split in splits if splits[split] == splits["test"]] == ["test"]


def test_vtab_has_19_tasks_with_800_and_200_examples():
    expected = {
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
    rows = {name.removeprefix("vtab/"): row for name, row in data.DATASETS.items() if "/" in name}
    assert rows.keys() == expected.keys()
    for name, (tune_val, test, classes) in expected.items():
        assert rows[name].classes == classes
        assert rows[name].splits == {
            "train": f"train[:800]+{tune_val}",
            "test": test,
            "tune_train": "train[:800]",
            "tune_val": tune_val,
        }


@pytest.mark.parametrize(
    ("option", "value", "tasks"),
    [
        ("flip", "off", {"dsprites_location", "dsprites_orientation", "smallnorb_azimuth"}),
        (
            "train_crop",
            "resize",
            {"clevr_count", "clevr_distance", "dmlab", "dsprites_location", "kitti"},
        ),
    ],
)
def test_vtab_tasks_without_flips_or_random_crops(option, value, tasks):
    changed = {name for name, row in data.DATASETS.items() if row.options.get(option) == value}
    assert changed == {f"vtab/{task}" for task in tasks}


def depths(values):
    return np.array([[0, 0, z] for z in values], np.float32).reshape(-1, 3)


@pytest.mark.parametrize(
    ("nearest", "label"),
    [(8.0, 0), (8.1, 1), (8.6, 2), (9.2, 3), (9.8, 4), (10.0, 4), (11.0, 5)],
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
    positions = tf.constant([0, 1, 2, 31])
    angles = tf.constant([0, 2, 3, 39])
    expected = [0, 0, 1, 15]
    assert datasets._dsprites_location({"label_x_position": positions}).numpy().tolist() == expected
    found = datasets._dsprites_orientation({"label_orientation": angles}).numpy().tolist()
    assert found == expected
