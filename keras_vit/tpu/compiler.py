"""The TPU compiler, reached through JAX without a TPU. Every private name of JAX that this project uses is here.

    python compiler.py PROGRAM TOPOLOGY HLO

compiles a StableHLO program for a device of a slice, writes the optimized HLO as text, and prints, as its last line, a
JSON object: fields of `Program`, or why there is none. `compile_program` runs it in a child process: libtpu takes
gigabytes of memory, aborts where it meets a defect, and wants variables of the environment set before it is loaded.
"""

import importlib.metadata
import json
import os
import sys
import tempfile
from pathlib import Path

# The versions that the private names were tried with; the extra `aot` of setup.cfg pins the same ones.
VERSIONS = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.51"}

# Without these, libtpu asks a metadata server for the machine's TPU, and JAX tries to use one.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v3-8",  # any; libtpu warns if there is none
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no process here uses a TPU, so several may load the library
}

# Operations that move data between the device and its host while a program runs.
HOST_OPERATIONS = ("stablehlo.infeed", "stablehlo.outfeed", "stablehlo.send", "stablehlo.recv")


def check_installed():
    """Raises an `ImportError` unless jax and libtpu are installed."""
    for name in VERSIONS:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise ImportError(
                f"Compiling for a TPU needs {name}, which is not installed: pip install "
                '"keras_vit[aot]", beside [cpu] and not beside [tpu] or [jax-tpu].',
                name=name,
            ) from None


def other_versions():
    """The packages that are not those which the private names were tried with, a text; "" if all are."""
    installed = {name: importlib.metadata.version(name) for name in VERSIONS}
    moved = [
        f"{name} is {installed[name]}, not {VERSIONS[name]}" for name in VERSIONS if installed[name] != VERSIONS[name]
    ]
    return "; ".join(moved)


def compile_program(stablehlo, topology):
    """Compiles a program for one device of a slice, in a child process.

    Args:
        stablehlo: the program, bytes, as TensorFlow serializes it.
        topology: the name of the slice.

    Returns:
        A `Program`.

    Raises:
        ImportError: jax or libtpu is missing, or another version than the private names are known of.
        ValueError: libtpu does not know the slice.
    """
    from keras_vit import files
    from keras_vit.tpu.program import compiled_program, refused_program

    check_installed()
    with tempfile.TemporaryDirectory() as folder:
        path, hlo_path = Path(folder) / "program.mlir", Path(folder) / "program.hlo"
        path.write_bytes(stablehlo)
        # -P: the names of this folder's files must not stand for modules of Python.
        try:
            result = json.loads(files.run_python(["-P", __file__, path, topology, hlo_path], **ENVIRONMENT))
        except ChildProcessError as error:
            return refused_program(f"The compiler died, for want of this machine's memory or by a defect: {error}")
        if "invalid" in result:
            raise ValueError(result["invalid"])
        if "moved" in result:
            raise ImportError(f"A private name of JAX is gone ({result['moved']}): {other_versions() or VERSIONS}")
        if "refused" in result:
            return refused_program(result["refused"])
        host_operations = tuple(result.pop("host_operations"))
        return compiled_program(hlo_path.read_text(), host_operations, **result)


def topology_devices(topology):
    """JAX's devices of a slice that need not be there, with which a function can be lowered and compiled.

    Raises:
        ValueError: libtpu does not know the slice.
    """
    import jax
    from jax.experimental import topologies

    before = dict(os.environ)
    try:
        os.environ.update(ENVIRONMENT)  # which libtpu reads when it is loaded, now at the latest
        return topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(
            f"libtpu has no such slice ({str(error).strip().splitlines()[0]}). Received: topology={topology!r}"
        ) from error
    finally:
        os.environ.clear()
        os.environ.update(before)


def compiled_numbers(executable):
    """The fields of a `Program` that an executable knows, a dict.

    Args:
        executable: what JAX's `Lowered.compile` returns, or the private executable.
    """
    if hasattr(executable, "memory_analysis"):
        memory = executable.memory_analysis()
    else:
        memory = executable.get_compiled_memory_stats()
    cost = executable.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    return {
        "argument_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "program_bytes": memory.generated_code_size_in_bytes,
        "peak_bytes": memory.peak_memory_in_bytes,
        "flops": cost["flops"],
        "bytes_accessed": cost["bytes accessed"],
    }


def optimized_hlo(executable):
    """The text of an executable's optimized HLO, for `program.compiled_program`; "" where JAX cannot read it.

    libtpu is newer than JAX: of some programs for a TPU v6e it writes instructions that JAX refuses to read, although
    they were compiled.

    Args:
        executable: what JAX's `Lowered.compile` returns, or the private executable.
    """
    import jax

    try:
        if hasattr(executable, "as_text"):
            return executable.as_text() or ""
        return "\n\n".join(module.to_string() for module in executable.hlo_modules())
    except jax.errors.JaxRuntimeError:
        return ""


def find_host_operations(module):
    """The operations of an MLIR module that exchange data with the host, a sorted list of their names."""
    from jax._src.lib.mlir import ir

    names = set()

    def visit(operation):
        name = operation.name
        if name in HOST_OPERATIONS:
            names.add(name)
        if name == "stablehlo.custom_call":
            target = ir.StringAttr(operation.attributes["call_target_name"]).value
            if "callback" in target or "host" in target.lower():
                names.add(target)
        return ir.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(visit)
    return sorted(names)


def _compile_file(path, topology, hlo_path):
    """Compiles a file; writes the optimized HLO to another. Returns what `main` prints."""
    import jax
    import numpy as np
    from jax._src.interpreters.mlir import make_ir_context
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir

    device = topology_devices(topology)[0]
    with make_ir_context():
        module = ir.Module.parse(Path(path).read_bytes())
        _remove_copies(module, ir)
    options = xla_client.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    options.device_assignment = xla_client.DeviceAssignment.create(np.array([[device.id]]))
    host_operations = find_host_operations(module)
    try:
        executable = device.client.compile(module, xla_client.DeviceList((device,)), options)
    except jax.errors.JaxRuntimeError as error:
        return {"refused": str(error)}
    Path(hlo_path).write_text(optimized_hlo(executable))
    return {**compiled_numbers(executable), "host_operations": host_operations}


def _remove_copies(module, ir):
    """Removes `mhlo.copy`, an identity that TensorFlow writes and the TPU's pipeline refuses."""
    copies = []

    def visit(operation):
        if operation.name == "mhlo.copy":
            copies.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for copy in copies:
        copy.results[0].replace_all_uses_with(copy.operands[0])
        copy.erase()


def main(path, topology, hlo_path):
    try:
        result = _compile_file(path, topology, hlo_path)
    except ValueError as error:
        result = {"invalid": str(error)}
    except (ImportError, AttributeError, TypeError) as error:
        result = {"moved": f"{type(error).__name__}: {error}"}
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
