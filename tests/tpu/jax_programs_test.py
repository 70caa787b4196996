"""Tests of the compile errors and costs of JAX programs, in a child process with the JAX
backend."""

import os
import subprocess
import sys

SCRIPT = """
import jax, numpy as np, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from keras_vit.tpu import compiler
from keras_vit.terminal import first_line
from keras_vit.tpu.jax_programs import compile_function
from keras_vit.tpu.topologies import get_topology

mesh = Mesh(np.array(compiler.topology_devices("v3:2x2")), ("data",))
x = jax.ShapeDtypeStruct((16, 128), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("data")))

for name in ("v4:2x2x1", "v5p:2x2x1"):
    topology = get_topology(name, "jax")
    devices = compiler.topology_devices(name, topology.device.chip_config)
    assert len(devices) == topology.num_devices == 4 and devices[0].device_kind == topology.device.kind

dynamic = compile_function(jax.jit(lambda x: x[jnp.nonzero(x > 0)]), x)
assert not dynamic.compiles and not dynamic.out_of_memory
assert "where concrete value is expected" in first_line(dynamic.error), dynamic.error

many = jax.ShapeDtypeStruct((8 * 2**16, 2**16), jnp.float32, sharding=x.sharding)
much = compile_function(jax.jit(lambda x: x @ jnp.ones((2**16, 128))), many)
assert much.out_of_memory and much.memory_bytes >= 16 * 2**30, much

mean = compile_function(jax.jit(lambda x: x - x.mean(0), out_shardings=x.sharding), x)
assert mean.compiles
assert mean.argument_bytes == 2 * 128 * 4 or mean.argument_bytes == 8 * 128 * 4, mean  # padded to 8 rows or not
again = compile_function(jax.jit(lambda x: x - x.mean(0), out_shardings=x.sharding), x)
assert again == mean and mean.bytes_accessed > 0
assert "TPU_WORKER_HOSTNAMES" not in __import__("os").environ
print("all checks passed")
"""


def test_jax_compile_errors_and_costs(tpu_compiler, tmp_path):
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    environment |= {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    environment.pop("TPU_WORKER_HOSTNAMES", None)
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.stdout == "all checks passed\n", ended.stderr
    assert "compilation cache" not in ended.stderr
    assert not list(tmp_path.iterdir())
