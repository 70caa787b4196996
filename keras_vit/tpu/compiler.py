"""The TPU compiler, reached through JAX without a TPU. Every private name of JAX that this project uses is here.

    python compiler.py PARENT PROGRAM TOPOLOGY FOLDER MACHINE_CODE

compiles a StableHLO program for a device of a slice, with the compiler's dumps in a folder, and prints a JSON object.
`compile_program` runs it in a child process: libtpu takes gigabytes of memory, aborts on its defects, and reads
environment variables when it is loaded.
"""

import ctypes
import errno
import functools
import importlib.metadata
import json
import os
import re
import signal
import sys
import tempfile
import threading
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

# Endings of the compiler's dumps, in the order in which it writes them: the memory plan, the optimized HLO, and the HLO
# again. Machine code is generated after them, in nine tenths of a compile's time.
_MEMORY_FILE = ".after_optimizations-memory-usage-report.txt"
_HLO_FILE = ".after_optimizations.txt"
_LAST_FILE = ".after_optimizations_after_buffer_assignment.txt"


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


def _versions():
    return ", ".join(f"{name} {importlib.metadata.version(name)} (known: {VERSIONS[name]})" for name in VERSIONS)


def compile_program(stablehlo, topology, machine_code=True):
    """Compiles serialized StableHLO for one device of a slice, in a child process; returns a `Program`.

    `machine_code=False` stops once memory is planned, in about a tenth of the time.
    """
    from keras_vit import files
    from keras_vit.tpu.program import compiled_program, refused_program

    check_installed()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.mlir"
        path.write_bytes(stablehlo)
        # -P: the names of this folder's files must not stand for modules of Python.
        arguments = ["-P", __file__, os.getpid(), path, topology, folder, int(machine_code)]
        try:
            result = json.loads(files.run_python(arguments, **ENVIRONMENT))
        except ChildProcessError as error:
            raise ChildProcessError(
                f"The compiler died: out of this machine's memory, or a defect ({error})"
            ) from error
        if "invalid" in result:
            raise ValueError(result["invalid"])
        if "moved" in result:
            raise ImportError(f"A private name of JAX is gone ({result['moved']}): {_versions()}")
        if "refused" in result:
            return refused_program(result["refused"])
        return compiled_program(*dumps(folder), **result)


def topology_devices(topology):
    """Returns JAX's devices of a slice, for which a function can be lowered and compiled without them."""
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
    """Returns the arguments of `program.compiled_program` from an executable of JAX, public or private."""
    is_public = hasattr(executable, "memory_analysis")
    memory = executable.memory_analysis() if is_public else executable.get_compiled_memory_stats()
    cost = executable.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return {
        "argument_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes + max(results, 0),
        "program_bytes": memory.generated_code_size_in_bytes,
        "flops": cost.get("flops", 0.0),
    }


def dump_options(folder):
    """Returns the options that make the compiler dump its stages into a folder, over any in XLA_FLAGS."""
    return {
        "xla_dump_to": str(folder),
        "xla_dump_hlo_as_text": True,
        "xla_dump_hlo_as_html": False,
        "xla_dump_hlo_as_proto": False,
        "xla_dump_hlo_module_re": ".*",
    }


def dumps(folder):
    """Returns the optimized HLO and the planned bytes of HBM from the compiler's dumps.

    The executable is not asked for its HLO: for some programs for a TPU v6e, libtpu, which is newer than JAX, writes
    instructions that JAX cannot read.
    """
    texts = []
    for end in (_HLO_FILE, _MEMORY_FILE):
        paths = sorted(Path(folder).glob(f"*{end}"), key=lambda path: path.stat().st_size)
        if not paths:
            raise ImportError(f"libtpu wrote no file *{end}; does XLA_FLAGS keep it from it? {_versions()}")
        texts.append(paths[-1].read_text())
    if not texts[0].rstrip().endswith("\n}") or not texts[1].endswith("\n"):
        raise OSError(errno.ENOSPC, "the compiler's dumps are truncated; TMPDIR names another folder", str(folder))
    total = re.search(r"Memory Space: default .*\nTotal bytes: (\d+)", texts[1])
    if not total:
        raise ImportError(f"libtpu's memory report has another format. {_versions()} Received: {texts[1][:60]!r}")
    return texts[0], int(total[1])


def end_with_parent(parent):
    """Makes the kernel kill this process when its parent, whose number `parent` is, ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, of Linux, where libtpu is
    if os.getppid() != int(parent):
        os._exit(1)


def _compile_file(path, topology, folder, machine_code):
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
    options.env_option_overrides = list(dump_options(folder).items())
    compile_ = functools.partial(device.client.compile, module, xla_client.DeviceList((device,)), options)
    try:
        return compiled_numbers(compile_()) if machine_code else _compile_until_planned(compile_, folder)
    except jax.errors.JaxRuntimeError as error:
        return {"refused": str(error)}


def _compile_until_planned(compile_, folder):
    """Compiles until memory is planned. libtpu has no option to stop there, but this process can."""
    errors = []

    def run():
        try:
            compile_()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    # A file is complete once the next one exists.
    while thread.is_alive() and not any(Path(folder).glob(f"*{_LAST_FILE}")):
        thread.join(0.1)
    if errors:
        raise errors[0]
    return {}


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


def main(parent, path, topology, folder, machine_code):
    end_with_parent(parent)
    try:
        result = _compile_file(path, topology, folder, machine_code == "1")
    except ValueError as error:
        result = {"invalid": str(error)}
    except (ImportError, AttributeError, TypeError) as error:
        result = {"moved": f"{type(error).__name__}: {error}"}
    print(json.dumps(result), flush=True)
    os._exit(0)  # also while the compiler's thread still runs


if __name__ == "__main__":
    main(*sys.argv[1:])
