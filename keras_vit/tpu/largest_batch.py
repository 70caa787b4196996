"""The largest batch of a device for one model, from a batch near it that is compiled.

A compile takes a minute or more, and beside what is there for any batch (weights, optimizer, instructions) memory grows
evenly with images. So a guess is compiled, and the largest batch is read from the line through it; where that is far
from what was compiled, it is compiled in its turn.
"""

import dataclasses
import math

from ml_collections import ConfigDict

from keras_vit import architectures, data, recipes, tasks
from keras_vit.tpu.inputs import InputShapes
from keras_vit.tpu.program import Program
from keras_vit.tpu.programs import programs_class
from keras_vit.tpu.search import MOST_IMAGES, grid
from keras_vit.tpu.topologies import get_topology

CLASSES = 1000

# Between the batch that is compiled and the one that is reported, the largest ratio.
_NEAR = 1.25
_TRIES = 4


@dataclasses.dataclass(frozen=True)
class LargestBatch:
    """What was learned of a model on a slice.

    Attributes:
        images: the largest batch of a device; 0 if not one image fits, or nothing compiles.
        compiled_images: the batch that was compiled, within a quarter of `images`.
        program: the `Program` of `images`, or of one that does not compile.
        gradient_bytes: in training; 0 in inference.
    """

    images: int
    compiled_images: int
    program: Program
    gradient_bytes: int


def largest_batch(model, topology, image_size, training):
    """The `LargestBatch` of a model in mixed bfloat16, on Keras' backend.

    Args:
        model: a name of `architectures`.
        topology: the name of a slice.
        image_size: pixels of a side.
        training: whether the program is the training step, with AdamW; else it is the evaluation step.
    """
    programs = make_programs(model, topology, image_size)
    compile_step, num_devices = programs.train if training else programs.evaluation, programs.topology.num_devices
    limit, image_bytes = programs.topology.device.memory_bytes, programs.batch_bytes(1)
    gradient_bytes = programs.gradient_bytes if training else 0

    # AdamW keeps two numbers of each weight's size, and some gradients wait for the update.
    state = 3.4 * gradient_bytes if training else programs.gradient_bytes
    config = architectures.model_config(model)["model"]
    size = _on_grid(max(1, (limit - state) / _image_memory(config, image_size, training)))
    tries = 0
    while True:
        program = compile_step(size * num_devices, 1)
        if program.out_of_memory and size > 1:
            required = program.required_bytes or 2 * limit
            size = _on_grid(min(size - 1, 0.95 * size * (limit - state) / (required - state)))
            continue
        if not program.compiles:
            return LargestBatch(0, size, program, gradient_bytes)
        number, tries = _most_images(program, size, image_bytes, limit), tries + 1
        if size / _NEAR < max(number, 1) < size * _NEAR or tries == _TRIES:
            program = at_size(program, size, max(number, 1), image_bytes, gradient_bytes)
            return LargestBatch(number, size, program, gradient_bytes)
        size = max(number, 1)


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


def make_programs(model, topology, image_size):
    """The `Programs` of a model: mixed bfloat16, AdamW, `CLASSES` classes."""
    config = ConfigDict(
        recipes.defaults(
            **architectures.model_config(model),
            total_steps=1000,
            precision="mixed_bfloat16",
            data=data.defaults(image_size=image_size),
            optimizer={"name": "adamw"},
        )
    )
    inputs = InputShapes((image_size, image_size, 3), CLASSES)
    return programs_class()(config, tasks.get(config), inputs, get_topology(topology), config.total_steps)


def _most_images(program, size, image_bytes, limit):
    """The largest batch that the memory of a `Program` of `size` images leaves room for."""
    fixed = program.argument_bytes - size * image_bytes + program.program_bytes
    number = (limit - fixed) / ((program.memory_bytes - fixed) / size)
    return 0 if number < 1 else min(_on_grid(number), MOST_IMAGES)


def _on_grid(number):
    number = min(number, MOST_IMAGES)
    step = grid(number)
    return max(1, math.floor(number / step) * step)


def _image_memory(config, image_size, training):
    """About what an image needs of memory, bytes; only the number of compiles depends on it."""
    image, stride = 18 * image_size**2, 1
    if "depth" in config:
        return image + image_size**2 * config["width_factor"] * (28 * config["depth"] if training else 400)
    if units := config.get("resnet_blocks"):
        image += image_size**2 * (28 * 3 * sum(units) if training else 400)
        stride = 32 if len(units) == 4 else 16
    elif units == ():
        stride = 2
    tokens = (image_size // (stride * config["patch_size"])) ** 2 + 1
    rows, scores = tokens * config["hidden_size"], tokens**2 * config["num_heads"]
    blocks = config["num_layers"] * (27 * rows + 1.4 * scores) if training else 10 * rows + 3 * scores
    return image + blocks
