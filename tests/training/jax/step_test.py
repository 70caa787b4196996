"""Tests of the JAX training step: devices, sharding, micro-batches, dropout, nonfinite steps and
loss scaling."""

import jax
import numpy as np
import pytest

from keras_vit import tasks
from keras_vit.training import update
from keras_vit.training.jax import state as state_module

DROPOUT = {"dropout": 0.3, "attention_dropout": 0.2, "stochastic_depth": 0.3}
ADAMW = {
    "optimizer": {"name": "adamw", "weight_decay": 0.1},
    "schedule": {"decay": "constant", "base": 1e-3},
}


@pytest.fixture(autouse=True)
def shard_small_arrays(monkeypatch):
    monkeypatch.setattr(state_module, "MIN_SHARDED_SIZE", 1)


def _assert_same(ours, theirs, atol=1e-5):
    for name, array in ours.items():
        # In exact arithmetic, key biases have zero gradients. Adam turns the rounding errors into
        # steps.
        allowed = 1e-3 if "key/bias" in name else atol
        np.testing.assert_allclose(array, theirs[name], atol=allowed, rtol=0, err_msg=name)


@pytest.fixture(scope="module")
def alone(tiny, jax_engines):
    """Trains with dropout on one device. Returns the metrics and the arrays."""
    engine = jax_engines.engine_of(1, tiny.input_of(), model=DROPOUT, **ADAMW)
    rows, outputs = jax_engines.train(engine)
    assert (rows[:, 2] > 1.5).sum() >= 2, "at least two steps must be clipped"
    assert outputs.can_continue and not outputs.stop_requested and outputs.input_wait > 0
    assert outputs.peak_memory > 1e6
    return rows, jax_engines.arrays_of(engine)


@pytest.mark.parametrize(
    ("devices", "shard"),
    [
        (4, "parameters"),
        pytest.param(4, "", marks=pytest.mark.slow),
        pytest.param(4, "optimizer", marks=pytest.mark.slow),
    ],
)
def test_several_devices_match_one_device(devices, shard, alone, tiny, jax_engines):
    engine = jax_engines.engine_of(devices, tiny.input_of(), model=DROPOUT, shard=shard, **ADAMW)
    rows, _ = jax_engines.train(engine)
    np.testing.assert_allclose(rows, alone[0], rtol=1e-5, atol=1e-6)
    _assert_same(jax_engines.arrays_of(engine), alone[1])
    weights, slots, averages = (
        [array for array in arrays if not array.sharding.is_fully_replicated]
        for arrays in (engine.state.weights, engine.state.slots, engine.state.averages)
    )
    assert (len(weights) > 10) == (shard == "parameters")
    assert (len(slots) > 20) == (len(averages) > 10) == bool(shard)
    for array in (*weights, *slots):
        assert array.addressable_shards[0].data.size == array.size // devices


def test_execution_options_do_not_change_results(tiny, jax_engines):
    plain = jax_engines.engine_of(1, tiny.input_of())
    rows, _ = jax_engines.train(plain)
    moved = [
        np.abs(np.asarray(a) - b).max()
        for a, b in zip(plain.state.weights, jax_engines.initial_weights())
    ]
    assert sum(distance > 1e-4 for distance in moved) > 15
    changes = {"accumulate_steps": 2, "steps_per_call": 3, "remat": True, "shard": "parameters"}
    other = jax_engines.engine_of(2, tiny.input_of(), **changes)
    other_rows, _ = jax_engines.train(other, steps_per_call=4)
    np.testing.assert_allclose(other_rows, rows, rtol=1e-5, atol=1e-6)
    _assert_same(jax_engines.arrays_of(other), jax_engines.arrays_of(plain))
    assert other.evaluate() == pytest.approx(plain.evaluate(), rel=1e-5)


def test_dropout_masks_are_unique_and_reproducible(tiny, jax_engines):
    """All examples of the batch are equal, so only dropout masks can make outputs differ."""
    seen = []

    class Recording(tasks.Classification):
        def losses_and_metrics(self, model, batch, training=False):
            images = batch[0] * 0.0 + jax.numpy.linspace(-1.0, 1.0, batch[0][0].size).reshape(
                batch[0][0].shape
            )
            logits = model(images, training=training)
            if training:
                jax.debug.callback(lambda values: seen.append(np.asarray(values)), logits)
            return super().losses_and_metrics(model, (images, *batch[1:]), training)

    changes = {"model": {**DROPOUT, "num_layers": 2}, "accumulate_steps": 2, "ema_decay": 0.0}
    changes["schedule"] = {"decay": "constant", "base": 1e-12}
    config = jax_engines.config_of(**changes)
    engine = jax_engines.engine_of(1, tiny.input_of(), task=Recording(config), **changes)
    for step in (3, 4, 3):
        engine.train(step, 1)
        jax.effects_barrier()
    first, other, again = (np.concatenate(seen[i : i + 2]) for i in (0, 2, 4))
    np.testing.assert_allclose(first, again, atol=1e-6)
    assert len(np.unique(np.round(np.concatenate([first, other]), 4), axis=0)) == 16


def test_shard_replicates_all_arrays_on_one_device(tiny, jax_engines):
    engine = jax_engines.engine_of(1, tiny.input_of(), shard="parameters")
    assert all(array.sharding.is_fully_replicated for array in jax.tree.leaves(engine.state))
    assert jax_engines.train(engine, steps=1)[1].can_continue


@pytest.mark.parametrize("skip", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_nonfinite_step_changes_nothing(skip, tiny, jax_engines, tmp_path):
    weights = [*jax_engines.initial_weights()[:-1], np.array([np.inf, 0, 0], "float32")]
    engine = jax_engines.engine_of(
        2, tiny.input_of(), weights=weights, skip_nonfinite=skip, steps_per_call=4
    )
    before = jax_engines.arrays_of(engine)
    rows, outputs = jax_engines.train(engine)
    for name, array in jax_engines.arrays_of(engine).items():
        np.testing.assert_array_equal(array, before[name])
    assert [int(slot) for slot in engine.state.slots if slot.ndim == 0] == [0]
    assert outputs.can_continue == skip and len(rows) == (5 if skip else 1)
    assert not np.isfinite(rows[:, 0]).any()
    assert engine.diagnose(0) == "the weights of layer 'head' are not finite"
    with pytest.raises(ValueError, match="The weights are not finite"):
        engine.save(str(tmp_path / "state"))
    assert not list(tmp_path.iterdir())


def test_float16_adapts_its_loss_scale(tiny, jax_engines, monkeypatch):
    monkeypatch.setattr(update, "LOSS_SCALE_GROWTH_STEPS", 3)
    monkeypatch.setattr(state_module, "INITIAL_LOSS_SCALE", 2.0**26)
    engine = jax_engines.engine_of(
        2, tiny.input_of(), precision="mixed_float16", clip_norm=0.0, ema_decay=0.0
    )
    rows, outputs = jax_engines.train(engine, steps=24)
    finite = np.isfinite(rows[:, 2])
    assert np.isfinite(rows[:, 0]).all() and outputs.can_continue
    first = finite.argmax()
    assert first > 2 and finite[first : first + 3].all()
    scaling = [float(value) for value in engine.state.scaling]
    assert scaling == tiny.expected_scaling(finite, exponent=26)
    assert [int(slot) for slot in engine.state.slots if slot.ndim == 0] == [finite.sum()]
