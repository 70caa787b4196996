"""The largest batch of a device for one model, of the few that are compiled.

The search ends at a batch that fits as soon as little more can: beside what is there for any batch (weights, optimizer,
instructions) memory grows about evenly with images. About, since the compiler takes other ways where memory is short,
and larger arrays are filled up: the line alone was seen to be 12 % wrong, so that only what was compiled counts. On
TensorFlow that is until the memory is planned and no further, see `compiler.compile_program`.
"""

import dataclasses
import math

from ml_collections import ConfigDict

from keras_vit import data, families, recipes, tasks
from keras_vit.tpu.inputs import InputShapes
from keras_vit.tpu.program import Program
from keras_vit.tpu.programs import programs_class
from keras_vit.tpu.results import fits_memory
from keras_vit.tpu.search import MOST_IMAGES, grid
from keras_vit.tpu.topologies import get_topology

CLASSES = 1000

# By the line through a batch that fits, the most that a larger one may have of it for the search to end.
TOLERANCE = 1.1


@dataclasses.dataclass(frozen=True)
class LargestBatch:
    """What was learned of a model on a slice.

    Attributes:
        images: the largest batch of a device that was compiled and fits; 0 if not one image fits, or nothing compiles.
        program: the `Program` of that batch, or of one that does not compile.
        gradient_bytes: in training; 0 in inference.
    """

    images: int
    program: Program
    gradient_bytes: int


def largest_batch(model, topology, image_size, training, first=0):
    """The `LargestBatch` of a model in mixed bfloat16, on Keras' backend.

    Args:
        model: a name of a size.
        topology: the name of a slice.
        image_size: pixels of a side.
        training: whether the program is the training step, with AdamW; else it is the evaluation step.
        first: a number of images to begin with; 0 for one by formula.
    """
    programs = make_programs(model, topology, image_size)
    compile_step, num_devices = programs.train if training else programs.evaluation, programs.topology.num_devices
    limit, image_bytes = programs.topology.device.memory_bytes, programs.batch_bytes(1)
    gradient_bytes = programs.gradient_bytes if training else 0

    # AdamW keeps two numbers of each weight's size, and some gradients wait for the update.
    state = 3.4 * gradient_bytes if training else programs.gradient_bytes
    config = families.model_config(model)["model"]
    size = _on_grid(max(1, first or (limit - state) / _image_memory(config, image_size, training)))
    best, refused = LargestBatch(0, Program(False), gradient_bytes), math.inf
    while True:
        program = compile_step(size * num_devices, 1, machine_code=False)
        if not program.compiles and not program.out_of_memory:
            return LargestBatch(0, program, gradient_bytes)
        if fits_memory(program, programs.topology):
            best = LargestBatch(size, program, gradient_bytes)
            bound = number = min(_most_images(program, size, image_bytes, limit), MOST_IMAGES)
        elif size == 1:
            return LargestBatch(0, program, gradient_bytes)
        else:
            refused, required = size, program.memory_bytes
            bound = size * (limit - state) / (required - state) if required else size - 1
            number = _on_grid(0.95 * bound if required else size / 2)
        if best.images and (best.images == MOST_IMAGES or min(bound, refused - 1) <= TOLERANCE * best.images):
            return best
        size = number if best.images < number < refused else (best.images + refused) // 2


def make_programs(model, topology, image_size):
    """The `Programs` of a model: mixed bfloat16, AdamW, `CLASSES` classes."""
    config = ConfigDict(
        recipes.defaults(
            **families.model_config(model),
            total_steps=1000,
            precision="mixed_bfloat16",
            data=data.defaults(image_size=image_size),
            optimizer={"name": "adamw"},
        )
    )
    inputs = InputShapes((image_size, image_size, 3), CLASSES)
    return programs_class()(config, tasks.get(config), inputs, get_topology(topology), config.total_steps)


def _most_images(program, size, image_bytes, limit):
    """The largest batch that the memory of a `Program` of `size` images leaves room for, by a line."""
    fixed = program.argument_bytes - size * image_bytes + program.program_bytes
    return _on_grid((limit - fixed) / ((program.memory_bytes - fixed) / size))


def _on_grid(number):
    number = min(number, MOST_IMAGES)
    step = grid(number)
    return max(1, math.floor(number / step) * step)


def _image_memory(config, image_size, training):
    """About what an image needs of memory, bytes; only the number of compiles depends on it."""
    image, stride = 18 * image_size**2, 1
    if "depth" in config:
        return image + image_size**2 * config["width_factor"] * (130 + 4.5 * config["depth"] if training else 75)
    if units := config.get("resnet_blocks"):
        image += image_size**2 * (22 * 3 * sum(units) if training else 75)
        stride = 32 if len(units) == 4 else 16
    elif units == ():
        stride = 2
    tokens = (image_size // (stride * config["patch_size"])) ** 2 + 1
    rows, scores = tokens * config["hidden_size"], tokens**2 * config["num_heads"]
    blocks = config["num_layers"] * (30 * rows + 1.55 * scores) if training else 10 * rows + 3 * scores
    return image + blocks
