"""What the devices of a slice exchange in a training step of the JAX engine, by the compiled program.

These tests run in a child process, where Keras' backend is JAX.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import dataclasses, json, sys
from tests.tpu.conftest import tiny_config
from keras_vit import tasks, tpu

topology, shard = sys.argv[1:]
# Kernels of the MLP, the projections and the patches have enough numbers to be divided.
config = tiny_config({"hidden_size": 256, "mlp_dim": 512}, batch_size=64, shard=shard)
check = tpu.check(tasks.get(config), config, 64, topology)
print(json.dumps(check.to_dict()))
"""


@pytest.fixture(scope="module")
def check(tpu_compiler):
    """A function from a slice and `config.shard` to `Check.to_dict`."""

    def run(topology, shard):
        environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
        ended = subprocess.run(
            [sys.executable, "-c", SCRIPT, topology, shard],
            env=environment, cwd=Path(__file__).parent.parent.parent, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout.splitlines()[-1])

    return run


def _bytes(check, step="train"):
    return {opcode: size for opcode, _, size in check[step]["collectives"]}


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["v3:2x2", "v5e:2x4"])
def test_what_devices_exchange_is_what_each_layout_needs(check, topology):
    whole, optimizer, parameters = (check(topology, shard) for shard in ("", "optimizer", "parameters"))
    assert whole["fits"] and optimizer["fits"] and parameters["fits"]
    gradients = whole["all_reduce_bytes"]

    # Whole weights: the gradients once. Those of kernels are summed in bfloat16, as they come out of their products.
    assert set(_bytes(whole)) == {"all-reduce"}
    assert 0.5 * gradients <= _bytes(whole)["all-reduce"] < 0.6 * gradients

    # A divided optimizer: the same sum, and the new weights once, float32, as far as they are divided.
    assert set(_bytes(optimizer)) == {"all-reduce", "all-gather"}
    assert _bytes(optimizer)["all-reduce"] == pytest.approx(_bytes(whole)["all-reduce"], rel=0.01)
    assert 0.9 * gradients < _bytes(optimizer)["all-gather"] < gradients

    # Divided weights: they are gathered where they are used, in the evaluation too; little goes from part to part.
    assert set(_bytes(parameters)) <= {"all-reduce", "all-gather", "reduce-scatter", "all-to-all"}
    assert 0 < _bytes(parameters)["all-gather"] < gradients
    assert _bytes(parameters).get("all-to-all", 0) < 0.05 * gradients
    assert _bytes(parameters, "evaluation")["all-gather"] > 0

    # Evaluation of whole weights sums its metrics; what is divided takes less memory.
    for check_of_whole_weights in (whole, optimizer):
        assert set(_bytes(check_of_whole_weights, "evaluation")) == {"all-reduce"}
        assert _bytes(check_of_whole_weights, "evaluation")["all-reduce"] < 100
    assert whole["state_bytes"] > 2 * optimizer["state_bytes"] > 4 * parameters["state_bytes"]
