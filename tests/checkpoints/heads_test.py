"""Tests of loading checkpoints with `head="keep"` and `head="new"`."""

import logging

import keras
import numpy as np
import pytest

from keras_vit import checkpoints
from keras_vit.checkpoints.names import CLASS_TOKEN, POSITIONS

pytestmark = pytest.mark.one_backend  # checkpoints are converted in numpy


def names_of(entries):
    return {entry[0] for entry in entries}


def test_keeping_the_head_loads_and_reports_every_array():
    report = checkpoints.load(small_model(), GOLDEN / "vit_token.ckpt.npz")
    assert len(report.loaded) == len(read_arrays(GOLDEN / "vit_token.ckpt.npz"))
    assert not (report.resampled or report.new or report.dropped or report.unused)
    assert ("head/kernel", (64, 10)) in report.loaded
    assert "40 arrays loaded" in str(report)
    assert "loaded: head/kernel (64, 10)" in report.full()


def test_constructor_logs_the_load_report(caplog):
    with caplog.at_level(logging.INFO, "keras_vit"):
        small_model(weights=GOLDEN / "vit_token.ckpt.npz", input_shape=(48, 32, 3))
    assert "39 arrays loaded" in caplog.text
    assert "from grid 4x4 to grid 6x4, (1, 25, 64)" in caplog.text


def test_kept_head_requires_the_same_number_of_classes():
    with pytest.raises(ValueError, match="head/kernel' in the checkpoint .*include_top=False"):
        checkpoints.load(small_model(classes=7), GOLDEN / "vit_token.ckpt.npz")


def test_new_head_has_zero_kernel_and_initial_bias():
    for classes in (7, 10):  # a head of the same shape is replaced too
        model = small_model(classes=classes, head_bias=-3.0)
        for variable in model.get_layer("head").weights:
            variable.assign(np.ones(variable.shape))
        report = checkpoints.load(model, GOLDEN / "vit_token.ckpt.npz", head="new")
        assert not weights_of(model)["head/kernel"].any()
        np.testing.assert_array_equal(weights_of(model)["head/bias"], np.full(classes, -3.0))
        assert report.new == [("head/kernel", (64, classes)), ("head/bias", (classes,))]
        assert sorted(report.dropped) == [("head/bias", (10,)), ("head/kernel", (64, 10))]
        assert len(report.loaded) == 38


def test_new_head_drops_pre_logits_that_the_model_lacks():
    source = GOLDEN / "vit_token_prelogits.ckpt.npz"
    report = checkpoints.load(small_model(), source, head="new")
    assert {"pre_logits/kernel", "pre_logits/bias"} <= names_of(report.dropped)
    model = small_model(representation_size=48)
    report = checkpoints.load(model, source, head="new")
    assert {"pre_logits/kernel", "pre_logits/bias"} <= names_of(report.loaded)
    np.testing.assert_array_equal(
        weights_of(model)["pre_logits/kernel"], read_arrays(source)["pre_logits/kernel"]
    )
    assert not weights_of(model)["head/kernel"].any()


def test_new_head_initializes_missing_pre_logits():
    model = small_model(representation_size=16)
    before = weights_of(model)["pre_logits/kernel"]
    report = checkpoints.load(model, GOLDEN / "vit_token.ckpt.npz", head="new")
    assert {"pre_logits/kernel", "pre_logits/bias"} <= names_of(report.new)
    np.testing.assert_array_equal(weights_of(model)["pre_logits/kernel"], before)


def test_kept_head_requires_its_pre_logits():
    with pytest.raises(ValueError, match=r"unused \(pre_logits/bias, pre_logits/kernel\)"):
        checkpoints.load(small_model(), GOLDEN / "vit_token_prelogits.ckpt.npz")


def test_headless_model_drops_the_head():
    source = GOLDEN / "vit_token_prelogits.ckpt.npz"
    report = checkpoints.load(small_model(include_top=False, representation_size=48), source)
    assert names_of(report.dropped) == {"head/kernel", "head/bias"}
    with pytest.raises(ValueError, match=r"2 unused \(pre_logits/bias, pre_logits/kernel\)"):
        checkpoints.load(small_model(include_top=False), source)
    model = small_model(include_top=False)
    checkpoints.load(model, source, head="new")
    with np.load(GOLDEN / "vit_token_prelogits.io.npz") as io:
        features = keras.ops.convert_to_numpy(model(io["inputs"]))
        np.testing.assert_allclose(features, io["encoded"][:, 0], atol=1e-5)


def test_new_head_drops_class_token_and_its_position():
    model = small_model(classifier="gap")
    source = GOLDEN / "vit_token.ckpt.npz"
    report = checkpoints.load(model, source, head="new")
    np.testing.assert_array_equal(
        weights_of(model)[POSITIONS], read_arrays(source)[POSITIONS][:, 1:]
    )
    assert (CLASS_TOKEN, (1, 1, 64)) in report.dropped
    assert any("class token's row" in name for name, _ in report.dropped)


def test_new_head_initializes_missing_class_token():
    model = small_model(input_shape=(32, 48, 3))
    source = GOLDEN / "vit_gap.ckpt.npz"
    before = weights_of(model)
    report = checkpoints.load(model, source, head="new")
    np.testing.assert_array_equal(
        weights_of(model)[POSITIONS][:, 1:], read_arrays(source)[POSITIONS]
    )
    np.testing.assert_array_equal(weights_of(model)[POSITIONS][:, :1], before[POSITIONS][:, :1])
    assert not weights_of(model)[CLASS_TOKEN].any()
    assert CLASS_TOKEN in names_of(report.new)


@pytest.mark.parametrize(
    "file, arguments",
    [
        ("vit_token.ckpt.npz", {"classifier": "gap"}),
        ("bigvision_gap.ckpt.npz", {}),
        ("bigvision_map.ckpt.npz", {"classifier": "gap"}),
        ("bigvision_tok_sincos.ckpt.npz", {}),
        (
            "vit_token.ckpt.npz",
            {"position_embedding": "sincos2d", "class_token_position": False},
        ),
        ("vit_token.ckpt.npz", {"representation_size": 64}),
    ],
)
def test_other_parts_are_refused(file, arguments):
    with pytest.raises(ValueError, match=r"[1-9]\d* (missing|unused) \("):
        checkpoints.load(small_model(**arguments), GOLDEN / file)


def test_kept_head_requires_its_pooling(tmp_path):
    source = small_model(classifier="token_gap", head_bias=1.0)
    source.head.kernel.assign(np.ones((64, 10)))
    checkpoints.save(source, tmp_path / "pooled.npz")
    checkpoints.load(small_model(classifier="token_gap"), tmp_path / "pooled.npz")
    checkpoints.load(small_model(), tmp_path / "pooled.npz", head="new")
    checkpoints.load(small_model(include_top=False), tmp_path / "pooled.npz")
    with pytest.raises(ValueError, match="requires `classifier='token_gap'`.*='token' in"):
        checkpoints.load(small_model(), tmp_path / "pooled.npz")


def test_zero_head_causes_a_warning_only_if_kept(tmp_path):
    changed = read_arrays(GOLDEN / "vit_token.ckpt.npz")
    changed["head/kernel"] *= 0
    np.savez(tmp_path / "zero.npz", **changed)
    with pytest.warns(UserWarning, match="all zeros, so every image gets the same logits"):
        checkpoints.load(small_model(), tmp_path / "zero.npz")
    checkpoints.load(small_model(), tmp_path / "zero.npz", head="new")
    checkpoints.load(small_model(include_top=False), tmp_path / "zero.npz")


def test_rejects_unknown_head_option():
    with pytest.raises(ValueError, match='`head` must be "keep" or "new"'):
        checkpoints.load(small_model(), GOLDEN / "vit_token.ckpt.npz", head="drop")


def test_npz_loading_ignores_the_config_of_a_run(tmp_path):
    mask = {"mask_patches/mask_embedding": np.zeros((1, 1, 64), np.float32)}
    np.savez(tmp_path / "weights.npz", **read_arrays(GOLDEN / "vit_token.ckpt.npz"), **mask)
    (tmp_path / "config.json").write_text('{"architecture": "VisionTransformer"}')
    report = checkpoints.load(small_model(), tmp_path / "weights.npz", head="new")
    assert names_of(report.unused) == set(mask)
