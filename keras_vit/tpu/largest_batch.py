"""The largest batch of a device for one model, by compiling it or its first blocks.

A Vision Transformer of many blocks is compiled with 2 and with 4 of them: blocks are alike, so that memory, FLOPs and
bytes moved lie on a line over their number, and what an image needs does not depend on how many there are. Another
model, or a shorter one, is compiled whole.
"""

import dataclasses
import functools
import math

from ml_collections import ConfigDict

from keras_vit import architectures, data, recipes, tasks
from keras_vit.tpu.inputs import InputShapes
from keras_vit.tpu.program import Program
from keras_vit.tpu.programs import programs_class
from keras_vit.tpu.results import fits_memory
from keras_vit.tpu.search import MOST_IMAGES, fitting_batch, grid
from keras_vit.tpu.topologies import get_topology

BLOCKS = (2, 4)
EXTRAPOLATED = f"{BLOCKS[0]} and {BLOCKS[1]} blocks"
COMPILED = "compiled"
CLASSES = 1000

# Of the largest batch, what a compiled one may lack, since each try takes a minute.
TOLERANCE = 1 / 16
# Between the batch that is compiled and the one that is reported, the largest ratio.
_NEAR = 1.25
_TRIES = 4


@dataclasses.dataclass(frozen=True)
class LargestBatch:
    """What was learned of a model on a slice.

    Attributes:
        images: the largest batch of a device; 0 if not one image fits, or nothing compiles.
        program: the `Program` of that batch, or of one that does not compile.
        method: `COMPILED`, in which case the largest batch may be larger by `TOLERANCE`, or `EXTRAPOLATED`.
        gradient_bytes: of the whole model; 0 in inference.
    """

    images: int
    program: Program
    method: str
    gradient_bytes: int = 0


def largest_batch(model, topology, image_size, training):
    """The `LargestBatch` of a model in mixed bfloat16, on Keras' backend.

    Args:
        model: a name of `architectures`.
        topology: the name of a slice.
        image_size: pixels of a side.
        training: whether the program is the training step, with AdamW; else it is the evaluation step.
    """
    config = architectures.model_config(model)["model"]
    depth, guess = config.get("num_layers", 0), _guess(config, image_size, training)
    limit = get_topology(topology).device.memory_bytes
    if depth <= max(BLOCKS):
        return _compile_whole(model, topology, image_size, training, max(1, int(limit // guess)))

    size, image_bytes = _on_grid(limit / guess), make_programs(model, topology, image_size, BLOCKS[0]).batch_bytes(1)
    for _ in range(_TRIES):
        size, compiled = _compile_short(model, topology, image_size, training, size)
        refused = [program for program in compiled.values() if not program.compiles]
        if refused:
            return LargestBatch(0, refused[0], EXTRAPOLATED)
        whole = at_depth(compiled, depth)
        number = _most_images(whole, size, image_bytes, limit)
        if size / _NEAR < max(number, 1) < size * _NEAR:
            break
        size = max(number, 1)
    gradients = [make_programs(model, topology, image_size, n).gradient_bytes for n in BLOCKS]
    gradient_bytes = round(_line(BLOCKS, gradients, depth)) if training else 0
    program = at_size(whole, size, max(number, 1), image_bytes, gradient_bytes)
    return LargestBatch(number, program, EXTRAPOLATED, gradient_bytes)


def at_depth(programs, depth):
    """The `Program` of a deeper model: `{blocks: Program}` of two numbers of blocks, on a line over that number."""
    names = [name for name, value in dataclasses.asdict(Program(True)).items() if type(value) in (int, float)]
    values = {
        name: _line(list(programs), [getattr(program, name) for program in programs.values()], depth) for name in names
    }
    return Program(True, **{name: round(value) for name, value in values.items()})


def at_size(program, size, number, image_bytes, gradient_bytes):
    """The `Program` of another number of images near the one that was compiled.

    Args:
        program: of `size` images.
        number: of images.
        image_bytes: of an image with its label, among the arguments.
        gradient_bytes: in training; the update reads and writes the state and reads the gradients, for any batch.
    """
    state, scale = program.argument_bytes - size * image_bytes, number / size
    once = 2 * state + gradient_bytes if gradient_bytes else state
    activations = program.memory_bytes - program.argument_bytes - program.program_bytes
    return dataclasses.replace(
        program,
        argument_bytes=round(state + number * image_bytes),
        temporary_bytes=round(activations * scale),
        output_bytes=0,
        peak_bytes=0,
        flops=program.flops * scale,
        bytes_accessed=once + (program.bytes_accessed - once) * scale,
    )


def _most_images(program, size, image_bytes, limit):
    """The largest batch that the memory of a `Program` of `size` images leaves room for."""
    fixed = program.argument_bytes - size * image_bytes + program.program_bytes
    number = (limit - fixed) / ((program.memory_bytes - fixed) / size)
    return 0 if number < 1 else min(_on_grid(number), MOST_IMAGES)


def _on_grid(number):
    step = grid(number)
    return max(1, math.floor(number / step) * step)


def _line(points, values, x):
    (a, b), (value, other) = points, values
    return value + (other - value) * (x - a) / (b - a)


def _compile_whole(model, topology, image_size, training, guess):
    compiled = {}

    def compile_size(number):
        program = compiled[number] = _compile(model, topology, image_size, training, number)
        return fits_memory(program, get_topology(topology)), program.memory_bytes

    limit = get_topology(topology).device.memory_bytes
    number = fitting_batch(compile_size, limit, _on_grid(guess), largest=True, tolerance=TOLERANCE)
    refused = [program for program in compiled.values() if program.error]
    program = compiled[number] if number else refused[0]
    gradients = make_programs(model, topology, image_size).gradient_bytes if training else 0
    return LargestBatch(number, program, COMPILED, gradients)


def _compile_short(model, topology, image_size, training, size):
    """`(size, {blocks: Program})` of a batch that fits, `size` images or a part of them, or of a single image."""
    while True:
        compiled = {n: _compile(model, topology, image_size, training, size, n) for n in BLOCKS}
        if size == 1 or not any(program.out_of_memory for program in compiled.values()):
            return size, compiled
        size = _on_grid(size / 2)


def _compile(model, topology, image_size, training, size, num_layers=0):
    programs = make_programs(model, topology, image_size, num_layers)
    step = programs.train if training else programs.evaluation
    return step(size * get_topology(topology).num_devices, 1)


@functools.lru_cache(maxsize=len(BLOCKS))
def make_programs(model, topology, image_size, num_layers=0):
    """The `Programs` of a model, or of its first blocks."""
    changes = {"num_layers": num_layers} if num_layers else {}
    config = ConfigDict(
        recipes.defaults(
            **architectures.model_config(model, **changes),
            total_steps=1000,
            precision="mixed_bfloat16",
            data=data.defaults(image_size=image_size),
            optimizer={"name": "adamw"},
        )
    )
    inputs = InputShapes((image_size, image_size, 3), CLASSES)
    return programs_class()(config, tasks.get(config), inputs, get_topology(topology), config.total_steps)


def _guess(config, image_size, training):
    """About what an image needs of memory, bytes; only the number of compiles depends on it."""
    if "depth" in config:
        return image_size**2 * config["width_factor"] * (28 * config["depth"] if training else 400)
    stride = {8: 16, 1: 32 if len(config["resnet_blocks"]) == 4 else 16} if "resnet_blocks" in config else {}
    tokens = (image_size // stride.get(config["patch_size"], config["patch_size"])) ** 2 + 1
    rows, scores = tokens * config["hidden_size"], tokens**2 * config["num_heads"]
    return config["num_layers"] * (28 * rows + 1.5 * scores) if training else 16 * rows + 4 * scores
