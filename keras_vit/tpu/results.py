"""What is known of a run on a TPU slice: the compiler's word, and a roofline."""

import dataclasses
from typing import Any

from keras_vit.tpu.program import Program
from keras_vit.tpu.topologies import Topology


@dataclasses.dataclass(frozen=True)
class Change:
    """A change of the recipe that was compiled.

    Attributes:
        text: such as "remat=True".
        fitting_batch_per_device: images of a device that fit with it; 0 if none was seen to.
    """

    text: str
    fitting_batch_per_device: int


@dataclasses.dataclass(frozen=True)
class Check:
    """What is known of a run on a slice; memory, FLOPs and bytes are of one device.

    Attributes:
        topology: the `Topology`.
        backend: "tensorflow" or "jax".
        batch_size: over all devices.
        accumulate_steps: micro-batches of a step.
        precision: of the recipe.
        train, evaluation: the `Program` of each step.
        state_bytes: of weights, optimizer and averages, without what fills up the tiles.
        all_reduce_bytes: of the gradients, float32, which the devices sum.
        model_flops: of the training step by formula: three times `keras_vit.flops(model)` for each image; 0 where the
            model has layers that it does not know.
        total_steps: of the recipe; 0 where the number of training examples is not known.
        fitting_batch_per_device: images of a device that were seen to fit, with `search` the largest number; 0 if none
            was seen to.
        changes: with `search`, what rematerialization and accumulation would allow.
    """

    topology: Topology
    backend: str
    batch_size: int
    accumulate_steps: int
    precision: str
    train: Program
    evaluation: Program
    state_bytes: int
    all_reduce_bytes: int
    model_flops: float
    total_steps: int
    fitting_batch_per_device: int = 0
    changes: tuple[Change, ...] = ()

    @property
    def batch_size_per_device(self) -> int:
        return self.batch_size // self.topology.num_devices

    @property
    def compiles(self) -> bool:
        """Whether both steps compile; one that only lacks memory does."""
        return all(program.compiles or program.out_of_memory for program in (self.train, self.evaluation))

    @property
    def fits(self) -> bool:
        """Whether both steps compile, fit the memory of a device, and need nothing of the host."""
        return not self.host_operations and all(
            fits_memory(program, self.topology) for program in (self.train, self.evaluation)
        )

    @property
    def host_operations(self) -> tuple[str, ...]:
        """The operations that would wait for the host; there should be none."""
        return tuple(sorted({*self.train.host_operations, *self.evaluation.host_operations}))

    @property
    def error(self) -> str:
        """Why a step does not compile, the compiler's message; "" if both do. Of two, the one that memory alone would
        not help."""
        refused = [program for program in (self.train, self.evaluation) if program.error]
        return min(refused, key=lambda program: program.out_of_memory).error if refused else ""

    @property
    def memory_bytes(self) -> int:
        """Of the step that needs more."""
        return max(self.train.memory_bytes, self.evaluation.memory_bytes)

    @property
    def memory_limit_bytes(self) -> int:
        """What a program may use of a device's memory."""
        return self.topology.device.memory_bytes

    @property
    def batch_bytes(self) -> int:
        """What the training step's arguments are beside the state: the batches of an execution, and what fills up the
        tiles of all arguments; 0 without an executable."""
        return max(self.train.argument_bytes - self.state_bytes, 0)

    @property
    def flops(self) -> float:
        """Of a training step, by the compiler; see `Program`."""
        return self.train.flops / self.train.steps

    @property
    def product_flops(self) -> float:
        """Those of `flops` that are of matrix products and convolutions."""
        return self.train.product_flops / self.train.steps

    @property
    def bytes_accessed(self) -> float:
        """What a training step moves between the device and its large memory, counted in the compiler's program."""
        return self.train.bytes_accessed / self.train.steps

    @property
    def compute_seconds(self) -> float:
        """The FLOPs of a training step at the published peak; those by formula, where the compiler counts fewer."""
        flops = max(self.flops, self.model_flops) if self.train.compiles else 0.0
        return flops / self.topology.device.peak_flops

    @property
    def bandwidth_seconds(self) -> float:
        """The bytes that a training step moves, at the published bandwidth."""
        return self.bytes_accessed / self.topology.device.bandwidth

    @property
    def all_reduce_seconds(self) -> float:
        """The sum of the gradients over the slice: 2 (n - 1) / n times their bytes, at the published interconnect."""
        n = self.topology.num_devices
        return 2 * (n - 1) / n * self.all_reduce_bytes / self.topology.device.interconnect

    @property
    def weights_are_divided(self) -> bool:
        """Whether the devices gather weights, or scatter gradients, so that the sum of the gradients is not all that
        they exchange."""
        return any(opcode in ("all-gather", "reduce-scatter", "all-to-all") for opcode, *_ in self.train.collectives)

    @property
    def exchange_seconds(self) -> float:
        """What the devices exchange in a training step, at the published interconnect: `all_reduce_seconds`, or, where
        the weights are divided, what was counted in the program. Of n devices each one moves 2 (n - 1) / n times the
        bytes of an all-reduce, (n - 1) / n times those that are gathered or scattered, and all that are permuted."""
        if not self.weights_are_divided:
            return self.all_reduce_seconds
        n, moved = self.topology.num_devices, 0.0
        for opcode, _, size in self.train.collectives:
            share = 1.0 if opcode.startswith("collective-") else (n - 1) / n
            moved += size * (2 * share if opcode == "all-reduce" else share)
        return moved / self.train.steps / self.topology.device.interconnect

    @property
    def bound(self) -> str:
        """What bounds a step: "compute" or "bandwidth"."""
        return "compute" if self.compute_seconds >= self.bandwidth_seconds else "bandwidth"

    @property
    def step_seconds_estimate(self) -> float:
        """A roofline: the longer one of compute and bandwidth, and what the devices exchange after it; 0 without an
        executable."""
        longer = max(self.compute_seconds, self.bandwidth_seconds)
        return longer + self.exchange_seconds if longer else 0.0

    @property
    def images_per_second_estimate(self) -> float:
        """Of one device, in training; 0 without an executable."""
        seconds = self.step_seconds_estimate
        return self.batch_size_per_device / seconds if seconds else 0.0

    @property
    def evaluation_images_per_second_estimate(self) -> float:
        """Of one device, by the same roofline; 0 without an executable."""
        device, images = self.topology.device, self.batch_size_per_device
        if self.backend == "tensorflow":  # its evaluation step is of a micro-batch; that of JAX goes through all
            images //= self.accumulate_steps
        seconds = max(self.evaluation.flops / device.peak_flops, self.evaluation.bytes_accessed / device.bandwidth)
        return images / seconds if seconds else 0.0

    @property
    def device_hours_estimate(self) -> float:
        """Of the whole recipe, devices times hours, without evaluation and waiting for input; 0 where not known."""
        return self.total_steps * self.step_seconds_estimate * self.topology.num_devices / 3600

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain Python, for JSON: bytes, seconds, and the names above."""
        names = [name for name, value in vars(Check).items() if isinstance(value, property)]
        fields = {**dataclasses.asdict(self), **{name: getattr(self, name) for name in names}}
        return fields | {
            "topology": self.topology.name,
            "num_devices": self.topology.num_devices,
            "device_kind": self.topology.device.kind,
            "activation_bytes": self.train.temporary_bytes,
            "program_bytes": self.train.program_bytes,
        }


def fits_memory(program, topology):
    """Whether a `Program` compiles, in the memory of a device of a `Topology`."""
    return program.compiles and program.memory_bytes <= topology.device.memory_bytes
