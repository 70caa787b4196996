"""The largest batch of a device for every model, slice and image size: a CSV file that grows by a row at a time.

    python -m keras_vit.tpu.table PARENT ROW

computes a row, given and printed as JSON. `fill` runs it in a child process for each row: a model that has been traced
keeps gigabytes of memory.
"""

import csv
import dataclasses
import io
import itertools
import json
import os
import sys
import tempfile

import keras

from keras_vit import families, files
from keras_vit.tpu import compiler
from keras_vit.tpu.largest_batch import largest_batch
from keras_vit.tpu.program import first_line
from keras_vit.tpu.topologies import get_topology

MODES = ("training", "inference")
NOTHING_FITS = "not one image fits"


@dataclasses.dataclass(frozen=True)
class Row:
    """One cell of the table.

    Attributes:
        model: such as "ViT-B/16".
        topology: such as "v3:2x2".
        image_size: pixels of a side.
        mode: "training" (AdamW) or "inference", both in mixed bfloat16.
        batch_per_device: the largest one that was compiled and fits, see `largest_batch`; 0 if not one image fits.
        images_per_second: of a device at that batch, a roofline estimate.
        error: why there are none, the compiler's message or `NOTHING_FITS`.
        backend: whose program it is, "tensorflow" or "jax".
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
    def cell(self):
        return self.model, self.topology, self.image_size, self.mode


def cells(models, topologies, image_sizes, modes=MODES):
    """The rows that a table is to have, without their numbers.

    Args:
        models: names of sizes.
        topologies: names of slices.
        image_sizes: pixels; of models with patches the largest multiple of the patch size that is not above them.
        modes: of `MODES`.

    Returns:
        A list of `Row`, each cell once.

    Raises:
        ValueError: a model, a slice or a mode is not known, an image is smaller than a patch, or there is no cell.
    """
    for topology in topologies:
        get_topology(topology)
    unknown = sorted(set(modes) - set(MODES))
    if unknown:
        raise ValueError(f"`modes` must be of {', '.join(MODES)}. Received: {', '.join(unknown)}")
    models = [families.canonical_name(model) for model in models]
    for model in models:
        families.model_config(model)
    rows = [
        Row(model, topology, _filled_by_patches(model, size), mode)
        for topology in topologies
        for size in image_sizes
        for model in models
        for mode in modes
    ]
    if not rows:
        raise ValueError(
            "A table needs a model, a slice, a size of images and a mode. "
            f"Received: models={models}, topologies={topologies}, image_sizes={image_sizes}, modes={modes}"
        )
    return list(dict.fromkeys(rows))


def _filled_by_patches(model, image_size):
    """The largest size up to `image_size` that the patches of a model fill."""
    _, _, patch_size = model.partition("/")
    size = image_size // int(patch_size or 1) * int(patch_size or 1)
    if not size:
        raise ValueError(f"Images must not be smaller than a patch of {model}. Received: image_size={image_size}")
    return size


def fill(path, rows, write=print):
    """Computes the rows of a table that its file does not have yet; the file is whole after each of them.

    Rows that another process adds meanwhile are kept. Two of them share the work if they are given other models, or
    other slices; else both compute the same cells.

    Args:
        path: of the CSV file, local or remote; an existing one is extended.
        rows: of `cells`.
        write: takes lines of text.

    Returns:
        All rows of the file.

    Raises:
        ValueError: the file is not such a table, or one of another backend.
        ImportError: jax or libtpu is missing.
        ChildProcessError: a row was not computed, for want of this machine's memory or by a defect.
    """
    known = _read_known(path)
    missing = [row for row in rows if row.cell not in known]
    write(f"{len(missing)} of {len(rows)} cells to compute")
    for row in missing:
        known = _read_known(path)
        if row.cell in known:
            continue
        row = compute_in_child(_with_first_batch(row, known.values()))
        known = _read_known(path)
        known.setdefault(row.cell, row)
        _write(path, known.values())
        result = f"{row.batch_per_device} images a device, {row.images_per_second:.4g} images/s"
        if row.error:
            result = first_line(row.error)
        write(f"{row.model} on {row.topology}, {row.image_size} pixels, {row.mode}: {result}")
    return list(_read_known(path).values())


def _read_known(path):
    """`{cell: row}` of a table's file, {} if there is none."""
    known = {row.cell: row for row in read(path)} if files.exists(path) else {}
    others = {row.backend for row in known.values()} - {keras.backend.backend()}
    if others:
        raise ValueError(
            f"The table is one of another backend; each backend needs a file of its own. "
            f"Received: {path} of {', '.join(sorted(others))}, backend={keras.backend.backend()}"
        )
    return known


def _with_first_batch(row, known):
    """The row with a batch to begin with: that of another slice, in proportion to a device's memory."""
    for other in known:
        if other.batch_per_device and other.cell == (row.model, other.topology, row.image_size, row.mode):
            memory, other_memory = (get_topology(r.topology).device.memory_bytes for r in (row, other))
            return dataclasses.replace(row, batch_per_device=int(other.batch_per_device * memory / other_memory))
    return row


def compute_in_child(row):
    """`compute`, in a child process."""
    compiler.check_installed()
    arguments = ["-m", "keras_vit.tpu.table", os.getpid(), json.dumps(dataclasses.asdict(row))]
    try:
        with tempfile.TemporaryDirectory() as folder:  # for what a child leaves that is stopped
            line = files.run_python(arguments, KERAS_BACKEND=keras.backend.backend(), TMPDIR=folder)
    except ChildProcessError as error:
        cell = f"{row.model} on {row.topology}, {row.image_size} pixels, {row.mode}"
        raise ChildProcessError(f"{cell} was not computed: {error}") from error
    return Row(**json.loads(line))


def compute(row):
    """The `Row` with its numbers, by compiling a batch or a few, from the row's own batch on if it has one."""
    training = row.mode == "training"
    largest = largest_batch(row.model, row.topology, row.image_size, training, first=row.batch_per_device)
    program = largest.program
    if not largest.images:
        refused = program.error and not program.out_of_memory
        return dataclasses.replace(row, batch_per_device=0, error=program.error if refused else NOTHING_FITS)
    topology = get_topology(row.topology)
    device, n = topology.device, topology.num_devices
    seconds = max(program.flops / device.peak_flops, program.bytes_accessed / device.bandwidth)
    seconds += 2 * (n - 1) / n * largest.gradient_bytes / device.interconnect
    return dataclasses.replace(
        row,
        batch_per_device=largest.images,
        images_per_second=float(f"{largest.images / seconds:.3g}"),
    )


def read(path):
    """The rows of a table's CSV file.

    Raises:
        ValueError: the file is not such a table.
    """
    names = [field.name for field in dataclasses.fields(Row)]
    reader = csv.DictReader(io.StringIO(files.read_text(path)))
    if reader.fieldnames != names:
        raise ValueError(
            f"The columns of the table must be {', '.join(names)}. Received: {path} with {reader.fieldnames}"
        )
    types = {field.name: field.type for field in dataclasses.fields(Row)}
    try:
        return [Row(**{name: types[name](value) for name, value in line.items()}) for line in reader]
    except (TypeError, ValueError) as error:
        raise ValueError(f"Line {reader.line_num} of the table is damaged ({error}). Received: {path}") from error


def markdown(rows):
    """The rows as a Markdown table: a line for each model and image size, a column for each slice and mode."""
    topologies = dict.fromkeys(row.topology for row in rows)
    present = {(row.topology, row.mode) for row in rows}
    columns = [column for column in itertools.product(topologies, MODES) if column in present]
    lines = list(dict.fromkeys((row.model, row.image_size) for row in rows))
    by_cell = {row.cell: row for row in rows}
    text = ["| model | pixels | " + " | ".join(f"{topology} {mode}" for topology, mode in columns) + " |"]
    text.append("|---" * (2 + len(columns)) + "|")
    for model, size in lines:
        entries = [_entry(by_cell.get((model, topology, size, mode))) for topology, mode in columns]
        text.append(f"| {model} | {size} | " + " | ".join(entries) + " |")
    return "\n".join(text) + "\n"


def _entry(row):
    if row is None:
        return ""
    if not row.batch_per_device:
        return row.error if row.error == NOTHING_FITS else "does not compile"
    speed = row.images_per_second
    return f"{row.batch_per_device:,}, {f'{speed:,.0f}' if speed >= 1000 else f'{speed:.3g}'}/s"


def _write(path, rows):
    with files.atomic_write(path) as file:
        writer = csv.DictWriter(file, [field.name for field in dataclasses.fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(dataclasses.asdict(row) for row in rows)


if __name__ == "__main__":
    compiler.end_with_parent(sys.argv[1])
    print(json.dumps(dataclasses.asdict(compute(Row(**json.loads(sys.argv[2]))))))
