"""Updates on a condition: the plain update to the bit, or none."""

import contextlib

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import optimizers

NAMES = ("embedding/kernel", "encoderblock_0/mlp_1/kernel", "head/bias")


def _optimizer(name):
    options = {"weight_decay": 0.1, "decay_mask": "kernels"} if name == "adamw" else {}
    schedule = optimizers.Schedule("cosine", 0.1, total_steps=10, warmup_steps=2)
    optimizer = optimizers.get(name, schedule, momentum_dtype="bfloat16", layer_decay=0.5, **options)
    random = np.random.default_rng(0)
    variables = []
    for path in NAMES:
        *layers, name = path.split("/")
        with contextlib.ExitStack() as stack:
            for layer in layers:
                stack.enter_context(keras.name_scope(layer))
            variables.append(keras.Variable(random.normal(size=(3, 5)), name=name))
    optimizer.build(variables)
    return optimizer, variables


def _gradients(step):
    random = np.random.default_rng(step + 1)
    return [ops.convert_to_tensor(random.normal(size=(3, 5)), "float32") for _ in NAMES]


def _compiled(optimizer, variables, guarded):
    """A function of gradients and a condition that updates, as one program."""

    def scope(condition):
        return optimizer.only_if(condition) if guarded else contextlib.nullcontext()

    if keras.backend.backend() == "jax":
        import jax

        @jax.jit
        def apply(state, gradients, trained, condition):
            with scope(condition):
                return optimizer.stateless_apply(state, gradients, trained)

        def update(gradients, condition):
            trained, state = apply(
                [v.value for v in optimizer.variables], gradients, [v.value for v in variables], condition
            )
            for variable, value in zip([*variables, *optimizer.variables], [*trained, *state]):
                variable.assign(value)

        return update
    import tensorflow as tf

    @tf.function(autograph=False)
    def update(gradients, condition):
        with scope(condition):
            optimizer.apply(gradients, variables)

    return update


def _values(optimizer, variables):
    return [
        np.asarray(ops.convert_to_numpy(ops.cast(v, "float32"))).tobytes() for v in [*variables, *optimizer.variables]
    ]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_an_update_happens_to_the_bit_or_not_at_all(name, compiled):
    def run(guarded, conditions):
        optimizer, variables = _optimizer(name)
        if compiled:
            update = _compiled(optimizer, variables, guarded)
        else:

            def update(gradients, condition):
                if not guarded:
                    return optimizer.apply(gradients)
                with optimizer.only_if(condition):
                    return optimizer.apply(gradients)

        seen, good = [], 0
        for condition in conditions:
            # A gradient that is not finite must not leak through the condition.
            gradients = _gradients(good) if condition else [g * np.nan for g in _gradients(0)]
            update(gradients, ops.convert_to_tensor(condition))
            good += condition
            seen.append(_values(optimizer, variables))
        assert int(ops.convert_to_numpy(optimizer.iterations)) == good
        return seen

    plain = run(False, [True] * 4)
    guarded = run(True, [True, True, False, True, False, False, True])
    assert guarded == [plain[i] for i in (0, 1, 1, 2, 2, 2, 3)]


def test_the_condition_ends_with_its_scope_and_belongs_to_one_optimizer():
    (first, _), (second, changed) = _optimizer("sgd"), _optimizer("sgd")
    before = _values(second, changed)
    with pytest.raises(RuntimeError), first.only_if(ops.convert_to_tensor(False)):
        second.apply(_gradients(0))
        raise RuntimeError
    first.apply(_gradients(0))
    assert _values(second, changed) != before
    assert int(ops.convert_to_numpy(first.iterations)) == int(ops.convert_to_numpy(second.iterations)) == 1


def test_what_keras_writes_by_itself_is_refused():
    optimizer = optimizers.AdamW(0.1, use_ema=True)
    with (
        pytest.raises(ValueError, match="cannot hold back Keras' `use_ema`.* Received: use_ema=True"),
        optimizer.only_if(True),
    ):
        pass


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the strategies are TensorFlow's")
@pytest.mark.parametrize("option", ["clipnorm", "global_clipnorm", "gradient_accumulation_steps"])
def test_several_replicas_are_warned_of_what_keras_does_to_each_of_them(option):
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
    with strategy.scope():
        variables = [keras.Variable([1.0, 2.0])]
        optimizer = optimizers.AdamW(0.1, **{option: 2})
        optimizer.build(variables)
    with pytest.warns(UserWarning, match=f"On 2 replicas Keras applies {option} to the gradients of each replica"):
        strategy.run(lambda: optimizer.apply([tf.ones(2)], variables))
    optimizers.AdamW(0.1, **{option: 2}).apply([tf.ones(2)], [keras.Variable([1.0, 2.0])])  # warnings are errors


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the strategies are TensorFlow's")
@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_a_condition_of_each_replica_reaches_its_update(name):
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
    with strategy.scope():
        optimizer, variables = _optimizer(name)
    optimizer._all_reduce_sum_gradients = lambda pairs: pairs
    alone, theirs = _optimizer(name)

    @tf.autograph.experimental.do_not_convert
    def replica_step(gradients, limit):
        context = tf.distribute.get_replica_context()
        norm = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(gradients[0] ** 2))
        with optimizer.only_if(norm < limit):
            optimizer.apply(gradients, variables)

    @tf.function
    def step(gradients, limit):
        strategy.run(replica_step, args=(gradients, limit))

    for number, limit in enumerate([1e9, 0.0, 1e9]):
        before = _values(optimizer, variables)
        step(_gradients(number), tf.constant(limit))
        if limit:
            alone.apply(_gradients(number))
        else:
            assert _values(optimizer, variables) == before
    for ours, other in zip([*variables, *optimizer.variables], [*theirs, *alone.variables], strict=True):
        copies = strategy.experimental_local_results(ours.value)
        for copy in copies:
            np.testing.assert_allclose(
                tf.cast(copy, "float32").numpy(), ops.convert_to_numpy(ops.cast(other, "float32")), rtol=1e-6
            )
