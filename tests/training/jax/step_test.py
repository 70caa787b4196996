"""Tests of the JAX training step: devices, sharding, micro-batches, dropout, nonfinite steps and
loss scaling."""

import jax
import numpy as np
import pytest

from keras_vit import tasks
from keras_vit.training.jax import state as state_module

from ...shared import assert_same_arrays
from .engines import arrays_of, config_of, engine_of, train

GRAD_NORM = 2  # column of the metrics
DROPOUT = {"dropout": 0.3, "attention_dropout": 0.2, "stochastic_depth": 0.3}


@pytest.fixture(autouse=True)
def shard_small_arrays(monkeypatch):
    monkeypatch.setattr(state_module, "MIN_SHARDED_SIZE", 1)


def _assert_close(ours, theirs):
    assert sorted(ours) == sorted(theirs)
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], atol=1e-5, rtol=0, err_msg=name)


@pytest.fixture(scope="module")
def alone():
    """Trains with dropout on one device. Returns the metrics and the arrays."""
    engine = engine_of(model=DROPOUT)
    rows, outputs = train(engine)
    assert (rows[:, GRAD_NORM] > 1.5).sum() >= 2, "at least two steps must be clipped"
    assert outputs.can_continue and not outputs.stop_requested and outputs.input_wait > 0
    assert outputs.peak_memory > 1e6
    return rows, arrays_of(engine)


@pytest.mark.parametrize(
    "shard",
    [
        "parameters",
        pytest.param("", marks=pytest.mark.slow),
        pytest.param("optimizer", marks=pytest.mark.slow),
    ],
)
def test_several_devices_match_one_device(shard, alone):
    engine = engine_of(4, model=DROPOUT, shard=shard)
    rows, _ = train(engine)
    np.testing.assert_allclose(rows, alone[0], rtol=1e-5, atol=1e-6)
    _assert_close(arrays_of(engine), alone[1])


@pytest.mark.parametrize(
    ("devices", "shard", "divided_fields"),
    [
        (4, "parameters", ("weights", "slots", "averages")),
        (4, "optimizer", ("slots", "averages")),
        (4, "", ()),
        (1, "parameters", ()),
    ],
)
def test_shard_divides_arrays_equally(devices, shard, divided_fields):
    state = engine_of(devices, shard=shard).state
    divisible = sum(any(side % 4 == 0 for side in weight.shape) for weight in state.weights)
    for field, arrays in vars(state).items():
        sizes = [(array.addressable_shards[0].data.size, array.size) for array in arrays]
        divided = sum(part == size // devices < size for part, size in sizes)
        assert divided == (divisible if field in divided_fields else 0), field


def test_execution_options_do_not_change_results():
    plain = engine_of()
    rows, _ = train(plain)
    changes = {"accumulate_steps": 2, "steps_per_call": 3, "remat": True, "shard": "parameters"}
    other = engine_of(2, **changes)
    other_rows, _ = train(other, steps_per_call=4)
    np.testing.assert_allclose(other_rows, rows, rtol=1e-5, atol=1e-6)
    _assert_close(arrays_of(other), arrays_of(plain))
    assert other.evaluate() == pytest.approx(plain.evaluate(), rel=1e-5)


def test_dropout_masks_are_unique_and_reproducible():
    seen = []

    class Recording(tasks.Classification):
        def losses_and_metrics(self, model, batch, training=False):
            # All images are equal, so only dropout masks can make logits differ.
            logits = model(jax.numpy.ones_like(batch[0]), training=training)
            jax.debug.callback(lambda values: seen.append(np.asarray(values)), logits)
            return super().losses_and_metrics(model, batch, training)

    changes = {"model": {**DROPOUT, "num_layers": 2}, "accumulate_steps": 2}
    changes["schedule"] = {"decay": "constant", "base": 1e-12}  # the weights stay the same
    task = Recording(config_of(**changes))
    engine = engine_of(task=task, **changes)
    for step in (3, 4, 3):
        engine.train(step, 1)
        jax.effects_barrier()
    first, other, again = (np.concatenate(seen[i : i + 2]) for i in (0, 2, 4))
    np.testing.assert_allclose(first, again, atol=1e-6)
    assert len(np.unique(np.round([*first, *other], 4), axis=0)) == 16  # images of two steps


def _make_bias_infinite(model):
    model.head.bias.assign([np.inf, 0, 0])


@pytest.mark.parametrize(
    ("skip", "steps"), [(False, 1), pytest.param(True, 5, marks=pytest.mark.slow)]
)
def test_nonfinite_step_changes_nothing(skip, steps):
    options = {"skip_nonfinite": skip, "steps_per_call": 4}
    engine = engine_of(2, load=_make_bias_infinite, **options)
    before = arrays_of(engine)
    rows, outputs = train(engine)
    assert_same_arrays(arrays_of(engine), before)
    assert engine.state.slots[0] == 0  # the number of updates
    assert outputs.can_continue == skip and len(rows) == steps
    assert not np.isfinite(rows[:, 0]).any()


def test_nonfinite_weights_are_named_and_not_saved(tmp_path):
    engine = engine_of(2, load=_make_bias_infinite)
    assert engine.diagnose(0) == "the weights of layer 'head' are not finite"
    with pytest.raises(ValueError, match="The weights are not finite"):
        engine.save(str(tmp_path / "state"))
    assert not list(tmp_path.iterdir())


def test_float16_lowers_its_loss_scale(monkeypatch):
    overflowing_scale = 2.0**18
    monkeypatch.setattr(state_module, "INITIAL_LOSS_SCALE", overflowing_scale)
    options = {"precision": "mixed_float16", "clip_norm": 0.0, "ema_decay": 0.0}
    engine = engine_of(2, **options)
    rows, outputs = train(engine, steps=12)
    finite = np.isfinite(rows[:, GRAD_NORM])
    first = finite.argmax()
    assert first > 2 and finite[first:].all()
    assert np.isfinite(rows[:, 0]).all() and outputs.can_continue
    scaling = [float(value) for value in engine.state.scaling]
    assert scaling == [overflowing_scale / 2**first, 12 - first]
    assert engine.state.slots[0] == 12 - first  # the number of updates
