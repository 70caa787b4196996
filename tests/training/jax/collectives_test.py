"""Tests of the collectives in a training step that XLA compiles for four CPU devices."""

import math
import re

import numpy as np

from keras_vit.training.jax import state
from keras_vit.training.jax.batches import put_batch

from .. import tiny
from .engines import engine_of

BATCH = 40
# At these sizes, exchanging tokens instead of weights would be cheaper.
MODEL = {"hidden_size": 48, "mlp_dim": 96}


def _collectives(engine):
    """Returns the opcode and the output shapes of each collective in the program of a step."""
    images = np.zeros((BATCH, 4, 6, 3), "float32")
    labels = np.zeros((BATCH, 3), "float32")
    batch = put_batch(engine.mesh, (images, labels, np.ones(BATCH, "float32")))
    (stop,) = put_batch(engine.mesh, [np.zeros(engine.num_devices, "float32")])
    lowered = engine._train_steps(0).lower(engine.state, np.bool_(True), 0, 1, [batch], stop)
    pattern = r" = (.*?) (all-[a-z]+|reduce-scatter|collective-[a-z]+)(?:-start)?\("
    return [
        (opcode, _shapes(outputs))
        for outputs, opcode in re.findall(pattern, lowered.compile().as_text())
    ]


def _shapes(text):
    return [
        tuple(map(int, filter(None, sides.split(","))))
        for sides in re.findall(r"\b[a-z]+\d+\[([\d,]*)\]", text)
    ]


def test_only_sharded_weights_are_gathered(monkeypatch):
    monkeypatch.setattr(state, "MIN_SHARDED_SIZE", 64)
    options = {"precision": "mixed_bfloat16", "accumulate_steps": 2, "remat": True}
    engine = engine_of(4, tiny.input_of(), MODEL, batch_size=BATCH, shard="parameters", **options)
    collectives = _collectives(engine)
    opcodes = {opcode for opcode, _ in collectives}
    assert opcodes <= {"all-gather", "all-reduce", "reduce-scatter"}
    gathered = {
        math.prod(shape)
        for opcode, shapes in collectives
        for shape in shapes
        if opcode == "all-gather"
    }
    divided = {
        array.size for array in engine.state.weights if not array.sharding.is_fully_replicated
    }
    assert gathered == divided and len(divided) > 5
    # No collective exchanges the tokens of a batch, of a micro-batch or of a device's part of one.
    sides = {side for _, shapes in collectives for shape in shapes for side in shape}
    assert not sides & {BATCH, BATCH // 2, BATCH // 4, BATCH // 8}
