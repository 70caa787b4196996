import numpy as np
import pytest

import keras_vit
from keras_vit.training.diagnosis import batch_warnings, first_nonfinite_layer
from keras_vit.training.tensorflow import TensorFlowEngine


@pytest.fixture
def model(tiny):
    return tiny.new_state(tiny.strategy_of(1), num_layers=2).model


@pytest.fixture
def batch():
    """`(images, labels, weights)` as they should be."""
    random = np.random.default_rng(0)
    images = random.uniform(-1, 1, (8, 4, 6, 3)).astype("float32")
    return images, np.eye(3, dtype="float32")[np.arange(8) % 3], np.ones(8, "float32")


def test_a_good_batch_gives_no_warning(model, batch):
    assert batch_warnings(batch, model) == []


def test_the_range_is_that_of_the_models_own_preprocessing(model, batch):
    model.preprocessing = keras_vit.Preprocessing(mean=(0,) * 3, std=(255,) * 3)
    images, labels, weights = batch
    assert batch_warnings(((images + 1) / 2, labels, weights), model) == []
    (line,) = batch_warnings(batch, model)
    assert line.startswith("images should be in [0, 1], and the first batch is in [-")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda x, y, w: (255 * (x + 1) / 2, y, w), r"images should be in \[-1, 1\], and the first batch is in \["),
        (lambda x, y, w: ((x + 1) / 2, y, w), r"images should use \[-1, 1\], and the first batch is in \[0"),
        (lambda x, y, w: (0 * x, y, w), r"images should use \[-1, 1\], and the first batch is in \[0, 0\]"),
        (lambda x, y, w: (x / 0.0, y, w), "pixels that are not finite"),
        (lambda x, y, w: (x, 0 * y, w), "labels should be rows of shares"),
        (lambda x, y, w: (x, 2 * y, w), "labels should be rows of shares"),
        (lambda x, y, w: (x, y[[0] * 8], w), "all 8 labels of the first batch are the same"),
        (lambda x, y, w: (x, y, w * (np.arange(8) < 3)), "5 of 8 examples of the first batch cannot be read"),
        (lambda x, y, w: (x, y, 0 * w), "no image of the first batch can be read"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_what_is_odd_about_a_batch_is_reported(change, line, model, batch):
    import re

    lines = batch_warnings(change(*batch), model)
    assert any(re.search(line, warning) for warning in lines), lines


def test_a_batch_of_other_shapes_is_refused(model, batch):
    images, labels, weights = batch
    with pytest.raises(ValueError, match=r"takes images of \(4, 6, 3\).*Received: images of \(6, 4, 3\)"):
        batch_warnings((images.transpose(0, 2, 1, 3), labels, weights), model)


def test_the_first_layer_that_is_not_finite_is_named(model, batch, tiny):
    images = batch[0]

    def diagnosis():
        compute_gradients = TensorFlowEngine._make_sum_gradients(model, tiny.classification())
        return first_nonfinite_layer(model, compute_gradients, batch, pieces=3)

    assert diagnosis() == "every layer is finite without dropout"
    head = model.get_layer("head")
    kernel = head.kernel.numpy()
    head.kernel.assign(kernel * np.inf)
    assert diagnosis() == "the weights of the layer 'head' are not finite"
    head.kernel.assign(kernel)
    embedding = model.get_layer("embedding").weights[0]
    small = embedding.numpy()
    embedding.assign(small * 1e-30)
    model.get_layer("position_embedding").weights[0].assign(np.zeros((1, 7, 8)))
    model.get_layer("class_token").weights[0].assign(np.zeros((1, 1, 8)))
    head.kernel.assign(kernel * 1e30)
    assert diagnosis() == "in the backward pass, the gradient stops being finite in the layer 'encoder_norm'"
    head.kernel.assign(kernel)
    embedding.assign(small)
    block = model.get_layer("encoderblock_1")
    block.mlp_1.bias.assign(block.mlp_1.bias.numpy() + 1e38)
    block.mlp_2.kernel.assign(block.mlp_2.kernel.numpy() * 1e10)
    assert diagnosis() == "the first layer whose output is not finite is 'encoderblock_1'"
    images[7, 0, 0, 0] = np.nan
    assert "'images'" in diagnosis()
