"""What the JAX engine's programs are refused for. These tests run in a child process, where Keras' backend is JAX."""

import os
import subprocess
import sys

SCRIPT = """
import jax, numpy as np, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from keras_vit.tpu import compiler
from keras_vit.tpu.program import first_line
from keras_vit.tpu.jax_programs import compile_function

mesh = Mesh(np.array(compiler.topology_devices("v3:2x2")), ("data",))
x = jax.ShapeDtypeStruct((16, 128), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("data")))

dynamic = compile_function(jax.jit(lambda x: x[jnp.nonzero(x > 0)]), x)
assert not dynamic.compiles and not dynamic.out_of_memory
assert "where concrete value is expected" in first_line(dynamic.error), dynamic.error

host = compile_function(jax.jit(lambda x: jax.pure_callback(np.asarray, x, x) + 1), x)
assert host.host_operations, host

many = jax.ShapeDtypeStruct((8 * 2**16, 2**16), jnp.float32, sharding=x.sharding)
much = compile_function(jax.jit(lambda x: x @ jnp.ones((2**16, 128))), many)
assert much.out_of_memory and much.memory_bytes >= 16 * 2**30 and much.available_bytes, much

mean = compile_function(jax.jit(lambda x: x - x.mean(0), out_shardings=x.sharding), x)
assert mean.compiles and not mean.host_operations
assert mean.argument_bytes == 2 * 128 * 4 or mean.argument_bytes == 8 * 128 * 4, mean  # of one device; rows of 8
again = compile_function(jax.jit(lambda x: x - x.mean(0), out_shardings=x.sharding), x)
assert again == mean and mean.bytes_accessed > 0
assert "TPU_WORKER_HOSTNAMES" not in __import__("os").environ
print("all of it")
"""

STEPS = """
import pytest
from keras_vit import tasks, tpu
from tests.tpu.conftest import tiny_config

checks = []
for steps, micro_batches in ((1, 1), (4, 1), (4, 2)):
    config = tiny_config(steps_per_call=steps, accumulate_steps=micro_batches)
    checks.append(tpu.check(tasks.get(config), config, 32, "v5e:2x2"))
    assert checks[-1].train.steps == steps
one = checks[0]
for check in checks[1:]:
    assert check.state_bytes == one.state_bytes
    assert check.product_flops == pytest.approx(one.product_flops, rel=0.01)
    assert check.flops == pytest.approx(one.flops, rel=0.2)
print("all of it")
"""


def test_programs_of_jax_are_refused_with_the_reason(tpu_compiler, tmp_path):
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    environment.pop("TPU_WORKER_HOSTNAMES", None)
    ended = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert ended.stdout == "all of it\n", ended.stderr
    assert "compilation cache" not in ended.stderr and not list(tmp_path.iterdir())


def test_counts_are_of_one_step_however_many_an_execution_has(tpu_compiler):
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    ended = subprocess.run([sys.executable, "-c", STEPS], env=environment, capture_output=True, text=True, check=False)
    assert ended.stdout == "all of it\n", ended.stderr
