"""What the compiler says of a program."""

import dataclasses
import re

from keras_vit.tpu import counts, hlo

# Of `Program.traffic`.
MOST_ARRAYS = 50

# What machine code takes where it was not generated, a share of the other memory; 0.2 to 1 % was seen.
CODE_SHARE = 0.01

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
        temporary_bytes: all else that the program keeps there: activations, and results that do not take the place of
            an argument. Not what it keeps in the small memory beside the units.
        program_bytes: the machine code.
        flops: of one execution, by the compiler. It counts a loop's body once; here the products in it come as often as
            the loop runs, and all else once in every step.
        host_operations: operations that would wait for the host; must be empty.
        bytes_accessed: what it moves between the device and its large memory, the sum of `counts.find_traffic`.
        product_flops: those of matrix products and convolutions, of the optimized program; see `counts`.
        collectives: what devices exchange, `(opcode, count, bytes)` of each kind; see `counts.find_collectives`.
        traffic: the arrays that are moved most, `(array, bytes read, bytes written)`; see `counts.find_traffic`.
        steps: training steps of one execution, which all the counts are of.
    """

    compiles: bool
    error: str = ""
    out_of_memory: bool = False
    required_bytes: int = 0
    available_bytes: int = 0
    argument_bytes: int = 0
    temporary_bytes: int = 0
    program_bytes: int = 0
    flops: float = 0.0
    bytes_accessed: float = 0.0
    host_operations: tuple = ()
    product_flops: float = 0.0
    collectives: tuple = ()
    traffic: tuple = ()
    steps: int = 1

    @property
    def memory_bytes(self):
        """What the program needs of the device's memory; of one that does not fit, what the compiler asked for."""
        if not self.compiles:
            return self.required_bytes
        return self.argument_bytes + self.temporary_bytes + self.program_bytes


def compiled_program(text, planned_bytes, host_operations=(), *, program_bytes=None, flops=None, steps=1):
    """The `Program` of an executable, or of what the compiler has before it generates machine code.

    Args:
        text: its optimized HLO.
        planned_bytes: what arguments, results and all else take together, in the large memory.
        host_operations: what `compiler.find_host_operations` returned.
        program_bytes: of the machine code; None, where there is none, for `CODE_SHARE` of the rest.
        flops: the compiler's count; None, where there is no executable, for those of products, which were seen to be
            2 % below it.
        steps: training steps of an execution; see `counts.repetitions`.
    """
    module = hlo.parse(text)
    arguments = sum(
        array.padded_bytes
        for line in module.computations[module.entry].values()
        if line.opcode == "parameter"
        for array in line.outputs
        if array.in_main_memory
    )
    times = counts.repetitions(module, steps)
    traffic, product_flops = counts.find_traffic(module, times), counts.product_flops(module, times)
    if flops is None:
        flops = product_flops
    else:  # the other operations, which the compiler counts once, come in every step
        flops = product_flops + steps * (flops - counts.product_flops(module))
    return Program(
        compiles=True,
        argument_bytes=arguments,
        temporary_bytes=max(planned_bytes - arguments, 0),
        program_bytes=int(CODE_SHARE * planned_bytes) if program_bytes is None else program_bytes,
        flops=flops,
        host_operations=tuple(host_operations),
        bytes_accessed=float(sum(reads + writes for _, reads, writes in traffic)),
        product_flops=product_flops,
        collectives=tuple(counts.find_collectives(module, times)),
        traffic=tuple(traffic[:MOST_ARRAYS]),
        steps=steps,
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
