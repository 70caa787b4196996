"""Defines the result of a TPU check: the compiler's numbers and a roofline estimate."""

import dataclasses
from typing import Any

from keras_vit.tpu.program import Program
from keras_vit.tpu.topologies import Topology


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of a TPU check. Memory, FLOPs and bytes are per device.

    Attributes:
        topology: the `Topology`.
        backend: "tensorflow" or "jax".
        batch_size: global batch size, over all devices.
        accumulate_steps: number of micro-batches per step.
        precision: the config's `precision`.
        train, evaluation: the `Program`s of the training step and the evaluation step.
        state_bytes: size of weights, optimizer state and EMA, without padding.
        all_reduce_bytes: size of the float32 gradients, which the devices sum.
        model_flops: FLOPs of a training step, three times `forward_flops`, or once if weights are
            frozen; 0 if unknown.
        total_steps: number of training steps; 0 if unknown.
        forward_flops: `keras_vit.flops(model)` for all images of a step; 0 if unknown.
        fitting_batch_per_device: number of images per device that fits in memory (with `search`,
            the largest number tested); 0 if no image fits or a step does not compile.
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
    forward_flops: float = 0.0
    fitting_batch_per_device: int = 0

    @property
    def batch_size_per_device(self) -> int:
        return self.batch_size // self.topology.num_devices

    @property
    def memory_limit_bytes(self) -> int:
        return self.topology.device.memory_bytes

    @property
    def compiles(self) -> bool:
        """True if both steps compile. Running out of memory does not count as a failure."""
        return all(p.compiles or p.out_of_memory for p in (self.train, self.evaluation))

    @property
    def fits(self) -> bool:
        """True if both steps compile and fit in HBM."""
        return all(
            p.compiles and p.memory_bytes <= self.memory_limit_bytes
            for p in (self.train, self.evaluation)
        )

    @property
    def error(self) -> str:
        """The compiler's message, or "". If both steps fail, an error other than out-of-memory is
        preferred."""
        refused = [program for program in (self.train, self.evaluation) if program.error]
        return min(refused, key=lambda program: program.out_of_memory).error if refused else ""

    @property
    def memory_bytes(self) -> int:
        """HBM that the larger of the two steps needs, in bytes; 0 if unknown."""
        larger = max(self.train.memory_bytes, self.evaluation.memory_bytes)
        return larger if self.fits or larger > self.memory_limit_bytes else 0

    @property
    def flops(self) -> float:
        """FLOPs of a training step: the larger of `model_flops` and the compiler's count.

        0 if the step does not compile. The compiler counts the body of a loop only once.
        """
        return max(self.train.flops, self.model_flops) if self.train.compiles else 0.0

    @property
    def bytes_accessed(self) -> float:
        """HBM traffic of a training step in bytes."""
        return self.train.bytes_accessed / self.train.steps

    @property
    def compute_seconds(self) -> float:
        return self.flops / self.topology.device.peak_flops

    @property
    def bandwidth_seconds(self) -> float:
        return self.bytes_accessed / self.topology.device.bandwidth

    @property
    def all_reduce_seconds(self) -> float:
        """Seconds in which each of n devices sends 2 (n - 1) / n times the gradients at the
        published bandwidth."""
        n = self.topology.num_devices
        return 2 * (n - 1) / n * self.all_reduce_bytes / self.topology.device.interconnect

    @property
    def step_seconds_estimate(self) -> float:
        """Roofline estimate for a training step: the longer of compute and HBM time, plus the
        all-reduce.

        0 if the step does not compile.
        """
        longer = max(self.compute_seconds, self.bandwidth_seconds)
        return longer + self.all_reduce_seconds if longer else 0.0

    @property
    def images_per_second_estimate(self) -> float:
        """Training images per second per device; 0 if the step does not compile."""
        seconds = self.step_seconds_estimate
        return self.batch_size_per_device / seconds if seconds else 0.0

    @property
    def evaluation_images_per_second_estimate(self) -> float:
        """Evaluation images per second per device, without the all-reduce; 0 if the step does not
        compile."""
        images = self.batch_size_per_device
        # TensorFlow evaluates one micro-batch per step, and JAX the whole batch.
        if self.backend == "tensorflow":
            images //= self.accumulate_steps
        forward_flops = self.forward_flops / self.batch_size_per_device * images
        seconds = roofline_seconds(self.evaluation, forward_flops, self.topology)
        return images / seconds if seconds else 0.0

    @property
    def device_hours_estimate(self) -> float:
        """Device-hours of the whole run, excluding evaluation and input stalls; 0 if unknown."""
        return self.total_steps * self.step_seconds_estimate * self.topology.num_devices / 3600

    def to_dict(self) -> dict[str, Any]:
        """Returns all attributes and properties as plain Python values, for JSON."""
        names = [name for name, value in vars(Check).items() if isinstance(value, property)]
        return {
            **dataclasses.asdict(self),
            **{name: getattr(self, name) for name in names},
            "num_devices": self.topology.num_devices,
            "device_kind": self.topology.device.kind,
            "topology": self.topology.name,
        }


def roofline_seconds(program, model_flops, topology):
    """Returns the longer of a program's compute time and HBM time, or 0 if it does not compile."""
    if not program.compiles:
        return 0.0
    compute = max(program.flops, model_flops) / topology.device.peak_flops
    return max(compute, program.bytes_accessed / topology.device.bandwidth)
