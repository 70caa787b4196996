"""Parses the text of an HLO module, as XLA writes it before or after optimization."""

import dataclasses
import functools
import math
import re

_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = (.*)")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\](?:\{([^{}]*)\})?")
_CALLED = re.compile(
    r"(?:body|condition|to_apply|calls|called_computations|branch_computations|true_computation|false_computation)="
    r"(\{[^{}]*\}|%?[\w.\-]+)"
)


@dataclasses.dataclass(frozen=True)
class Array:
    """An array as it lies in memory.

    Attributes:
        dtype: such as "bf16".
        shape: its sides.
        layout: as XLA writes it, such as "1,0:T(8,128)(2,1)S(1)": the axes from the fastest on, tiles, memory space.
    """

    dtype: str
    shape: tuple
    layout: str = ""

    @property
    def bytes(self):
        """Of its numbers."""
        return math.prod(self.shape) * self._bits // 8

    @property
    def padded_bytes(self):
        """Of its tiles: those at the end of an axis are filled up."""
        axes, _, rest = self.layout.partition(":")
        tile = re.match(r"T\(([\d,]+)\)", rest)
        if not tile or not axes:
            return self.bytes
        sides = [self.shape[int(axis)] for axis in axes.split(",")]
        for i, length in enumerate(reversed(numbers(tile[1]))):
            if i < len(sides):
                sides[i] = -(-sides[i] // length) * length
        return math.prod(sides) * self._bits // 8

    @property
    def in_main_memory(self):
        """Whether it lies in the device's large memory, and not in the small one beside its units."""
        return not re.search(r"S\([1-9]", self.layout)

    @property
    def _bits(self):
        if self.dtype == "pred":
            return 8
        digits = re.search(r"\d+", self.dtype)
        return int(digits[0]) if digits else 0  # a token has no size

    def __str__(self):
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
        opcode: such as "fusion".
        outputs: a list of `Array`s.
        operands: names of instructions.
        attributes: the text after the operands.
        literal: of a constant, its value as XLA writes it.
        is_root: whether its result is that of its computation.
    """

    opcode: str
    outputs: list
    operands: list
    attributes: str
    literal: str = ""
    is_root: bool = False

    @property
    def called(self):
        """The names of the computations that it calls."""
        return [name for text in _CALLED.findall(self.attributes) for name in re.findall(r"[\w.\-]+", text)]

    @property
    def body(self):
        """The name of a loop's body."""
        return re.search(r"\bbody=%?([\w.\-]+)", self.attributes)[1]

    @property
    def condition(self):
        """The name of a loop's condition."""
        return re.search(r"\bcondition=%?([\w.\-]+)", self.attributes)[1]

    @property
    def index(self):
        """Which part of a tuple a `get-tuple-element` is."""
        return int(re.search(r"\bindex=(\d+)", self.attributes)[1])


@dataclasses.dataclass(frozen=True)
class Module:
    """A module.

    Attributes:
        computations: `{name: {name: Instruction}}`.
        entry: the name of the computation that is executed.
    """

    computations: dict
    entry: str

    @functools.cached_property
    def instructions(self):
        """All instructions of all computations, by their name."""
        return {name: line for lines in self.computations.values() for name, line in lines.items()}

    def root(self, name):
        """The `Instruction` whose result is that of a computation."""
        return next(line for line in self.computations[name].values() if line.is_root)

    @property
    def executed(self):
        """The names of the computations whose instructions the device executes one by one: no fusions."""
        names, waiting = {}, [self.entry]
        while waiting:
            name = waiting.pop()
            if name in names or name not in self.computations:
                continue
            names[name] = None
            for line in self.computations[name].values():
                if line.opcode in ("while", "conditional", "call", "async-start"):
                    waiting += line.called
        return list(names)


def parse(text):
    """The `Module` of a text.

    Raises:
        ValueError: it has no computation to execute.
    """
    computations, entry, lines = {}, None, None
    for line in text.splitlines():
        if header := _HEADER.match(line):
            lines = computations[header[2]] = {}
            entry = header[2] if header[1] else entry
        elif (match := _INSTRUCTION.match(line)) and lines is not None:
            instruction = _instruction(match[3], is_root=bool(match[1]))
            if instruction:
                lines[match[2]] = instruction
    if entry is None:
        raise ValueError(f"The text is not that of an HLO module. Received: {text[:60]!r}")
    return Module(computations, entry)


def _instruction(text, is_root):
    """The `Instruction` of a line's right side: `SHAPE OPCODE(OPERANDS), ATTRIBUTES`; None if it is no such line."""
    end = _closing(text, 0) + 1 if text.startswith("(") else text.find(" ")
    opcode = re.match(r" *([\w\-]+)\(", text[end:])
    if end <= 0 or not opcode:
        return None
    start = end + opcode.end() - 1
    stop = _closing(text, start)
    operands = text[start + 1 : stop]
    # XLA writes "f32[2,3]{1,0} %name" or parts of it.
    names = re.findall(r"%([\w.\-]+)" if "%" in operands else r"(?:^|[ ,])([A-Za-z_][\w.\-]*)(?=,|$)", operands)
    if opcode[1] in ("constant", "parameter", "iota"):
        names = []
    outputs = [
        Array(dtype, tuple(numbers(re.sub("[<=]", "", shape))), layout)
        for dtype, shape, layout in _ARRAY.findall(text[:end])
    ]
    literal = operands if opcode[1] == "constant" else ""
    return Instruction(opcode[1], outputs, names, text[stop + 1 :], literal, is_root)


def _closing(text, start):
    """Where the parenthesis at `start` is closed."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if not depth:
            return match.start()
    return len(text)


def numbers(text):
    """The integers of "1,0"."""
    return [int(number) for number in text.split(",") if number]
