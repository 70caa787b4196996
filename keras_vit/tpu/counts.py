"""What an HLO module says of itself: the FLOPs of its products, what its devices exchange, what moves its bytes.

A loop's body is counted once, as XLA's own counts do.
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


def product_flops(module):
    """The FLOPs of its matrix products and convolutions: two for each multiply-accumulate, without those with the zeros
    around or between the numbers of an image."""
    instructions, total = module.instructions, 0
    for line in instructions.values():
        if line.opcode in ("dot", "convolution"):
            lhs, rhs = (instructions[name].outputs[0].shape for name in line.operands[:2])
            count = _dot if line.opcode == "dot" else _convolution
            total += 2 * count(lhs, rhs, line.outputs[0].shape, line.attributes)
    return total


def find_collectives(module):
    """What the devices exchange.

    Returns:
        A sorted list of `(opcode, count, bytes)`: how many instructions there are of it, and the bytes of their arrays,
        whole ones for reduce-scatter and all-gather.
    """
    counts, sizes = collections.Counter(), collections.Counter()
    for opcode, operands, outputs in exchanges(module):
        counts[opcode] += 1
        sizes[opcode] += max(sum(array.bytes for array in arrays) for arrays in (operands, outputs))
    return [(opcode, counts[opcode], sizes[opcode]) for opcode in sorted(counts)]


def exchanges(module):
    """The collective operations, each one once.

    Returns:
        A list of `(opcode, operands, outputs)`, the last two lists of `Array`s. The compiler for TPUs writes a
        reduce-scatter as a fusion of an all-reduce and slices of its outputs; its opcode is "reduce-scatter" here.
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
            result.append((opcode, operands, outputs))
    return result


def find_traffic(module):
    """What moves between a device and its large memory, by the arrays.

    An instruction reads its operands whole and writes its outputs, tiles filled up; what lies in the small memory moves
    nothing. One that needs a part of an operand is counted for all of it, so that the sum is about XLA's.

    Returns:
        A list of `(array, bytes read, bytes written)`, such as `("bf16[64,12,197,197]", 10**9, 10**9)`, from the
        largest sum on.
    """
    instructions = module.instructions
    reads, writes = collections.Counter(), collections.Counter()
    for line in module.executed:
        if line.opcode in _FREE or line.opcode.endswith("-done"):
            continue
        outputs = line.outputs[:1] if line.opcode in ("copy-start", "slice-start") else line.outputs
        for counter, arrays in (
            (reads, [array for name in line.operands for array in instructions[name].outputs]),
            (writes, outputs),
        ):
            for array in arrays:
                if array.in_main_memory:
                    counter[str(array)] += array.padded_bytes
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


def window_products(side, taps, outputs, stride, low, side_dilation, tap_dilation):
    """Along one axis, the pairs of an output and a tap that meet a number, and not a zero around or between them."""
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
