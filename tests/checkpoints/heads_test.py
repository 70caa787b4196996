"""Tests of loading checkpoints with `head="keep"` and `head="new"`."""

import logging

import numpy as np
import pytest

from keras_vit import checkpoints
from keras_vit.checkpoints.names import CLASS_TOKEN, POSITIONS

from ..shared import GOLDEN, randomize_head, read_arrays
from .helpers import VIT_TOKEN, small_model, weights_of

pytestmark = pytest.mark.one_backend  # checkpoints are converted in numpy

# A file with a hidden layer in its head
PRE_LOGITS_FILE = GOLDEN / "vit_token_prelogits.ckpt.npz"
PRE_LOGITS = {"pre_logits/kernel", "pre_logits/bias"}


def names_of(entries):
    """Returns the names of the arrays in a part of a report."""
    return {entry[0] for entry in entries}


def test_report_lists_every_array(caplog):
    report = checkpoints.load(small_model(), VIT_TOKEN)
    assert len(report.loaded) == len(read_arrays(VIT_TOKEN))
    assert not (report.resampled or report.new or report.dropped or report.unused)
    assert ("head/kernel", (64, 10)) in report.loaded
    assert "loaded: head/kernel (64, 10)" in report.full()
    with caplog.at_level(logging.INFO, "keras_vit"):
        small_model(weights=VIT_TOKEN, input_shape=(48, 32, 3))
    assert "39 arrays loaded" in caplog.text
    assert "from grid 4x4 to grid 6x4, (1, 25, 64)" in caplog.text


def test_kept_head_requires_the_same_number_of_classes():
    with pytest.raises(ValueError, match="head/kernel' in the checkpoint .*include_top=False"):
        checkpoints.load(small_model(classes=7), VIT_TOKEN)


@pytest.mark.parametrize("classes", [7, 10])  # a head of the same shape is replaced too
def test_new_head_has_zero_kernel_and_initial_bias(classes):
    model = small_model(classes=classes, head_bias=-3.0)
    for variable in model.get_layer("head").weights:
        variable.assign(np.ones(variable.shape))
    report = checkpoints.load(model, VIT_TOKEN, head="new")
    weights = weights_of(model)
    assert not weights["head/kernel"].any()
    np.testing.assert_array_equal(weights["head/bias"], np.full(classes, -3.0))
    assert report.new == [("head/kernel", (64, classes)), ("head/bias", (classes,))]
    assert sorted(report.dropped) == [("head/bias", (10,)), ("head/kernel", (64, 10))]


@pytest.mark.parametrize("include_top", [True, False])
def test_pre_logits_are_dropped_only_with_a_new_head(include_top):
    model = small_model(include_top=include_top)
    with pytest.raises(ValueError, match=r"unused \(pre_logits/bias, pre_logits/kernel\)"):
        checkpoints.load(model, PRE_LOGITS_FILE)
    report = checkpoints.load(model, PRE_LOGITS_FILE, head="new")
    assert names_of(report.dropped) == {"head/kernel", "head/bias", *PRE_LOGITS}


def test_new_head_keeps_pre_logits_of_the_model():
    model = small_model(representation_size=48)
    checkpoints.load(model, PRE_LOGITS_FILE, head="new")
    expected = read_arrays(PRE_LOGITS_FILE)["pre_logits/kernel"]
    np.testing.assert_array_equal(weights_of(model)["pre_logits/kernel"], expected)


def test_new_head_initializes_missing_pre_logits():
    model = small_model(representation_size=16)
    before = weights_of(model)["pre_logits/kernel"]
    checkpoints.load(model, VIT_TOKEN, head="new")
    np.testing.assert_array_equal(weights_of(model)["pre_logits/kernel"], before)


def test_headless_model_keeps_its_pre_logits():
    model = small_model(include_top=False, representation_size=48)
    report = checkpoints.load(model, PRE_LOGITS_FILE)
    assert names_of(report.dropped) == {"head/kernel", "head/bias"}


def test_new_head_drops_class_token_and_its_position():
    model = small_model(classifier="gap")
    report = checkpoints.load(model, VIT_TOKEN, head="new")
    expected = read_arrays(VIT_TOKEN)[POSITIONS][:, 1:]
    np.testing.assert_array_equal(weights_of(model)[POSITIONS], expected)
    assert (CLASS_TOKEN, (1, 1, 64)) in report.dropped
    assert any("class token's row" in name for name in names_of(report.dropped))


def test_new_head_initializes_missing_class_token():
    model = small_model(input_shape=(32, 48, 3))
    source = GOLDEN / "vit_gap.ckpt.npz"
    before = weights_of(model)
    report = checkpoints.load(model, source, head="new")
    after = weights_of(model)
    np.testing.assert_array_equal(after[POSITIONS][:, 1:], read_arrays(source)[POSITIONS])
    np.testing.assert_array_equal(after[POSITIONS][:, :1], before[POSITIONS][:, :1])
    assert not after[CLASS_TOKEN].any()
    assert CLASS_TOKEN in names_of(report.new)


@pytest.mark.parametrize(
    "file, arguments",
    [
        ("vit_token.ckpt.npz", {"classifier": "gap"}),
        ("bigvision_gap.ckpt.npz", {}),
        ("bigvision_tok_sincos.ckpt.npz", {}),
    ],
)
def test_kept_head_requires_the_same_parts(file, arguments):
    with pytest.raises(ValueError, match=r"[1-9]\d* (missing|unused) \("):
        checkpoints.load(small_model(**arguments), GOLDEN / file)


def test_kept_head_requires_its_pooling(tmp_path):
    path = tmp_path / "pooled.npz"
    checkpoints.save(randomize_head(small_model(classifier="token_gap")), path)
    with pytest.raises(ValueError, match="requires `classifier='token_gap'`"):
        checkpoints.load(small_model(), path)
    checkpoints.load(small_model(), path, head="new")
    checkpoints.load(small_model(include_top=False), path)


def test_head_of_transformers_requires_the_class_token(tmp_path):
    arguments = {"exact_gelu": True, "epsilon": 1e-12}
    checkpoints.save(small_model(**arguments), tmp_path, format="huggingface")
    with pytest.raises(ValueError, match="requires `classifier='token'`"):
        checkpoints.load(small_model(classifier="token_gap", **arguments), tmp_path)


def test_zero_head_causes_a_warning_only_if_kept(tmp_path):
    arrays = read_arrays(VIT_TOKEN)
    arrays["head/kernel"] *= 0
    np.savez(tmp_path / "zero.npz", **arrays)
    with pytest.warns(UserWarning, match="all zeros"):
        checkpoints.load(small_model(), tmp_path / "zero.npz")
    checkpoints.load(small_model(), tmp_path / "zero.npz", head="new")
