"""What the compiler says of a program."""

import dataclasses
import re

from keras_vit.tpu import counts, hlo

# Of `Program.traffic`.
MOST_ARRAYS = 50

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Program:
    """What the compiler says of a program on one device.

    Attributes:
        compiles: whether there is an executable.
        error: why not, the compiler's message; "" if there is one.
        out_of_memory: whether the reason is the device's memory.
        required_bytes: of a program that does not fit, what the compiler says it would need; 0 if it does not say.
        available_bytes: in the same message, what the device has for it.
        argument_bytes: weights, optimizer and batch, as they lie in the device's memory.
        temporary_bytes: activations and all else that lives only during the program.
        output_bytes: results that do not take the place of an argument.
        program_bytes: the instructions.
        peak_bytes: the compiler's own count of the peak.
        flops, bytes_accessed: of one execution; a loop's body is counted once.
        host_operations: operations that would wait for the host; must be empty.
        product_flops: those of matrix products and convolutions, of the optimized program; see `counts`. This and what
            follows are 0 and empty where the program's text could not be read.
        collectives: what devices exchange, `(opcode, count, bytes)` of each kind; see `counts.find_collectives`.
        traffic: the arrays that are moved most, `(array, bytes read, bytes written)`; see `counts.find_traffic`.
    """

    compiles: bool
    error: str = ""
    out_of_memory: bool = False
    required_bytes: int = 0
    available_bytes: int = 0
    argument_bytes: int = 0
    temporary_bytes: int = 0
    output_bytes: int = 0
    program_bytes: int = 0
    peak_bytes: int = 0
    flops: float = 0.0
    bytes_accessed: float = 0.0
    host_operations: tuple = ()
    product_flops: float = 0.0
    collectives: tuple = ()
    traffic: tuple = ()

    @property
    def memory_bytes(self):
        """What the program needs of the device's memory; of one that does not fit, what the compiler asked for."""
        if not self.compiles:
            return self.required_bytes
        parts = self.argument_bytes + self.temporary_bytes + self.output_bytes
        return max(parts, self.peak_bytes) + self.program_bytes


def compiled_program(text, host_operations=(), **numbers):
    """The `Program` of an executable.

    Args:
        text: its optimized HLO; "" if it cannot be read, and then there are no product FLOPs, collectives and traffic.
        host_operations: what `compiler.find_host_operations` returned.
        **numbers: what `compiler.compiled_numbers` returned.
    """
    if not text:
        return Program(compiles=True, host_operations=tuple(host_operations), **numbers)
    module = hlo.parse(text)
    return Program(
        compiles=True,
        host_operations=tuple(host_operations),
        product_flops=counts.product_flops(module),
        collectives=tuple(counts.find_collectives(module)),
        traffic=tuple(counts.find_traffic(module)[:MOST_ARRAYS]),
        **numbers,
    )


def refused_program(error):
    """The `Program` of an exception of the compiler or of the lowering before it."""
    text = str(error).strip()
    needed = re.search(r"\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)", text)
    needed = needed or re.search(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm", text)
    sizes = (0, 0)
    if needed:
        sizes = [int(float(needed[i]) * _UNITS[needed[i + 1]]) for i in (1, 3)]
    return Program(
        compiles=False,
        error=text,
        out_of_memory="RESOURCE_EXHAUSTED" in text,
        required_bytes=sizes[0],
        available_bytes=sizes[1],
    )


def first_line(error):
    """The first line of an exception's message, or of a text."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
