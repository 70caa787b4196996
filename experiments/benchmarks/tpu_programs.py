"""Compares the TPU programs of a training step of ViT in keras_vit and in Flax, without a TPU.

    pip install -e ".[cpu,jax,aot]" flax optax && python experiments/benchmarks/tpu_programs.py

All steps use the same model, batch, AdamW and clipping at 1, and are compiled by the same TPU
compiler for the same slice. keras_vit on JAX and Flax are compiled for all devices of the slice,
keras_vit on TensorFlow for one replica without the all-reduce. Each program is compiled in a
process of its own. Memory, HBM traffic and FLOPs are per device and step; the traffic is counted
in the same way in all three programs, from the optimized HLO. The estimated time is the longer of
compute and HBM time. The last columns are relative to Flax.
"""

import sys

from absl import app, flags
from vit_models import CLASSES, SIZES, train_config
from workers import Worker, serve

LIBRARIES = ("flax", "keras_vit_jax", "keras_vit_tensorflow")
MODELS = ["B/16", "L/16", "H/14"]
IMAGE_SIZE = 224
_MODELS = flags.DEFINE_list("models", MODELS, f"Some of {', '.join(MODELS)}.")
_TOPOLOGIES = flags.DEFINE_list("topologies", ["v3:2x2", "v5e:2x4"], "Slices to compile for.")
_PRECISIONS = flags.DEFINE_list("precisions", ["float32", "mixed_bfloat16"], "As in the config.")
_LIBRARIES = flags.DEFINE_list("libraries", list(LIBRARIES), f"Some of {', '.join(LIBRARIES)}.")
_BATCH = flags.DEFINE_integer("batch_size", 64, "Images per device.", lower_bound=1)
_LAYERS = flags.DEFINE_integer(
    "num_layers", None, "Number of blocks, if not that of the model.", lower_bound=1
)
_WORKER = flags.DEFINE_enum("worker", None, LIBRARIES, "Internal: compile for this library.")


def sizes_of(name):
    changes = {"num_layers": _LAYERS.value} if _LAYERS.value else {}
    return SIZES[name] | changes


def keras_vit_program(sizes, topology, precision):
    from keras_vit import tasks
    from keras_vit.tpu.estimate import programs_class
    from keras_vit.tpu.inputs import InputShapes

    batch_size = _BATCH.value * topology.num_devices
    config = train_config(batch_size, IMAGE_SIZE, sizes, steps_per_call=1, precision=precision)
    inputs = InputShapes((IMAGE_SIZE, IMAGE_SIZE, 3), CLASSES)
    programs = programs_class()(config, tasks.get(config), inputs, topology, config.total_steps)
    return programs.train(batch_size, 1)


def flax_program(sizes, topology, precision):
    import jax
    import numpy as np
    from flax_vit import ViT, make_optimizer, make_step
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from keras_vit.tpu import compiler
    from keras_vit.tpu.jax_programs import compile_function

    devices = compiler.topology_devices(topology.name, topology.device.chip_config)
    mesh = Mesh(np.array(devices), ("data",))
    model = ViT(**sizes, classes=CLASSES, dtype=precision.removeprefix("mixed_"))
    optimizer = make_optimizer()
    batch_size = _BATCH.value * topology.num_devices

    def array(shape, dtype, *axes):
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def replicated(tree):
        return jax.tree.map(lambda leaf: array(leaf.shape, leaf.dtype), tree)

    images = array((batch_size, IMAGE_SIZE, IMAGE_SIZE, 3), "float32", "data")
    labels = array((batch_size, CLASSES), "float32", "data")
    parameters = replicated(jax.eval_shape(model.init, jax.random.PRNGKey(0), images))
    optimizer_state = replicated(jax.eval_shape(optimizer.init, parameters))
    step = jax.jit(
        make_step(model, optimizer),
        donate_argnums=(0, 1),
        out_shardings=NamedSharding(mesh, PartitionSpec()),
    )
    return compile_function(step, parameters, optimizer_state, images, labels)


def load(library):
    """Compiles one program; returns its numbers, and no function."""
    from keras_vit.tpu import get_topology
    from keras_vit.tpu.results import roofline_seconds

    topology = get_topology(_TOPOLOGIES.value[0])
    program_of = flax_program if library == "flax" else keras_vit_program
    program = program_of(sizes_of(_MODELS.value[0]), topology, _PRECISIONS.value[0])
    facts = {
        "compiles": program.compiles,
        "error": program.error,
        "memory_bytes": program.memory_bytes,
        "bytes_accessed": program.bytes_accessed / program.steps,
        "flops": program.flops / program.steps,
        "seconds": roofline_seconds(program, 0.0, topology) / program.steps,
        "traffic": program.traffic[:12],
    }
    return facts, None


def compile_in_a_process(library, model, topology, precision):
    backend = "tensorflow" if library.endswith("tensorflow") else "jax"
    arguments = [f"--models={model}", f"--topologies={topology}", f"--precisions={precision}"]
    command = [sys.executable, *sys.argv, *arguments, f"--worker={library}"]
    worker = Worker(library, command, KERAS_BACKEND=backend)
    worker.close()
    return worker.facts


def row(library, numbers, flax):
    """Returns a line of the table; `flax` are the numbers of Flax, or None."""
    if not numbers["compiles"]:
        needed = (
            f", needs {numbers['memory_bytes'] / 2**30:.2f} GiB" if numbers["memory_bytes"] else ""
        )
        return f"  {library:22}does not compile{needed}: {numbers['error'].splitlines()[0][:60]}"
    line = (
        f"  {library:22}{numbers['memory_bytes'] / 2**30:8.2f} GiB"
        f"{numbers['bytes_accessed'] / 1e9:8.1f} GB{numbers['flops'] / 1e12:8.2f} TFLOP"
        f"{numbers['seconds'] * 1e3:8.1f} ms"
    )
    if flax and flax["compiles"]:
        memory = numbers["memory_bytes"] / flax["memory_bytes"]
        traffic = numbers["bytes_accessed"] / flax["bytes_accessed"]
        line += f"   memory {memory:.2f}, traffic {traffic:.2f}"
    return line


def main(_):
    if _WORKER.value:
        serve(lambda: load(_WORKER.value))
        return
    for name in _MODELS.value:
        if name not in MODELS:
            raise app.UsageError(f"--models must be some of {', '.join(MODELS)}. Received: {name}")
    for model in _MODELS.value:
        for topology in _TOPOLOGIES.value:
            for precision in _PRECISIONS.value:
                print(f"{model} {topology} {precision}, {_BATCH.value} images per device")
                flax = None
                for library in _LIBRARIES.value:
                    numbers = compile_in_a_process(library, model, topology, precision)
                    flax = numbers if library == "flax" else flax
                    print(row(library, numbers, flax), flush=True)


if __name__ == "__main__":
    app.run(main)
