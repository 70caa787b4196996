"""Calls the TPU compiler through JAX, without a TPU. Only this file uses private JAX APIs."""

import errno
import importlib.util
import os
import tempfile
from pathlib import Path

from keras_vit.tpu import hlo
from keras_vit.tpu.program import Program, refused_program

# The versions with which the private APIs were tested. The extra `aot` in setup.cfg pins jax and
# libtpu to them.
VERSIONS = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.51"}

# Without these variables, libtpu queries a metadata server, and JAX tries to use a TPU.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v3-8",  # unused, but libtpu warns if it is not set
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # safe, because no process uses a TPU device
}
_HLO_FILE = ".after_optimizations.txt"
_MOST_ARRAYS = 50  # maximum length of `Program.traffic`


def check_installed():
    """Raises an `ImportError` unless jax, jaxlib and libtpu are installed."""
    for name in VERSIONS:
        if importlib.util.find_spec(name) is None:
            raise ImportError(
                f"Compiling for a TPU requires {name}, which is not installed: pip install "
                '"keras_vit[aot]", which works with [cpu] but not with [tpu] or [jax-tpu].',
                name=name,
            )


def topology_devices(topology, chip_config="default"):
    """Returns the JAX devices of a slice, for which functions can be lowered and compiled but not
    run."""
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT)  # read when JAX and libtpu are first loaded
    try:
        import jax
        from jax.experimental import topologies

        return topologies.get_topology_desc(
            platform="tpu", topology_name=topology, chip_config_name=chip_config
        ).devices
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(
            f"`topology` must be a slice known to libtpu ({str(error).splitlines()[0]}). Received: "
            f"topology={topology}"
        ) from error
    finally:
        os.environ.clear()
        os.environ.update(before)


def compile_stablehlo(stablehlo, topology):
    """Compiles serialized StableHLO for one device of a slice and returns its `Program`."""
    device = topology_devices(topology)[0]
    import numpy as np
    from jax._src.interpreters.mlir import make_ir_context
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir

    # Parse the module and remove ops that the TPU compiler rejects.
    with make_ir_context():
        module = ir.Module.parse(stablehlo)
        _remove_copies(module, ir)
    # Compile for a single replica and partition.
    options = xla_client.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    options.device_assignment = xla_client.DeviceAssignment.create(np.array([[device.id]]))

    def compile_with(dump_options):
        options.env_option_overrides = list(dump_options.items())
        return device.client.compile(module, xla_client.DeviceList((device,)), options)

    return program_of(compile_with)


def program_of(compile_with, steps=1):
    """Calls `compile_with(options)` and returns the `Program`, which runs `steps` steps per
    execution."""
    import jax

    with tempfile.TemporaryDirectory() as folder:
        options = {
            "xla_dump_to": folder,
            "xla_dump_hlo_as_text": True,
            "xla_dump_hlo_module_re": ".*",
        }
        try:
            executable = compile_with(options)
        except jax.errors.JaxRuntimeError as error:
            return refused_program(error)
        traffic = hlo.traffic(dumped_hlo(folder), steps)
    return Program(
        True,
        steps=steps,
        bytes_accessed=float(sum(size for _, size in traffic)),
        traffic=tuple(traffic[:_MOST_ARRAYS]),
        **_numbers(executable),
    )


def dumped_hlo(folder):
    """Reads the optimized HLO from the compiler's dump folder."""
    paths = sorted(Path(folder).glob(f"*{_HLO_FILE}"), key=lambda path: path.stat().st_size)
    if not paths:
        raise ImportError(f"libtpu did not write a file *{_HLO_FILE}; check the variable XLA_FLAGS")
    text = paths[-1].read_text()
    if not text.rstrip().endswith("\n}"):
        raise OSError(
            errno.ENOSPC,
            "the compiler's dump is truncated; set TMPDIR to another folder",
            str(folder),
        )
    return text


def _numbers(executable):
    """Returns the memory sizes and FLOPs of a JAX executable, from its public or its private
    API."""
    is_public = hasattr(executable, "memory_analysis")
    memory = executable.memory_analysis() if is_public else executable.get_compiled_memory_stats()
    # Outputs that do not reuse the memory of an argument.
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return {
        "argument_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes + max(outputs, 0),
        "program_bytes": memory.generated_code_size_in_bytes,
        "flops": executable.cost_analysis().get("flops", 0.0),
    }


def _remove_copies(module, ir):
    """Removes `mhlo.copy`, an identity op that TensorFlow emits and the TPU compiler rejects."""
    copies = []

    def visit(operation):
        if operation.name == "mhlo.copy":
            copies.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for copy in copies:
        copy.results[0].replace_all_uses_with(copy.operands[0])
        copy.erase()
