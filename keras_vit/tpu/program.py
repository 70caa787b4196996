"""The result of compiling a program."""

import dataclasses
import re

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Program:
    """The result of compiling a program. Sizes and counts are per device."""

    compiles: bool
    error: str = ""  # the compiler's message
    out_of_memory: bool = False  # whether the program does not fit in the device's memory
    required_bytes: int = 0  # memory that the program needs if it does not fit; 0 if unknown
    argument_bytes: int = 0  # weights, optimizer state and batch, as laid out in HBM
    temporary_bytes: int = 0  # activations, and outputs that do not reuse the memory of an argument
    program_bytes: int = 0
    flops: float = 0.0  # per execution; `cost_analysis` counts loop bodies once
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
    """Returns the `Program` for an error from lowering or compiling, an exception or a message."""
    text = str(error).strip()
    needed = re.search(r"\(([\d.]+)([KMGT]?)\) exceeds available HBM", text)
    needed = needed or re.search(r"Used ([\d.]+)([KMGT]?) of [\d.]+[KMGT]? hbm", text)
    required_bytes = int(float(needed[1]) * _UNITS[needed[2]]) if needed else 0
    return Program(False, text, "RESOURCE_EXHAUSTED" in text, required_bytes)
