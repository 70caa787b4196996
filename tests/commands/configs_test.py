"""Tests of the built-in config files, including two training steps with each file."""

import dataclasses
import json

import pytest
from absl import flags
from ml_collections import config_flags

from keras_vit import VisionTransformer, data, families, recipes, training

from ..data.helpers import jpeg, write_jpegs, write_records
from ..shared import CONFIGS, ROOT, SIZES, get_config

# Arguments of each config file: the text after the colon in `--config=FILE:ARGUMENTS`.
REQUESTS = {
    "digits": ("",),
    "fashion": ("",),
    "pretrain": (
        "ViT-B/16,imagenet2012",
        "ViT-L/16,jft300m,epochs=14",
        "R50x1,jft300m",
        "ViT-S/16,imagenet21k,augreg=light1,epochs=30,dropout=0.1,weight_decay=0.03",
    ),
    "finetune": (
        "ViT-H/14,cifar10",
        "R50+ViT-B/16,imagenet2012,resolution=512",
        "ViT-B/16,vtab/clevr_count",
        "BiT-R50x1,pets",
    ),
    "small_data": ("ViT-B/16,pets", "BiT-R50x1,pets"),
    "segment": ("DINOv2-S/14,folder", "ViT-B/16,list,head=dpt", "DINOv3-S/16,folder,task=depth"),
    "distill": ("ViT-Ti/16,folder",),
    "siglip": ("ViT-S/16", "SigLIP-B/16"),
    "lit": ("ViT-B/16", "DINOv2-S/14"),
    "finetune_pair": ("a/pair", "a/pair,loss=softmax,length=77"),
}
# Other tests train with these configs: run_tpu_test.py, and tests/tasks for masks and captions.
OWN_TESTS = ("digits", "segment", "siglip", "lit", "finetune_pair")
# The digits in color.
TINY_DATA = {
    "name": "digits",
    "image_size": 16,
    "channels": 3,
    "path": "",
    "train_split": "train",
    "test_split": "test[:20]",
}

config_files = pytest.mark.parametrize(
    ("file", "request_"),
    [(file, request) for file, requests in REQUESTS.items() for request in requests],
)


def test_all_config_files_are_tested():
    assert {file.stem for file in CONFIGS.glob("*.py")} == set(REQUESTS)


@config_files
def test_config_has_all_fields_and_valid_data_options(file, request_):
    config = get_config(file, request_)
    fields = recipes.defaults()
    assert set(config) == set(fields)
    for group in ("optimizer", "schedule"):
        assert set(config[group]) == set(fields[group])
    assert (config["total_steps"] > 0) != (config["total_epochs"] > 0)
    options = {field.name: config["data"][field.name] for field in dataclasses.fields(data.Options)}
    data.Options(**options)
    # `input_shape` is empty, because the image size determines the shape.
    assert config["model"]["input_shape"] == ()


@config_files
def test_only_recipes_of_the_paper_ignore_exif(file, request_):
    expected = "off" if file in ("pretrain", "finetune") else "auto"
    assert get_config(file, request_).data.exif == expected


def _leaves(config, prefix=""):
    """Yields the name and value of each field, such as `("data.name", "digits")`."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _parse(file, request, overrides=()):
    """Returns the config that the command line makes of a config file and overrides."""
    values = flags.FlagValues()
    path = f"{CONFIGS / file}.py" + (f":{request}" if request else "")
    arguments = ["test", *overrides]
    config_flags.DEFINE_config_file("config", path, flag_values=values, sys_argv=arguments)
    values(arguments)
    return values.config.to_dict()


@config_files
def test_flags_for_all_fields_reproduce_the_config(file, request_):
    config = _parse(file, request_)
    overrides = []
    for field, value in _leaves(config):
        assert value is not None
        if isinstance(value, tuple):
            value = ",".join(map(str, value)) or "()"
        overrides.append(f"--config.{field}={value}")
    assert _parse(file, request_, overrides) == config


@pytest.mark.parametrize(
    ("file", "request_"),
    [
        *((file, requests[0]) for file, requests in REQUESTS.items() if file not in OWN_TESTS),
        ("pretrain", "R50x1,jft300m"),
    ],
)
def test_config_file_runs_two_steps(file, request_, tmp_path):
    config = get_config(file, request_)
    config.update(total_epochs=0.0, total_steps=2, batch_size=8, weights="")
    config.schedule.warmup_steps = 1
    config.architecture = families.find_family(config.architecture).constructor.__name__
    if config.architecture == "BiTResNet":
        config.model.depth = 8
    else:
        config.model.update(SIZES, stem="", resnet_blocks=())
        config.model.representation_size = min(config.model.representation_size, 16)
    config.data.update(TINY_DATA)
    if config.data.resize_size:
        config.data.resize_size = 20
    if file == "distill":
        config.teacher = str(tmp_path / "teacher.keras")
        VisionTransformer(**SIZES, classes=10, input_shape=(16, 16, 3)).save(config.teacher)
    lines = []
    training.run(config, training.Workdir(tmp_path / "run", config.to_dict()), write=lines.append)
    assert any(line.startswith("step 2/2") for line in lines)


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        ("../photos", ("folder", "../photos")),
        ("photos", ("folder", "photos")),
        ("pets", ("pets", "")),  # a folder with the name of a dataset
        ("tfds:beans", ("tfds:beans", "")),
    ],
)
def test_small_data_takes_the_path_of_a_folder(dataset, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("photos", "pets"):
        (tmp_path / name).mkdir()
    fields = get_config("small_data", f"ViT-B/16,{dataset}").data
    assert (fields.name, fields.path) == expected


@pytest.fixture
def small_data(tmp_path):
    """Returns a function that makes the config for a folder with a number of training images."""

    def make(number):
        paths = [f"train/{'ab'[i % 2]}/{i}.jpg" for i in range(number)]
        for path in (*paths, "test/a/0.jpg"):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).touch()
        config = get_config("small_data", "ViT-S/16,folder")
        config.data.path = str(tmp_path)  # as the command line does
        return config

    return make


@pytest.mark.parametrize(
    ("number", "batch_size", "steps"), [(3, 1, 90), (100, 16, 188), (500, 32, 469)]
)
def test_small_data_follows_the_number_of_images(number, batch_size, steps, small_data):
    config = small_data(number).to_dict()
    assert (config["batch_size"], config["total_steps"]) == (batch_size, steps)
    assert config["eval_every_steps"] == config["schedule"]["warmup_steps"] == steps // 10


def test_small_data_keeps_what_the_command_line_sets(small_data):
    config = small_data(200)
    config.update(batch_size=128, total_steps=50)
    assert (config.schedule.base, config.schedule.warmup_steps) == (5e-4, 5)
    config.update(total_steps=0, total_epochs=64.0)
    assert config.eval_every_steps == 10


def test_small_data_assumes_10000_images_that_cannot_be_counted():
    assert get_config("small_data", "ViT-S/16,folder").total_steps == 9375


COUNT = """
import json, sys
import tensorflow as tf
from keras_vit.configs import small_data

config = small_data.get_config("ViT-S/16,folder")
config.data.update(json.loads(sys.argv[1]))
print("batch size", config.to_dict()["batch_size"])
(cpu,) = tf.config.list_physical_devices("CPU")
# TensorFlow refuses this once it has started.
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
"""


def write_photos(folder):
    for split in ("train/a", "train/b", "test/a"):
        write_jpegs(folder / split, 20)
    return {"name": "folder", "path": str(folder)}


def write_tfrecords(folder):
    write_records(folder / "train", map(jpeg, range(40)), [0] * 40)
    splits = {"train_split": "train", "test_split": "train"}
    return {"name": "tfrecords", "path": str(folder), "classes": 1, **splits}


@pytest.mark.parametrize("write", [write_photos, write_tfrecords])
def test_small_data_counts_images_before_tensorflow_starts(write, scripts, tmp_path):
    program = tmp_path / "count.py"
    program.write_text(COUNT)
    done = scripts.run(program, json.dumps(write(tmp_path)), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "batch size 8\n"


@pytest.mark.parametrize(
    "choices", [",lenght=77", ",length", ",length=long", ",length=64,length=77", ","]
)
def test_finetune_pair_rejects_choices_that_it_cannot_follow(choices):
    with pytest.raises(ValueError, match=f"at most one each of loss.*Received: 'a/pair{choices}'"):
        get_config("finetune_pair", f"a/pair{choices}")


def test_finetune_pair_needs_a_source():
    with pytest.raises(ValueError, match="the source of a pair"):
        get_config("finetune_pair", ",loss=softmax")


@pytest.mark.parametrize(
    ("model", "resolution"),
    [("DINOv2-S/14", 392), ("R50+ViT-B/16", 448), ("R+ViT-Ti/16", 896)],
)
def test_segmentation_has_28_tokens_on_each_side(model, resolution):
    assert get_config("segment", f"{model},folder").data.image_size == resolution


@pytest.mark.parametrize("resolution", ["big", "448.5"])
def test_segmentation_rejects_resolution_that_is_no_whole_number(resolution):
    with pytest.raises(ValueError, match="`resolution` must be a whole number"):
        get_config("segment", f"DINOv2-S/14,folder,resolution={resolution}")


@pytest.mark.parametrize("file", ["segment", "distill", "small_data"])
def test_config_takes_the_name_of_a_class(file):
    config = get_config(file, "VisionTransformer,folder")
    assert config.architecture == "VisionTransformer"


def test_fine_tuning_follows_the_dataset_and_the_published_weights():
    cropped = get_config("finetune", "ViT-S/16,vtab/dtd")
    uncropped = get_config("finetune", "ViT-B/16,vtab/clevr_count")
    assert (cropped.data.train_crop, uncropped.data.train_crop) == ("resize_crop", "auto")
    assert data.DATASETS["vtab/clevr_count"].options["train_crop"] == "resize"
    assert (cropped.weights, uncropped.weights) == ("augreg", "imagenet21k")
    assert cropped.model.representation_size == 0
