"""Writes a CSV file with the largest batch that fits on a TPU device, for each model, slice, image
size and mode.

    python experiments/paper/tpu_table.py --table=tpu.csv --models=ViT-B/16,ViT-L/16 \\
        --modes=training,inference

The command has the same requirements as `keras-vit check-tpu` and takes minutes per row. It skips
the rows that the file already has. Each row runs in its own process, `--row=JSON`, because a traced
model holds gigabytes of memory.
"""

import csv
import dataclasses
import functools
import io
import json
import sys
import tempfile

import keras
from absl import flags
from ml_collections import ConfigDict

from keras_vit import cost, data, families, files, recipes, tasks
from keras_vit.commands import command_line
from keras_vit.layers.resnet_stem import stem_stride_of
from keras_vit.terminal import first_line
from keras_vit.tpu import compiler
from keras_vit.tpu.estimate import programs_class
from keras_vit.tpu.inputs import InputShapes
from keras_vit.tpu.results import roofline_seconds
from keras_vit.tpu.search import largest_batch
from keras_vit.tpu.topologies import get_topology

FLAGS = flags.FLAGS
MODES = ("training", "inference")
NOTHING_FITS = "not one image fits"
_CLASSES = 1000
_FIRST_BATCH = 64


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of the CSV file: the result for a model, slice, image size and mode.

    Both modes use mixed bfloat16, and training uses AdamW. `batch_per_device` is the largest
    compiled batch that fits, `images_per_second` is a roofline estimate per device, and `error` is
    the compiler's message, `NOTHING_FITS`, or "".
    """

    model: str
    topology: str
    image_size: int
    mode: str
    batch_per_device: int = 0
    images_per_second: float = 0.0
    error: str = ""
    backend: str = dataclasses.field(default_factory=keras.backend.backend)

    @property
    def key(self):
        return self.model, self.topology, self.image_size, self.mode, self.backend


def empty_rows(models, topologies, image_sizes, modes=MODES):
    """Returns the `Row`s of a table, without results.

    Image sizes are rounded down to whole patches.
    """
    for topology in topologies:
        get_topology(topology)
    if unknown := sorted(set(modes) - set(MODES)):
        raise ValueError(
            f"`modes` must be among {', '.join(MODES)}. Received: {', '.join(unknown)}"
        )
    models = [families.canonical_name(model) for model in models]
    rows = [
        Row(model, topology, _filled_by_patches(model, size), mode)
        for topology in topologies
        for size in image_sizes
        for model in models
        for mode in modes
    ]
    return list(dict.fromkeys(rows))


def _filled_by_patches(model, image_size):
    arguments = families.model_config(model)["model"]
    patch_size = arguments.get("patch_size", 1) * stem_stride_of(arguments.get("resnet_blocks"))
    if image_size < patch_size:
        raise ValueError(
            f"Images must not be smaller than a patch of {model}. Received: image_size={image_size}"
        )
    return image_size // patch_size * patch_size


def fill(path, rows, write=print):
    """Computes the rows that a CSV file lacks, rewrites the file after each row, and returns all
    rows of the file."""
    compiler.check_installed()
    known = {row.key: row for row in read(path)} if files.exists(path) else {}
    missing = [row for row in rows if row.key not in known]
    write(f"{len(missing)} of {len(rows)} rows to compute")
    for row in missing:
        arguments = [__file__, f"--row={json.dumps(dataclasses.asdict(row))}"]
        with tempfile.TemporaryDirectory() as folder:  # deleted even if the child is killed
            line = files.run_python(arguments, KERAS_BACKEND=row.backend, TMPDIR=folder)
        known[row.key] = row = Row(**json.loads(line))
        with files.atomic_write(path) as file:
            writer = csv.DictWriter(
                file, [field.name for field in dataclasses.fields(Row)], lineterminator="\n"
            )
            writer.writeheader()
            writer.writerows(dataclasses.asdict(each) for each in known.values())
        result = f"{row.batch_per_device} images per device, {row.images_per_second:.4g} images/s"
        result = first_line(row.error) if row.error else result
        write(f"{row.model} on {row.topology}, {row.image_size} pixels, {row.mode}: {result}")
    return list(known.values())


def compute(row):
    """Compiles the step for a few batch sizes and returns the `Row` with its results."""
    topology = get_topology(row.topology)
    is_training = row.mode == "training"
    config = ConfigDict(
        recipes.defaults(
            **families.model_config(row.model),
            total_steps=1000,
            precision="mixed_bfloat16",
            data=data.defaults(image_size=row.image_size),
            optimizer={"name": "adamw"},
        )
    )
    inputs = InputShapes((row.image_size, row.image_size, 3), _CLASSES)
    programs = programs_class()(config, tasks.get(config), inputs, topology, config.total_steps)
    compiled = {}

    def compile_size(number):
        step = programs.train if is_training else programs.evaluation
        compiled[number] = step(number * topology.num_devices, 1)
        return compiled[number]

    fixed = programs.state_bytes if is_training else programs.gradient_bytes
    images = largest_batch(compile_size, topology.device.memory_bytes, _FIRST_BATCH, fixed)
    if not images:
        program = list(compiled.values())[-1]
        refused = program.error and not program.out_of_memory
        return dataclasses.replace(row, error=program.error if refused else NOTHING_FITS)
    model_flops = (3 if is_training else 1) * images * cost.flops(programs.model)
    seconds = roofline_seconds(compiled[images], model_flops, topology)
    n = topology.num_devices
    if is_training:
        seconds += 2 * (n - 1) / n * programs.gradient_bytes / topology.device.interconnect
    return dataclasses.replace(
        row, batch_per_device=images, images_per_second=float(f"{images / seconds:.3g}")
    )


def read(path):
    """Returns the rows of a table's CSV file; raises a `ValueError` if the columns differ."""
    types = {field.name: field.type for field in dataclasses.fields(Row)}
    reader = csv.DictReader(io.StringIO(files.read_text(path)))
    if reader.fieldnames != list(types):
        raise ValueError(
            f"The columns of the table must be {', '.join(types)}. Received: {path} with "
            f"{reader.fieldnames}"
        )
    return [Row(**{name: types[name](value) for name, value in line.items()}) for line in reader]


def define_flags():
    flags.DEFINE_string("table", "tpu.csv", "The CSV file to write or extend.")
    paper_models = [name for name in families.sizes() if name.startswith(("ViT-", "R", "BiT-"))]
    flags.DEFINE_list("models", paper_models, "The models, classifiers of images of one size.")
    flags.DEFINE_list("topologies", ["v3:2x2", "v5e:2x4", "v6e:2x4"], "The slices.")
    flags.DEFINE_list("image_sizes", ["224", "384"], "Heights and widths of the images, in pixels.")
    flags.DEFINE_list("modes", list(MODES), f"One or more of {', '.join(MODES)}.")
    flags.DEFINE_string("row", "", "A row as JSON: compute and print only this row.")


def main():
    if FLAGS.row:
        print(json.dumps(dataclasses.asdict(compute(Row(**json.loads(FLAGS.row))))))
        return
    sizes = list(map(int, FLAGS.image_sizes))
    rows = empty_rows(FLAGS.models, FLAGS.topologies, sizes, FLAGS.modes)
    fill(FLAGS.table, rows, write=functools.partial(print, flush=True))


if __name__ == "__main__":
    command_line.run(lambda: sys.modules["__main__"], "tpu_table", sys.argv[1:])
