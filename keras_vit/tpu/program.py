"""Defines the result of compiling a program, and the base class for compiling the programs of a
run."""

import dataclasses
import math
import re

from ml_collections import ConfigDict

from keras_vit import data
from keras_vit.training.global_state import dtype_policy_and_seed

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Program:
    """The result of compiling a program. Sizes and counts are per device."""

    compiles: bool
    error: str = ""  # the compiler's message
    out_of_memory: bool = False  # whether the program does not fit in the device's memory
    required_bytes: int = 0  # memory size of a program that does not fit; 0 if unknown
    argument_bytes: int = 0  # inputs, such as weights and the batch, as laid out in HBM
    # intermediate values, and outputs that do not reuse the memory of an argument
    temporary_bytes: int = 0
    program_bytes: int = 0  # compiled code
    flops: float = 0.0  # per execution, from `cost_analysis`, which counts loop bodies once
    bytes_accessed: float = 0.0  # HBM traffic per execution
    traffic: tuple = ()  # `(array, bytes)` of the arrays with the most traffic
    steps: int = 1  # training steps per execution

    @property
    def memory_bytes(self):
        """HBM that the program needs, in bytes, even if it does not fit; 0 if unknown."""
        if not self.compiles:
            return self.required_bytes
        return self.argument_bytes + self.temporary_bytes + self.program_bytes


def refused_program(error):
    """Returns the `Program` for a failed compilation; `error` is an exception or a message."""
    text = str(error).strip()
    needed = re.search(r"\(([\d.]+)([KMGT]?)\) exceeds available HBM", text)
    required_bytes = int(float(needed[1]) * _UNITS[needed[2]]) if needed else 0
    return Program(False, text, "RESOURCE_EXHAUSTED" in text, required_bytes)


class Programs:
    """Compiles the steps of a run for a TPU slice; each backend has a subclass.

    A subclass defines the property `state_bytes`, the method `_build(inputs, total_steps)`, which
    returns the model, and the methods `train(batch_size, accumulate_steps)` and
    `evaluation(batch_size, accumulate_steps)`, which return a `Program`.
    """

    def __init__(self, config, task, inputs, topology, total_steps):
        self._config = config
        self._task = task
        self.topology = topology
        self._image_shape = inputs.image_shape
        source = data.Source(None, 0, inputs.train.class_names)
        options = data.Options(**data.option_fields(config.data))
        target = data.TARGETS[task.target](source, options).spec()
        # The shapes and dtypes of an image, a target and a weight.
        self._batch_specs = (
            (inputs.image_shape, "float32"),
            (target.shape, target.dtype.name),
            ((), "float32"),
        )
        self._compiled = {}
        with dtype_policy_and_seed(config):
            self.model = self._build(inputs, total_steps)

    def compile_steps(self, images):
        """Returns the training and evaluation `Program`s for a number of images per device.

        If the training step fails for a reason other than memory, returns its `Program` for both
        steps.
        """
        if images not in self._compiled:
            arguments = (images * self.topology.num_devices, self._config.accumulate_steps)
            train = self.train(*arguments)
            has_failed = not train.compiles and not train.out_of_memory
            evaluation = train if has_failed else self.evaluation(*arguments)
            self._compiled[images] = (train, evaluation)
        return self._compiled[images]

    def _config_of(self, batch_size, accumulate_steps):
        return ConfigDict(
            {**self._config, "batch_size": batch_size, "accumulate_steps": accumulate_steps}
        )

    @property
    def frozen_bytes(self):
        """Size of the float32 weights of models that are not trained, in bytes."""
        return sum(4 * model.count_params() for model in self._task.frozen_models)

    @property
    def gradient_bytes(self):
        """Size of the float32 gradients in bytes."""
        return 4 * sum(math.prod(weight.shape) for weight in self.model.trainable_weights)
