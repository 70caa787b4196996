"""Tests of `tpu.check`: compilation, memory and the search for a fitting batch."""

import dataclasses
import json

import keras
import pytest

from keras_vit import tpu
from keras_vit.tpu import estimate
from keras_vit.tpu.program import Program, Programs
from keras_vit.tpu.report import report
from keras_vit.tpu.topologies import GIB
from keras_vit.training import freezing
from keras_vit.training.engine import make_optimizer

tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="requires the TensorFlow backend"
)

DEVICES = 8  # of each of the slices "v2:2x2" and "v3:2x2"
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED: out of memory"


class _FakePrograms(Programs):
    """Fake programs. The state takes 1 GiB, and each image 1 GiB of activations, or 0.5 GiB with
    `remat`."""

    policy = None
    state_bytes = GIB

    def _build(self, inputs, total_steps):
        _FakePrograms.policy = keras.config.dtype_policy().name
        self._devices = self.topology.num_devices
        make_optimizer(self._config, total_steps)
        self._gib_per_image = 0.5 if self._config.remat else 1.0
        model = self._task.build_model(inputs)
        freezing.apply(self._config, model)
        return model

    def train(self, batch_size, accumulate_steps):
        images = batch_size / self._devices / accumulate_steps
        activations = int(self._gib_per_image * images * GIB)
        if activations > 14 * GIB:
            return Program(False, OUT_OF_MEMORY, True, required_bytes=activations + GIB)
        return Program(
            True,
            argument_bytes=GIB,
            temporary_bytes=activations,
            flops=9e12 * images,
            bytes_accessed=45e9,
        )

    def evaluation(self, batch_size, accumulate_steps):
        return Program(True, argument_bytes=GIB, flops=1e9, bytes_accessed=1e9)


@pytest.fixture
def without_compiler(monkeypatch):
    monkeypatch.setattr(estimate.compiler, "check_installed", lambda: None)
    monkeypatch.setattr(estimate, "programs_class", lambda: _FakePrograms)
    monkeypatch.setattr(_FakePrograms, "policy", None)


@tensorflow_only
def test_tiny_step_compiles_and_fits(tiny, tpu_compiler):
    check = tiny.check("v3:2x2")
    assert check.compiles
    assert check.fits
    assert not check.error
    assert (check.batch_size_per_device, check.fitting_batch_per_device) == (4, 4)
    # The weights, their EMA and two moments are float32 arrays of the same size.
    assert 4 * check.all_reduce_bytes <= check.state_bytes < 6 * check.all_reduce_bytes
    # Variables are updated in place, so HBM does not hold a second copy of the state.
    assert check.train.argument_bytes + check.train.temporary_bytes < 2.5 * check.state_bytes
    assert check.evaluation.argument_bytes < check.train.argument_bytes
    assert check.train.flops > 0.98 * check.model_flops > 0
    assert check.step_seconds_estimate > check.all_reduce_seconds > 0
    assert json.loads(json.dumps(check.to_dict()))["fits"] is True


@tensorflow_only
@pytest.mark.slow
def test_tiny_step_compiles_for_a_v4(tiny, tpu_compiler):
    check = tiny.check("v4:2x2x1")
    assert check.fits
    assert check.flops >= check.model_flops > 0


@tensorflow_only
@pytest.mark.slow
def test_accumulated_step_counts_all_micro_batches(tiny, tpu_compiler):
    one = tiny.check("v5e:1x1", 64)
    for accumulate_steps in (2, 32):
        check = tiny.check("v5e:1x1", 64, accumulate_steps=accumulate_steps)
        assert check.flops == pytest.approx(one.flops, rel=0.2), accumulate_steps
        # The state is read and written once per step, not once per micro-batch.
        assert 2 * one.state_bytes < check.bytes_accessed < 5 * one.bytes_accessed


def test_rejects_bad_input_before_compiling(tiny, monkeypatch):
    monkeypatch.setattr(
        estimate.compiler, "check_installed", lambda: pytest.fail("compilation started")
    )
    with pytest.raises(ValueError, match="`topology` must be"):
        tiny.check("v9:1x1")
    with pytest.raises(ValueError, match="must be divisible by 8 replicas"):
        tiny.check("v3:2x2", 12)


def test_check_restores_config_and_dtype_policy(tiny, without_compiler):
    config = tiny.config(batch_size=7)
    tpu.check(tiny.task(config), config, 16, "v3:2x2")
    assert config.batch_size == 7
    assert keras.config.dtype_policy().name == "float32"
    assert _FakePrograms.policy == "mixed_bfloat16"


def test_warmup_longer_than_training_is_allowed(tiny, without_compiler):
    check = tiny.check("v3:2x2", schedule={"warmup_steps": 500}, total_steps=20)
    assert check.fits
    assert check.total_steps == 20


@pytest.mark.parametrize(
    ("images", "changes", "fits", "smallest", "largest"),
    [
        (24, {"search": True}, False, 14, 14),
        (24, {}, False, 1, 14),
        (7, {}, True, 7, 7),
        # The search continues from a batch that fits.
        (7, {"search": True}, True, 8, 14),
        (7, {"search": True, "remat": True}, True, 15, 28),
    ],
    ids=str,
)
def test_fitting_batch(tiny, without_compiler, images, changes, fits, smallest, largest):
    check = tiny.check("v3:2x2", DEVICES * images, **changes)
    assert check.fits == fits
    fitting = check.fitting_batch_per_device
    assert smallest <= fitting <= largest
    verdict = f"{fitting} images per device fit (batch_size={DEVICES * fitting})"
    assert (verdict in report(check)[1]) == (not fits)


def test_report_says_that_not_one_image_fits(tiny, without_compiler, monkeypatch):
    refused = Program(False, OUT_OF_MEMORY, True, required_bytes=100 * GIB)
    monkeypatch.setattr(_FakePrograms, "train", lambda *arguments: refused)
    check = tiny.check("v3:2x2", DEVICES * 4, search=True)
    assert check.fitting_batch_per_device == 0
    assert report(check)[1].endswith("not even 1 image fits on a device")


def test_check_copies_a_task_with_other_constructor_arguments(tiny, without_compiler):
    config = tiny.config()

    class Scaled(type(tiny.task(config))):
        def __init__(self, config, scale):
            super().__init__(config)
            self.scale = scale

    config_of_task = tiny.config(model={"num_layers": 5})
    scaled = Scaled(config_of_task, 3.0)
    check = tpu.check(scaled, config, DEVICES, "v3:2x2")
    assert check.model_flops == tiny.check("v3:2x2", DEVICES).model_flops
    assert scaled.config is config_of_task


def test_frozen_backbone_has_no_backward_pass(tiny, without_compiler):
    frozen = tiny.check("v3:2x2", freeze="backbone")
    trained = tiny.check("v3:2x2")
    assert frozen.model_flops == pytest.approx(trained.model_flops / 3)
    # The evaluation step costs the same.
    checks = [dataclasses.replace(check, evaluation=Program(True)) for check in (frozen, trained)]
    speeds = [check.evaluation_images_per_second_estimate for check in checks]
    assert speeds[0] == pytest.approx(speeds[1])
    assert speeds[0] > 0
