"""Each config file compiles for a TPU with a small model: two Transformer blocks, or a BiT ResNet
of depth 26."""

from pathlib import Path

import keras
import pytest

from keras_vit import families, tasks, tpu
from keras_vit.tpu.inputs import input_shapes

from ..shared import CONFIGS, get_config

REQUESTS = {
    "digits": ("",),
    "fashion": ("",),
    "pretrain": (
        "ViT-B/16,imagenet2012",
        "ViT-L/16,jft300m,epochs=14",
        "R50x1,jft300m",
        "ViT-S/16,imagenet21k,augreg=light1,epochs=30,dropout=0.1,weight_decay=0.03",
    ),
    "finetune": ("ViT-H/14,cifar10", "R50+ViT-B/16,imagenet2012,resolution=512", "BiT-R50x1,pets"),
    "small_data": ("ViT-B/16,pets", "BiT-R50x1,pets"),
    "segment": ("DINOv2-S/14,folder", "ViT-B/16,folder,head=dpt,resolution=224"),
    **dict.fromkeys(("siglip", "lit", "finetune_pair"), ()),  # see tests/tpu/image_text_test.py
    "distill": (),  # needs a teacher; tests/tpu/distillation_test.py compiles one
}
DIGITS_SHAPE = (8, 8, 3)
# Number of classes of each dataset. `_config` sets the number of `tfrecords` and `masks`.
CLASSES = {
    "digits": 10,
    "idx": 10,
    "imagenet2012": 1000,
    "imagenet21k": 21843,
    "cifar10": 10,
    "pets": 37,
    "tfrecords": 100,
    "masks": 100,
}
config_requests = pytest.mark.parametrize(
    ("file", "request_"),
    [(file, request) for file, requests in REQUESTS.items() for request in requests],
)


def _config(file, request):
    config = get_config(file, request)
    if "jft300m" in request or file == "segment":
        config.data.classes = 100  # any number; these files leave it to the user
    constructor = families.find_family(config.architecture).constructor.__name__
    config.architecture = constructor
    if constructor == "BiTResNet":
        config.model.depth = 26
    else:
        config.model.num_layers = 2
        if config.model.resnet_blocks:
            config.model.resnet_blocks = (1,) * len(config.model.resnet_blocks)
    return config


def test_every_config_file_is_tested():
    assert {file.stem for file in CONFIGS.glob("*.py")} == set(REQUESTS)


@config_requests
def test_input_shapes_match_config_and_dataset(file, request_):
    config = _config(file, request_)
    if file == "fashion" and not Path(config.data.path).exists():
        pytest.skip("dataset-fashion-mnist is not installed")
    inputs = input_shapes(config)
    size = config.data.image_size
    image_shape = (size, size, config.data.channels) if size else DIGITS_SHAPE
    assert inputs.image_shape == image_shape
    assert inputs.num_classes == CLASSES[config.data.name]


@pytest.mark.slow
@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="requires the TensorFlow backend"
)
@config_requests
def test_config_file_compiles_and_fits(file, request_, tpu_compiler):
    config = _config(file, request_)
    check = tpu.check(tasks.get(config), config, 8, "v3:2x2")
    assert check.fits, check.error
    assert check.flops > 0.95 * check.model_flops > 0
