"""Tests of TensorFlow's training steps."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.training import update
from keras_vit.training.tensorflow.batches import distributed_batches
from keras_vit.training.tensorflow.step import make_train_steps

CLIP = 1.5
OPTIONS = {"clip_norm": CLIP, "ema_decay": 0.75}


RATES = {"sgd": 0.1, "adamw": 1e-4}


def _assert_same(ours, theirs, atol=1e-5):
    """Compares two results of `tiny.train`."""
    (state, rows, _), (other, other_rows, _) = ours, theirs
    np.testing.assert_allclose(rows, other_rows, rtol=1e-5, atol=1e-6)
    weights = state.model.trainable_variables
    for values, expected in (
        (weights, other.model.trainable_variables),
        (state.variables.averages, other.variables.averages),
    ):
        for weight, value, expected_value in zip(weights, values, expected):
            # In exact arithmetic, key biases have zero gradients. Adam turns the rounding errors
            # into steps.
            close = {"atol": 1e-3 if "key/bias" in weight.path else atol, "err_msg": weight.path}
            np.testing.assert_allclose(value.numpy(), expected_value.numpy(), **close)


@pytest.fixture(scope="module")
def alone(tiny):
    """Trains on one replica with each optimizer. Returns the results by optimizer name."""
    results = {
        name: tiny.train(1, optimizer=name, rate=rate, options=OPTIONS)
        for name, rate in RATES.items()
    }
    assert all((rows[:, 2] > CLIP).sum() >= 2 for _, rows, _ in results.values()), (
        "at least two steps must be clipped"
    )
    return results


@pytest.mark.parametrize(
    ("optimizer", "replicas", "parts"), [("sgd", 1, 4), ("adamw", 2, 2), ("adamw", 4, 1)]
)
def test_replicas_and_micro_batches_do_not_change_results(optimizer, replicas, parts, alone, tiny):
    options = {**OPTIONS, "accumulate_steps": parts}
    result = tiny.train(replicas, optimizer=optimizer, rate=RATES[optimizer], options=options)
    _assert_same(result, alone[optimizer])


def test_weights_move_and_averages_follow(alone, tiny):
    state, rows, outputs = alone["sgd"]
    assert (
        rows.shape == (5, 4)
        and outputs["running"].numpy().all()
        and not outputs["stop_requested"].numpy()
    )
    assert outputs["input_wait"].numpy() > 0
    before = tiny.new_state(tiny.strategy_of(1))
    for variable, first, average in zip(
        state.model.trainable_variables, before.model.trainable_variables, state.variables.averages
    ):
        moved = variable.numpy() - first.numpy()
        if not variable.path.endswith("key/bias"):
            assert np.abs(moved).max() > 1e-4
            assert 0 < np.abs(average.numpy() - first.numpy()).max() < np.abs(moved).max()


def test_steps_per_call_is_bit_exact(tiny):
    arguments = {"options": {**OPTIONS, "accumulate_steps": 2}, "dropout": 0.3}
    together = tiny.train(2, **arguments)
    apart = tiny.train(2, steps_per_call=2, **arguments)
    np.testing.assert_array_equal(together[1], apart[1])
    for name, weight in tiny.weights_of(together[0]).items():
        np.testing.assert_array_equal(weight, tiny.weights_of(apart[0])[name])


@pytest.mark.parametrize(
    "dropped", [{"dropout": 0.3, "attention_dropout": 0.3}, {"stochastic_depth": 0.6}]
)
def test_dropout_masks_are_unique_and_reproducible(dropped, tiny):
    from keras_vit.training.tensorflow.gradients import make_replica_gradients

    strategy = tiny.strategy_of(2)
    model = tiny.new_state(strategy, num_layers=3, **dropped).model
    # All examples of the batch are equal, so only dropout masks can make outputs differ.
    image = np.random.default_rng(0).normal(size=(1, 4, 6, 3)).astype("float32")
    seen = []
    task = tiny.classification(batch_size=8, accumulate_steps=2)
    cross_entropy = task.loss

    def recording(labels, logits):
        zero = tf.py_function(
            lambda values: seen.append(values.numpy()) or 0.0,
            [tf.stop_gradient(logits)],
            tf.float32,
        )
        return cross_entropy(labels, logits) + tf.ensure_shape(zero, ())

    task.loss = recording
    compute = make_replica_gradients(strategy, model, task, task.config)
    parts = (
        np.tile(image, (4, 1, 1, 1)),
        np.eye(3, dtype="float32")[[0] * 4],
        np.ones(4, "float32"),
    )

    @tf.function
    def gradients(step):
        return strategy.run(compute, args=(step, [tf.constant(part) for part in parts]))

    for step in (3, 4, 3):
        gradients(tf.constant(step))
    first, other, again = (
        np.array(sorted(map(np.ravel, seen[i : i + 4]), key=tuple)) for i in (0, 4, 8)
    )
    np.testing.assert_array_equal(first, again)
    distinct = np.unique(np.round(np.concatenate([first, other]), 5), axis=0)
    assert len(distinct) == 8  # two steps, two replicas, two micro-batches


def test_every_draw_has_a_unique_seed(tiny):
    """Seeds differ between draws, micro-batches, steps and replicas."""
    from keras_vit.layers.dropout import current_seeds
    from keras_vit.training.tensorflow.gradients import make_replica_gradients

    strategy = tiny.strategy_of(2)
    model = tiny.new_state(strategy).model
    seeds = []

    class FiveDraws(type(tiny.classification())):
        def losses_and_metrics(self, model, batch, training=False):
            drawn = tf.stack([current_seeds().next() for _ in range(5)])
            recorded = tf.py_function(
                lambda values: seeds.extend(values.numpy()) or 0.0, [drawn], tf.float32
            )
            losses, metrics = super().losses_and_metrics(model, batch, training)
            return losses + tf.ensure_shape(recorded, ()), metrics

    task = FiveDraws(tiny.classification(batch_size=8, accumulate_steps=4).config)
    compute = make_replica_gradients(strategy, model, task, task.config)
    parts = [tf.zeros((4, 4, 6, 3)), tf.one_hot([0] * 4, 3), tf.ones(4)]

    @tf.function
    def gradients(step):
        return strategy.run(compute, args=(step, parts))

    for step in range(3):
        gradients(tf.constant(step))
    assert len({tuple(seed) for seed in seeds}) == len(seeds) == 3 * 2 * 4 * 5


def test_remat_does_not_change_results_with_dropout(tiny):
    arguments = {"dropout": 0.3, "attention_dropout": 0.2, "stochastic_depth": 0.3, "num_layers": 2}
    arguments["options"] = {"accumulate_steps": 2}
    # Recomputed values differ by rounding errors, so the tolerance is higher.
    result = tiny.train(2, remat=True, **arguments)
    _assert_same(result, tiny.train(2, **arguments), atol=1e-4)


def test_xla_does_not_change_results_without_dropout(alone, tiny, xla):
    options = {**OPTIONS, "accumulate_steps": 2, "xla": True}
    _assert_same(tiny.train(2, options=options), alone["sgd"])


def test_nonfinite_step_changes_nothing(tiny):
    def poisoned(**arguments):
        state = tiny.new_state(tiny.strategy_of(2), averaged=True)
        state.model.get_layer("head").bias.assign([np.inf, 0, 0])
        before = tiny.weights_of(state)
        result = tiny.train(2, state=state, options={"ema_decay": 0.5, **arguments})
        for name, weight in tiny.weights_of(state).items():
            np.testing.assert_array_equal(weight, before[name])
        assert int(state.optimizer.iterations.numpy()) == 0
        return result

    _, _, outputs = poisoned()
    assert not outputs["running"].numpy().any()
    _, rows, outputs = poisoned(skip_nonfinite=True)
    assert len(rows) == 5 and outputs["running"].numpy().all() and not np.isfinite(rows[:, 0]).any()


def test_float16_adapts_its_loss_scale(tiny, monkeypatch):
    monkeypatch.setattr(update, "LOSS_SCALE_GROWTH_STEPS", 3)
    state = tiny.new_state(tiny.strategy_of(2), scaled=True, policy="mixed_float16")
    state.variables.scaling[0].assign(2.0**26)
    _, rows, outputs = tiny.train(2, state=state, steps=24)
    keras.config.set_dtype_policy("float32")
    finite = np.isfinite(rows[:, 2])
    assert np.isfinite(rows[:, 0]).all() and outputs["running"].numpy().all()
    first = finite.argmax()
    assert first > 2 and finite[first : first + 3].all()
    scaling = [value.numpy() for value in state.variables.scaling]
    assert scaling == tiny.expected_scaling(finite, exponent=26)
    assert int(state.optimizer.iterations.numpy()) == finite.sum()
    _, plain, _ = tiny.train(1, steps=int(first) + 1, rate=0.0)
    np.testing.assert_allclose(rows[first, 2], plain[first, 2], rtol=2e-2)


def test_step_graph_has_no_branches(tiny, monkeypatch):
    """Steps never wait for the host, because the graph has no conditionals and its loop calls
    `strategy.run` once."""
    strategy = tiny.strategy_of(2)
    programs = []
    run = strategy.run

    def counted(function, **options):
        programs.append(function)
        return run(function, **options)

    monkeypatch.setattr(strategy, "run", counted)
    task = tiny.classification(
        batch_size=tiny.batch, accumulate_steps=2, clip_norm=1.0, ema_decay=0.5
    )
    state = tiny.new_state(strategy, averaged=True, scaled=True)
    train_steps = make_train_steps(strategy, state, task, task.config)
    inputs = tiny.input_of()
    iterator = iter(distributed_batches(strategy, inputs, inputs.train_batches))
    graph = train_steps.get_concrete_function(
        iterator, tf.constant(0), tf.constant(3), tf.constant(0.0)
    ).graph.as_graph_def()
    assert len(programs) == 1
    operations = {node.op for node in graph.node}
    operations |= {node.op for function in graph.library.function for node in function.node_def}
    assert {"While", "StatelessWhile"} & operations
    assert not {"If", "StatelessIf", "Case", "StatelessCase"} & operations
