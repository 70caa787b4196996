"""The TPU compiler, reached through JAX without a TPU. Every private name of JAX that this project uses is here.

    python compiler.py PARENT PROGRAM TOPOLOGY FOLDER MACHINE_CODE

compiles a StableHLO program for a device of a slice, lets the compiler write what it has after each stage into a
folder, and prints, as its last line, a JSON object: arguments of `program.compiled_program`, or why there is no
program. `compile_program` runs it in a child process: libtpu takes gigabytes of memory, aborts where it meets a defect,
and wants variables of the environment set before it is loaded.
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

# The ends of the names of files that the compiler writes after its stages, in this order: what lies in the memory, the
# optimized HLO, and the same once more. Machine code is generated after them, in nine tenths of a compile's time.
_MEMORY_FILE = ".after_optimizations-memory-usage-report.txt"
_HLO_FILE = ".after_optimizations.txt"
_LAST_FILE = ".after_optimizations_after_buffer_assignment.txt"

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


def compile_program(stablehlo, topology, machine_code=True):
    """Compiles a program for one device of a slice, in a child process.

    Args:
        stablehlo: the program, bytes, as TensorFlow serializes it.
        topology: the name of the slice.
        machine_code: whether to compile to the end. If not, the compiler is stopped where the memory is planned, in
            about a tenth of the time; see `program.compiled_program` for what is not known then.

    Returns:
        A `Program`.

    Raises:
        ImportError: jax or libtpu is missing, or another version than the private names are known of.
        ValueError: libtpu does not know the slice.
        ChildProcessError: the compiler died.
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
            # Nothing is known of the program then: it must not count as one that the TPU refuses.
            raise ChildProcessError(
                f"The compiler died, for want of this machine's memory or by a defect ({error})"
            ) from error
        if "invalid" in result:
            raise ValueError(result["invalid"])
        if "moved" in result:
            raise ImportError(f"A private name of JAX is gone ({result['moved']}): {other_versions() or VERSIONS}")
        if "refused" in result:
            return refused_program(result["refused"])
        return compiled_program(*written_stages(folder), **result)


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
    """The arguments of `program.compiled_program` that an executable knows, a dict.

    Args:
        executable: what JAX's `Lowered.compile` returns, or the private executable.
    """
    if hasattr(executable, "memory_analysis"):
        memory = executable.memory_analysis()
    else:
        memory = executable.get_compiled_memory_stats()
    cost = executable.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    return {"program_bytes": memory.generated_code_size_in_bytes, "flops": cost.get("flops", 0.0)}


def write_options(folder):
    """The compiler's options with which it writes what it has after each stage into a folder; see `written_stages`."""
    return {
        "xla_dump_to": str(folder),
        # What the user may have set in XLA_FLAGS.
        "xla_dump_hlo_as_text": True,
        "xla_dump_hlo_as_html": False,
        "xla_dump_hlo_as_proto": False,
        "xla_dump_hlo_module_re": ".*",
    }


def written_stages(folder):
    """What the compiler wrote with `write_options`.

    The HLO is read here and not asked of the executable: of some programs for a TPU v6e libtpu, which is newer than
    JAX, writes instructions that JAX refuses to read. The executable's own count of memory has the small memory beside
    the units in it.

    Returns:
        The optimized HLO as text, and the bytes of the large memory that arguments, results and all else take.

    Raises:
        ImportError: they are not there, or not what they were.
        OSError: they were written in part; libtpu says nothing of a disk that is full.
    """
    texts = []
    for end in (_HLO_FILE, _MEMORY_FILE):
        paths = sorted(Path(folder).glob(f"*{end}"), key=lambda path: path.stat().st_size)
        if not paths:
            raise ImportError(f"libtpu wrote no file *{end}. {other_versions() or 'Does XLA_FLAGS keep it from it?'}")
        texts.append(paths[-1].read_text())
    if not texts[0].rstrip().endswith("\n}") or not texts[1].endswith("\n"):
        raise OSError(errno.ENOSPC, "the compiler wrote its files in part; TMPDIR names another folder", str(folder))
    total = re.search(r"Memory Space: default .*\nTotal bytes: (\d+)", texts[1])
    if not total:
        raise ImportError(f"libtpu's report of the memory is new. {other_versions()} Received: {texts[1][:60]!r}")
    return texts[0], int(total[1])


def end_with_parent(parent):
    """Lets the kernel end this process as soon as the one that started it has ended, by whatever signal.

    Args:
        parent: the number of the process that started it, a text; if it has ended already, so does this one.
    """
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, of Linux, where libtpu is
    if os.getppid() != int(parent):
        os._exit(1)


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


def _compile_file(path, topology, folder, machine_code):
    """Compiles a file; the compiler writes its stages into a folder. Returns what `main` prints."""
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
    options.env_option_overrides = list(write_options(folder).items())
    host_operations = find_host_operations(module)
    compile_ = functools.partial(device.client.compile, module, xla_client.DeviceList((device,)), options)
    try:
        if machine_code:
            numbers = compiled_numbers(compile_())
        else:
            numbers = {}
            _compile_until_planned(compile_, folder)
    except jax.errors.JaxRuntimeError as error:
        return {"refused": str(error)}
    return {**numbers, "host_operations": host_operations}


def _compile_until_planned(compile_, folder):
    """Compiles until the memory is planned; libtpu has no option to end there, but this process will.

    Args:
        compile_: a function without arguments.
        folder: into which it writes its stages.
    """
    errors = []

    def run():
        try:
            compile_()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    # A file is whole as soon as the next one is there.
    while thread.is_alive() and not any(Path(folder).glob(f"*{_LAST_FILE}")):
        thread.join(0.1)
    if errors:
        raise errors[0]


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
    os._exit(0)  # also while a thread of the compiler goes on


if __name__ == "__main__":
    main(*sys.argv[1:])
