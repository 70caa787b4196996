"""Tests of the collectives in a training step that XLA compiles for four CPU devices."""

import math
import re

import numpy as np

from keras_vit.training.jax import state
from keras_vit.training.jax.batches import put_batch

BATCH = 40


def _collectives(engine):
    """Returns the opcode, operand shapes and output shapes of each collective in the program of a
    step."""
    images = np.zeros((BATCH, 4, 6, 3), "float32")
    labels = np.zeros((BATCH, 3), "float32")
    batch = put_batch(engine.mesh, (images, labels, np.ones(BATCH, "float32")))
    (stop,) = put_batch(engine.mesh, [np.zeros(engine.num_devices, "float32")])
    lowered = engine._train_steps(0).lower(engine.state, np.bool_(True), 0, 1, [batch], stop)
    lines = re.findall(
        r"^ +(?:ROOT )?(%?[\w.\-]+) = (.*)", lowered.compile().as_text(), re.MULTILINE
    )
    collectives = []
    outputs = {
        name.lstrip("%"): _shapes(text.split("(", 1)[0] if text[0] != "(" else text)
        for name, text in lines
    }
    for _, text in lines:
        if match := re.search(
            r"(?<= )(all-[a-z]+|reduce-scatter|collective-[a-z]+)(?:-start)?\((.*?)\), ", text
        ):
            operands = [
                shape
                for name in re.findall(r"[\w.\-]+", match[2])
                for shape in outputs.get(name, ())
            ]
            collectives.append((match[1], operands, _shapes(text[: match.start()])))
    return collectives


def _shapes(text):
    return [
        tuple(map(int, filter(None, sides.split(","))))
        for sides in re.findall(r"\b[a-z]+\d+\[([\d,]*)\]", text)
    ]


def test_only_sharded_weights_are_gathered(tiny, jax_engines, monkeypatch):
    monkeypatch.setattr(state, "MIN_SHARDED_SIZE", 64)
    options = {"precision": "mixed_bfloat16", "accumulate_steps": 2, "remat": True}
    # At these sizes, exchanging tokens instead of weights is cheaper.
    model = {
        "hidden_size": 48,
        "mlp_dim": 96,
    }
    engine = jax_engines.engine_of(
        4, tiny.input_of(), model, batch_size=BATCH, shard="parameters", **options
    )
    collectives = _collectives(engine)
    assert {opcode for opcode, _, _ in collectives} <= {
        "all-gather",
        "all-reduce",
        "reduce-scatter",
    }
    gathered = {
        math.prod(shape)
        for opcode, _, outputs in collectives
        if opcode == "all-gather"
        for shape in outputs
    }
    divided = {
        array.size for array in engine.state.weights if not array.sharding.is_fully_replicated
    }
    assert gathered == divided and len(divided) > 5
    for _, operands, outputs in collectives:
        for shape in [*operands, *outputs]:
            assert not {BATCH, BATCH // 2, BATCH // 4, BATCH // 8} & set(shape), shape
