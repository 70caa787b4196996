"""What the compiler says about a program."""

import dataclasses
import re

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Program:
    """What the compiler says about a program on one device."""

    compiles: bool
    error: str = ""  # the compiler's message
    out_of_memory: bool = False  # whether the device's memory is the reason for the error
    required_bytes: int = 0  # what the compiler asks for if it runs out of memory; 0 if it does not say
    argument_bytes: int = 0  # weights, optimizer and batch, as they lie in HBM
    temporary_bytes: int = 0  # activations, and results that replace no argument
    program_bytes: int = 0
    flops: float = 0.0  # of one execution; `cost_analysis` counts the body of a loop once
    bytes_accessed: float = 0.0  # HBM traffic of one execution
    traffic: tuple = ()  # the arrays that are moved most, `(array, bytes)`
    steps: int = 1  # training steps of one execution

    @property
    def memory_bytes(self):
        """HBM that the program needs; if it does not fit, what the compiler asked for."""
        if not self.compiles:
            return self.required_bytes
        return self.argument_bytes + self.temporary_bytes + self.program_bytes


def refused_program(error):
    """Returns the `Program` of an exception of the compiler or of the lowering before it."""
    text = str(error).strip()
    needed = re.search(r"\(([\d.]+)([KMGT]?)\) exceeds available HBM", text)
    needed = needed or re.search(r"Used ([\d.]+)([KMGT]?) of [\d.]+[KMGT]? hbm", text)
    required_bytes = int(float(needed[1]) * _UNITS[needed[2]]) if needed else 0
    return Program(False, text, "RESOURCE_EXHAUSTED" in text, required_bytes)
