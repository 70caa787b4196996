"""What devices exchange in a step, by the program that the compiler makes for four CPUs; see tests/tpu too."""

import math

import numpy as np

from keras_vit.tpu import counts, hlo
from keras_vit.training.jax import state
from keras_vit.training.jax.batches import put_batch

BATCH = 40


def _exchanges(engine):
    """What `counts.exchanges` finds in the program of a step: opcodes, operands and outputs."""
    images, labels = np.zeros((BATCH, 4, 6, 3), "float32"), np.zeros((BATCH, 3), "float32")
    batch = put_batch(engine.mesh, (images, labels, np.ones(BATCH, "float32")))
    (stop,) = put_batch(engine.mesh, [np.zeros(engine.num_devices, "float32")])
    lowered = engine._train_steps.lower(engine.state, np.bool_(True), 0, 1, [batch], stop)
    return [exchange[1:] for exchange in counts.exchanges(hlo.parse(lowered.compile().as_text()))]


def test_divided_weights_are_gathered_and_no_images_or_tokens(tiny, jax_engines, monkeypatch):
    monkeypatch.setattr(state, "MIN_SHARDED_SIZE", 64)
    options = {"precision": "mixed_bfloat16", "accumulate_steps": 2, "remat": True}
    model = {"hidden_size": 48, "mlp_dim": 96}  # so many that to exchange tokens is less
    engine = jax_engines.engine_of(4, tiny.input_of(), model, batch_size=BATCH, shard="parameters", **options)
    exchanges = _exchanges(engine)
    assert {opcode for opcode, _, _ in exchanges} <= {"all-gather", "all-reduce", "reduce-scatter"}
    gathered = {
        math.prod(array.shape) for opcode, _, outputs in exchanges if opcode == "all-gather" for array in outputs
    }
    divided = {array.size for array in engine.state.weights if not array.sharding.is_fully_replicated}
    assert gathered == divided and len(divided) > 5
    for _, operands, outputs in exchanges:
        for array in [*operands, *outputs]:
            assert not {BATCH, BATCH // 2, BATCH // 4, BATCH // 8} & set(array.shape), array
