"""Compiles JAX programs for a TPU and checks their errors and costs. Runs with the JAX backend."""

import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from keras_vit.terminal import first_line
from keras_vit.tpu import compiler
from keras_vit.tpu.jax_programs import compile_function
from keras_vit.tpu.topologies import get_topology


def check_devices():
    for name in ("v4:2x2x1", "v5p:2x2x1"):
        topology = get_topology(name, "jax")
        devices = compiler.topology_devices(name, topology.device.chip_config)
        assert len(devices) == topology.num_devices == 4, name
        assert devices[0].device_kind == topology.device.kind, name


def check_dynamic_shape(x):
    program = compile_function(jax.jit(lambda x: x[jnp.nonzero(x > 0)]), x)
    assert not program.compiles
    assert not program.out_of_memory
    assert "where concrete value is expected" in first_line(program.error), program.error


def check_out_of_memory(sharding):
    x = jax.ShapeDtypeStruct((8 * 2**16, 2**16), jnp.float32, sharding=sharding)
    program = compile_function(jax.jit(lambda x: x @ jnp.ones((2**16, 128))), x)
    assert program.out_of_memory, program
    assert program.memory_bytes >= 16 * 2**30, program


def check_costs(x):
    def subtract_mean(x):
        return x - x.mean(0)

    program = compile_function(jax.jit(subtract_mean, out_shardings=x.sharding), x)
    assert program.compiles, program
    # Each of the 8 devices has 2 of the 16 rows, which the compiler may pad to 8.
    assert program.argument_bytes in (2 * 128 * 4, 8 * 128 * 4), program
    assert program.bytes_accessed > 0
    again = compile_function(jax.jit(subtract_mean, out_shardings=x.sharding), x)
    assert again == program


mesh = Mesh(np.array(compiler.topology_devices("v3:2x2")), ("data",))
sharding = NamedSharding(mesh, PartitionSpec("data"))
array = jax.ShapeDtypeStruct((16, 128), jnp.float32, sharding=sharding)
check_devices()
check_dynamic_shape(array)
check_out_of_memory(sharding)
check_costs(array)
assert "TPU_WORKER_HOSTNAMES" not in os.environ
print("all checks passed")
