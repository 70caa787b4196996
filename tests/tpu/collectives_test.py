"""What the devices of a slice exchange in a training step of the JAX engine, by the compiled program.

These tests run in a child process, where Keras' backend is JAX.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = """
import json, sys
from tests.tpu.conftest import tiny_config
from keras_vit import tasks, tpu

topology, shard = sys.argv[1:]
# Kernels of the MLP, the projections and the patches have enough numbers to be divided.
config = tiny_config({"hidden_size": 256, "mlp_dim": 512}, batch_size=64, shard=shard)
check = tpu.check(tasks.get(config), config, 64, topology)
print(json.dumps(check.to_dict()))
"""

# Of each layout, a step of two micro-batches of 72 images: what `counts.exchanges` finds in it, the operations outside
# of the loop over micro-batches, and the shapes of the weights that are divided.
EXCHANGES = """
import json, math
from tests.tpu.conftest import tiny_config
from keras_vit import tasks
from keras_vit.tpu import counts, hlo, inputs, jax_programs, topologies
from keras_vit.tpu.programs import dtype_policy

jax_programs.compiled_program = lambda text, *rest, **numbers: hlo.parse(text)
options = {"optimizer": {"name": "sgd"}, "clip_norm": 0.0, "ema_decay": 0.0, "remat": True}
shapes, topology = inputs.InputShapes((8, 8, 3), 10), topologies.get_topology("v5e:2x4")
layouts = {}
for shard in ("optimizer", "parameters"):
    model = {"hidden_size": 256, "mlp_dim": 512, "num_heads": 8}  # which 8 devices can divide
    config = tiny_config(model, batch_size=144, shard=shard, **options)
    programs = jax_programs.JaxPrograms(config, tasks.get(config), shapes, topology, 20)
    with dtype_policy(config.precision):
        module = programs.train(144, 2)
    weights = programs.model.trainable_variables
    layouts[shard] = {
        "exchanges": [
            (opcode, [array.shape for array in operands], [array.shape for array in outputs])
            for _, opcode, operands, outputs in counts.exchanges(module)
        ],
        "outside": [line.opcode for line in module.computations[module.entry].values()],
        "divided": [weight.shape for weight in weights if math.prod(weight.shape) >= 2**16],
    }
print(json.dumps(layouts))
"""


@pytest.fixture(scope="module")
def layouts(tpu_compiler):
    """What `EXCHANGES` prints."""
    return _run(EXCHANGES)


def _run(script, *arguments):
    """What a script prints in the last line, from JSON."""
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    ended = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment, cwd=Path(__file__).parent.parent.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def _sizes(shapes):
    return sorted(math.prod(shape) for shape in shapes)


def _bytes(check, step="train"):
    return {opcode: size for opcode, _, size in check[step]["collectives"]}


@pytest.mark.parametrize("shard", ["parameters", "optimizer"])
def test_parts_of_gradients_are_summed_and_weights_gathered(shard, layouts):
    divided, exchanges = _sizes(layouts[shard]["divided"]), layouts[shard]["exchanges"]
    assert len(divided) == 6
    # Each device sums its parts of the gradients alone: no sum has the numbers of a divided weight.
    scattered = [shape for opcode, operands, _ in exchanges if opcode == "reduce-scatter" for shape in operands]
    assert _sizes(scattered) == divided
    summed = [shape for opcode, operands, _ in exchanges if opcode == "all-reduce" for shape in operands]
    assert max(_sizes(summed)) < min(divided)
    # Divided weights are gathered for both computations of a block, whole ones after their update.
    gathered = [shape for opcode, _, outputs in exchanges if opcode == "all-gather" for shape in outputs]
    assert _sizes(gathered) == (sorted(2 * divided) if shard == "parameters" else divided)
    assert any("all-gather" in opcode for opcode in layouts[shard]["outside"]) == (shard == "optimizer")
    # Nothing else is exchanged, and no images or tokens.
    assert {opcode for opcode, _, _ in exchanges} == {"all-gather", "all-reduce", "reduce-scatter"}
    sides = {side for _, operands, outputs in exchanges for shape in [*operands, *outputs] for side in shape}
    assert not sides & {144, 72, 18, 9}


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["v3:2x2", "v5e:2x4"])
def test_what_devices_exchange_is_what_each_layout_needs(topology, tpu_compiler):
    whole, optimizer, parameters = (_run(CHECK, topology, shard) for shard in ("", "optimizer", "parameters"))
    assert whole["fits"] and optimizer["fits"] and parameters["fits"]
    gradients = whole["all_reduce_bytes"]

    # Whole weights: the gradients once. Those of kernels are summed in bfloat16, as they come out of their products.
    assert set(_bytes(whole)) == {"all-reduce"}
    assert 0.5 * gradients <= _bytes(whole)["all-reduce"] < 0.6 * gradients

    # A divided optimizer: the same sum, most of it in parts, and the new weights once, float32, as far as they are
    # divided.
    # For a v3 the compiler makes an all-reduce of every reduce-scatter, of `jax.lax.psum_scatter` too.
    sums = {"all-reduce"} if topology == "v3:2x2" else {"all-reduce", "reduce-scatter"}
    assert set(_bytes(optimizer)) == {*sums, "all-gather"}
    assert sum(_bytes(optimizer)[opcode] for opcode in sums) == pytest.approx(_bytes(whole)["all-reduce"], rel=0.01)
    assert topology == "v3:2x2" or _bytes(optimizer)["all-reduce"] < 0.1 * gradients
    assert 0.9 * gradients < _bytes(optimizer)["all-gather"] < gradients

    # Divided weights: the same sums, and they are gathered where they are used, in bfloat16, in the evaluation too.
    assert set(_bytes(parameters)) == set(_bytes(optimizer))
    for opcode in sums:
        assert _bytes(parameters)[opcode] == pytest.approx(_bytes(optimizer)[opcode], rel=0.01)
    assert _bytes(parameters)["all-gather"] == _bytes(optimizer)["all-gather"] / 2
    assert _bytes(parameters, "evaluation")["all-gather"] == _bytes(parameters)["all-gather"]

    # Evaluation of whole weights sums its metrics; what is divided takes less memory.
    for check_of_whole_weights in (whole, optimizer):
        assert set(_bytes(check_of_whole_weights, "evaluation")) == {"all-reduce"}
        assert _bytes(check_of_whole_weights, "evaluation")["all-reduce"] < 100
    assert whole["state_bytes"] > 2 * optimizer["state_bytes"] > 4 * parameters["state_bytes"]
