"""Compares the TPU programs of a training step of ViT in keras_vit and in Flax, without a TPU.

    pip install -e ".[cpu,jax,aot]" flax optax && python experiments/benchmarks/tpu_programs.py

All steps use the same model, batch, AdamW and clipping at 1, and are compiled by the same TPU
compiler for the same slice. keras_vit on JAX and Flax are compiled for all devices of the slice,
keras_vit on TensorFlow for one replica without the all-reduce. Each program is compiled in a
process of its own. Memory, HBM traffic and FLOPs are per device and step; the traffic is counted
in the same way in all three programs, from the optimized HLO. The estimated time is the longer of
compute and HBM time. The last columns are relative to Flax.
"""

import json
import os
import subprocess
import sys

from absl import app, flags

LIBRARIES = ("flax", "keras_vit_jax", "keras_vit_tensorflow")
CLASSES = 1000
MODELS = {
    "B/16": {
        "patch_size": 16,
        "hidden_size": 768,
        "mlp_dim": 3072,
        "num_heads": 12,
        "num_layers": 12,
    },
    "L/16": {
        "patch_size": 16,
        "hidden_size": 1024,
        "mlp_dim": 4096,
        "num_heads": 16,
        "num_layers": 24,
    },
    "H/14": {
        "patch_size": 14,
        "hidden_size": 1280,
        "mlp_dim": 5120,
        "num_heads": 16,
        "num_layers": 32,
    },
}
_MODELS = flags.DEFINE_list("models", list(MODELS), f"Some of {', '.join(MODELS)}.")
_TOPOLOGIES = flags.DEFINE_list("topologies", ["v3:2x2", "v5e:2x4"], "Slices to compile for.")
_PRECISIONS = flags.DEFINE_list("precisions", ["float32", "mixed_bfloat16"], "As in the config.")
_LIBRARIES = flags.DEFINE_list("libraries", list(LIBRARIES), f"Some of {', '.join(LIBRARIES)}.")
_BATCH = flags.DEFINE_integer("batch_size", 64, "Images per device.", lower_bound=1)
_LAYERS = flags.DEFINE_integer(
    "num_layers", None, "Number of blocks, if not that of the model.", lower_bound=1
)
_WORKER = flags.DEFINE_enum("worker", None, LIBRARIES, "Internal: compile for this library.")


def sizes_of(name):
    sizes = dict(MODELS[name])
    if _LAYERS.value:
        sizes["num_layers"] = _LAYERS.value
    return sizes


def keras_vit_program(sizes, topology, precision):
    from ml_collections import ConfigDict

    from keras_vit import recipes, tasks
    from keras_vit.tpu.estimate import programs_class
    from keras_vit.tpu.inputs import InputShapes

    shape = (224, 224, 3)
    config = ConfigDict(
        recipes.defaults(
            batch_size=_BATCH.value * topology.num_devices,
            total_steps=1000,
            clip_norm=1.0,
            steps_per_call=1,
            precision=precision,
            optimizer={"name": "adamw"},
            model={**sizes, "input_shape": shape},
            schedule={"base": 1e-3},
        )
    )
    task = tasks.get(config)
    inputs = InputShapes(shape, CLASSES)
    programs = programs_class()(config, task, inputs, topology, config.total_steps)
    return programs.train(config.batch_size, 1)


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

    images = array((batch_size, 224, 224, 3), "float32", "data")
    labels = array((batch_size, CLASSES), "float32", "data")
    parameters = replicated(jax.eval_shape(model.init, jax.random.PRNGKey(0), images))
    optimizer_state = replicated(jax.eval_shape(optimizer.init, parameters))
    step = jax.jit(
        make_step(model, optimizer),
        donate_argnums=(0, 1),
        out_shardings=NamedSharding(mesh, PartitionSpec()),
    )
    return compile_function(step, parameters, optimizer_state, images, labels)


def worker(library):
    """Compiles one program and prints its numbers as JSON."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # keep the libraries' output out of the answer
    from keras_vit.tpu import get_topology
    from keras_vit.tpu.results import roofline_seconds

    topology = get_topology(_TOPOLOGIES.value[0])
    program_of = flax_program if library == "flax" else keras_vit_program
    program = program_of(sizes_of(_MODELS.value[0]), topology, _PRECISIONS.value[0])
    numbers = {
        "compiles": program.compiles,
        "error": program.error,
        "memory_bytes": program.memory_bytes,
        "bytes_accessed": program.bytes_accessed / program.steps,
        "flops": program.flops / program.steps,
        "seconds": roofline_seconds(program, 0.0, topology) / program.steps,
        "traffic": program.traffic[:12],
    }
    print(json.dumps(numbers), file=answers, flush=True)


def compile_in_a_process(library, model, topology, precision):
    backend = "tensorflow" if library.endswith("tensorflow") else "jax"
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [
        sys.executable,
        sys.argv[0],
        f"--worker={library}",
        f"--models={model}",
        f"--topologies={topology}",
        f"--precisions={precision}",
        f"--batch_size={_BATCH.value}",
    ]
    if _LAYERS.value:
        command.append(f"--num_layers={_LAYERS.value}")
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise app.UsageError(
            f"{library} failed; see its output above. Exit code: {done.returncode}"
        )
    return json.loads(done.stdout)


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
        worker(_WORKER.value)
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
