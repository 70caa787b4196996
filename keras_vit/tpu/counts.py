"""What an HLO module says of itself: the FLOPs of its products, what its devices exchange, what moves its bytes.

XLA's own counts take the body of a loop once. Here it counts as often as the loop runs; see `repetitions`.
"""

import collections
import math
import re

from keras_vit.tpu.hlo import numbers

COLLECTIVES = (
    "all-reduce", "reduce-scatter", "all-gather", "all-to-all", "ragged-all-to-all", "collective-permute",
    "collective-broadcast",
)  # fmt: skip

# Instructions that move nothing themselves: names for parts of memory, ends of what a `-start` began, and calls, whose
# computations are read.
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "while", "conditional", "call",
    "async-start", "async-update", "partition-id", "replica-id", "opt-barrier", "add-dependency",
}  # fmt: skip


def repetitions(module, steps=1):
    """How often each computation is executed.

    The length of a loop is read from its condition, which compares a number that grows evenly with a constant; so are
    those over micro-batches, and those in which devices pass parts of a product around.

    Args:
        module: a `Module`.
        steps: how often a loop runs whose length is not in the text: training steps of an execution, an argument of it.

    Returns:
        `{computation: times}`.
    """
    times = {}

    def visit(name, factor):
        if times.get(name, 0) >= factor:
            return
        times[name] = factor
        for line in module.computations.get(name, {}).values():
            inner = factor
            if line.opcode == "while":
                inner *= _length(module, name, line) or (steps if factor == 1 else 1)
            for called in line.called:
                visit(called, inner)

    visit(module.entry, 1)
    return times


def _length(module, name, loop):
    """How often a loop of a computation runs; None where its text does not say so."""
    compare, condition = module.root(loop.condition), module.computations[loop.condition]
    if compare.opcode != "compare" or "direction=LT" not in compare.attributes:
        return None
    start = module.computations[name].get(loop.operands[0])
    end = module.root(loop.body)
    counter, limit = (condition[operand] for operand in compare.operands)
    if counter.opcode != "get-tuple-element" or start.opcode != "tuple" or end.opcode != "tuple":
        return None
    first = _constant(module, start.operands[counter.index])
    last = _constant(module, compare.operands[1])
    if limit.opcode == "get-tuple-element":
        last = _constant(module, start.operands[limit.index])
    add = module.instructions[end.operands[counter.index]]
    steps = [_constant(module, operand) for operand in add.operands] if add.opcode == "add" else []
    step = next((step for step in steps if step), None)
    return -(-(last - first) // step) if None not in (first, last, step) else None


def _constant(module, name):
    """The integer that an instruction is; None if it is none."""
    line = module.instructions[name]
    while line.opcode in ("copy", "bitcast"):
        line = module.instructions[line.operands[0]]
    return int(line.literal) if re.fullmatch(r"-?\d+", line.literal) else None


def product_flops(module, times=None):
    """The FLOPs of its matrix products and convolutions: two for each multiply-accumulate, without those with the zeros
    around or between the numbers of an image.

    Args:
        module: a `Module`.
        times: of `repetitions`; None to count each computation once.
    """
    times = times or {}
    return sum(times.get(name, 1) * flops for name, flops in _flops_of_computations(module).items())


def _flops_of_computations(module):
    """`{computation: the FLOPs of its own products}`."""
    instructions, result = module.instructions, collections.Counter()
    for name, lines in module.computations.items():
        for line in lines.values():
            if line.opcode in ("dot", "convolution"):
                lhs, rhs = (instructions[operand].outputs[0].shape for operand in line.operands[:2])
                count = _dot if line.opcode == "dot" else _convolution
                result[name] += 2 * count(lhs, rhs, line.outputs[0].shape, line.attributes)
    return result


def find_collectives(module, times):
    """What the devices exchange.

    Args:
        module: a `Module`.
        times: of `repetitions`.

    Returns:
        A sorted list of `(opcode, count, bytes)`: how often it is executed, and the bytes of its arrays, whole ones for
        reduce-scatter and all-gather.
    """
    counts, sizes = collections.Counter(), collections.Counter()
    for computation, opcode, operands, outputs in exchanges(module):
        counts[opcode] += times.get(computation, 1)
        size = max(sum(array.bytes for array in arrays) for arrays in (operands, outputs))
        sizes[opcode] += times.get(computation, 1) * size
    return [(opcode, counts[opcode], sizes[opcode]) for opcode in sorted(counts)]


def exchanges(module):
    """The collective operations, each one once.

    Returns:
        A list of `(computation, opcode, operands, outputs)`, the last two lists of `Array`s. The compiler for TPUs
        writes a reduce-scatter as a fusion of an all-reduce and slices of its outputs; its opcode is "reduce-scatter"
        here.
    """
    instructions, result, channels = module.instructions, [], set()
    for computation, lines in module.computations.items():
        for name, line in lines.items():
            opcode, channel = line.opcode.removesuffix("-start"), re.search(r"\bchannel_id=(\d+)", line.attributes)
            # One that runs beside products is written again in each of their fusions, on the same channel.
            key = (opcode, channel[1] if channel else name)
            if opcode not in COLLECTIVES or key in channels:
                continue
            channels.add(key)
            if opcode == "all-reduce" and computation.startswith("all-reduce-scatter"):
                opcode = "reduce-scatter"
            operands = [array for operand in line.operands for array in instructions[operand].outputs]
            outputs = line.outputs
            if line.opcode in ("all-gather-start", "collective-permute-start"):
                outputs = outputs[len(operands) :]  # the operands are named among them
            result.append((computation, opcode, operands, outputs))
    return result


def find_traffic(module, times):
    """What moves between a device and its large memory, by the arrays.

    An instruction reads its operands whole, or of a slice the part, and writes its outputs, tiles filled up; what lies
    in the small memory beside the units moves nothing. XLA's own "bytes accessed" counts both memories: they are equal
    on a v2 and v3, whose small memory is small, and more on the others.

    Args:
        module: a `Module`.
        times: of `repetitions`.

    Returns:
        A list of `(array, bytes read, bytes written)`, such as `("bf16[64,12,197,197]", 10**9, 10**9)`, from the
        largest sum on.
    """
    instructions = module.instructions
    reads, writes = collections.Counter(), collections.Counter()
    for computation in module.executed:
        factor = times.get(computation, 1)
        for line in module.computations[computation].values():
            if line.opcode in _FREE or line.opcode.endswith("-done"):
                continue
            operands = [array for name in line.operands for array in instructions[name].outputs]
            outputs = line.outputs[:1] if line.opcode == "copy-start" else line.outputs
            for array in operands:
                if array.in_main_memory:
                    part = outputs[0] if line.opcode in ("slice", "dynamic-slice") else array
                    reads[str(array)] += factor * part.padded_bytes
            for array in outputs:
                if array.in_main_memory:
                    writes[str(array)] += factor * array.padded_bytes
    total = reads + writes
    return [(name, reads[name], writes[name]) for name, _ in total.most_common()]


def _dot(lhs, rhs, output, attributes):
    contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", attributes)
    return math.prod(output) * math.prod(lhs[axis] for axis in numbers(contracted[1]))


def _convolution(lhs, rhs, output, attributes):
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", attributes)
    images, kernel, results = labels.groups()
    window = dict(re.findall(r"(\w+)=([\w\-]+)", re.search(r"window=\{([^}]*)\}|$", attributes)[1] or ""))
    count = output[results.index("b")] * output[results.index("f")] * rhs[kernel.index("i")]
    for axis in range(len(labels[1]) - 2):

        def option(name, default, axis=axis):
            return window[name].split("x")[axis] if name in window else default

        low = option("pad", "0_0").split("_")[0]
        count *= window_products(
            lhs[images.index(str(axis))],
            rhs[kernel.index(str(axis))],
            output[results.index(str(axis))],
            int(option("stride", 1)),
            int(low),
            int(option("lhs_dilate", 1)),
            int(option("rhs_dilate", 1)),
        )
    return count


def window_products(side, taps, outputs, stride=1, low=0, side_dilation=1, tap_dilation=1):
    """The pairs of an output and a tap, along one axis of a convolution, that meet a number and not a zero.

    Args:
        side: how many numbers there are.
        taps: how many the kernel has.
        outputs: how many the result has.
        stride: from one output to the next, in numbers and the zeros between them.
        low: how many zeros come before the first number; negative where the kernel begins after it.
        side_dilation: from one number to the next; more than 1 where zeros are between them.
        tap_dilation: from one tap to the next.
    """
    last, common = (side - 1) * side_dilation, math.gcd(stride, side_dilation)
    period, count = side_dilation // common, 0  # of the outputs that meet a number and not a zero between two
    for tap in range(taps):
        first = tap * tap_dilation - low  # where the first output meets it
        if first % common:
            continue
        begin, end = max(0, -(first // stride)), min(outputs - 1, (last - first) // stride)
        phase = -first // common * pow(stride // common, -1, period) % period
        count += max(0, (end - phase) // period - (begin - 1 - phase) // period)
    return count
