"""What a training step of a Vision Transformer needs of memory, by formula, before the first step.

    state         weights, optimizer and averages
    gradients     two to four times the weights: the gradients, and what clipping and update make of them
    activations   what the blocks keep for the backward pass, for each image of a micro-batch

The numbers of kept arrays were compared with peaks on a CPU, of TensorFlow and of JAX. On JAX the compiler decides what
is kept: on a CPU it computes in float32 whatever the precision, and takes rematerialization out again. What it keeps on
a GPU is not known.
"""

import dataclasses
import math
from pathlib import Path

import keras

from keras_vit.layers import ResNetStem, TransformerBlock

# Of a process that has imported TensorFlow and Keras and traced a step, without and with JAX; only where memory is that
# of the machine.
PROCESS_BYTES, JAX_PROCESS_BYTES = 1030 * 10**6, 1140 * 10**6
_WAITING_BATCHES = 6  # of the input, in float32


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one device, or of all devices that share the memory of this machine.

    Attributes:
        state, gradients, activations: see the head of the file.
        process: of the program itself, where the memory is the machine's; else 0.
    """

    state: int
    gradients: int
    activations: int
    process: int

    @property
    def total(self):
        return self.state + self.gradients + self.activations + self.process


def estimate_memory(config, model, num_devices=1, num_hosts=1, on_cpu=True):
    """The `MemoryEstimate` of a training step; None for a model that is not a plain Vision Transformer, and for state
    that devices divide (`config.shard`).

    Args:
        config: the recipe: batch, precision, accumulation, rematerialization, averages and optimizer.
        model: the model, built.
        num_devices: devices that share a batch, over all hosts.
        num_hosts: hosts that share them.
        on_cpu: whether the devices of a host share its memory.
    """
    blocks = [layer for layer in model.layers if isinstance(layer, TransformerBlock)]
    if not blocks or any(block.relative_positions for block in blocks) or config.shard:
        return None
    if any(isinstance(layer, ResNetStem) for layer in model.layers):
        return None
    on_jax = keras.backend.backend() == "jax"
    width = 4 if config.precision == "float32" or on_jax else 2
    tokens, hidden_size = blocks[0].input.shape[1:]
    if on_jax:
        activations = [_jax_block_bytes(block, tokens, hidden_size) for block in blocks]
    else:
        activations = [_block_bytes(block, tokens, hidden_size, width) for block in blocks]
    if config.remat and not on_jax:  # all inputs, and one block while it is computed again
        activations = [len(blocks) * width * tokens * hidden_size, max(activations)]
    image_size = math.prod(model.input.shape[1:])  # numbers of an image
    inputs = 4 * _WAITING_BATCHES * image_size * config.accumulate_steps
    embedding = width * (image_size + 2 * tokens * hidden_size)

    weights = 4 * model.count_params()
    momentum = 0.5 if config.optimizer.momentum_dtype == "bfloat16" else 1
    slots = momentum + (config.optimizer.name == "adamw")
    images = config.batch_size // num_devices // config.accumulate_steps
    copies = num_devices // num_hosts if on_cpu else 1
    return MemoryEstimate(
        state=int(copies * weights * (1 + slots + (config.ema_decay > 0))),
        gradients=int(copies * weights * (3.5 if on_jax else 2 + (config.accumulate_steps > 1))),
        activations=copies * images * (sum(activations) + inputs + embedding),
        process=(JAX_PROCESS_BYTES if on_jax else PROCESS_BYTES) if on_cpu else 0,
    )


def memory_line(config, model, num_devices=1, num_hosts=1, on_cpu=True, available=0):
    """What a run says of its memory before it starts, a line; "" for a model that is not known.

    Args:
        config, model, num_devices, num_hosts, on_cpu: of `estimate_memory`.
        available: bytes that there are; 0 where that is not known.
    """
    estimate = estimate_memory(config, model, num_devices, num_hosts, on_cpu)
    if estimate is None:
        return ""
    parts = {
        "weights, optimizer and averages": estimate.state,
        "gradients": estimate.gradients,
        "activations": estimate.activations,
        "program": estimate.process,
    }
    text = ", ".join(f"{name} {_gb(size)}" for name, size in parts.items() if size)
    line = f"memory by formula: {_gb(estimate.total)} ({text})"
    if not available:
        return line
    if estimate.total <= available:
        return f"{line}; {_gb(available)} are there"
    remedies = {}
    for field, value in _remedies(config, num_devices):
        changed = config.copy_and_resolve_references()
        changed[field] = value
        if estimate_memory(changed, model, num_devices, num_hosts, on_cpu).total <= available:
            remedies.setdefault(field, f"{field}={value!r}")
    advice = f"with {' or '.join(remedies.values())} it would fit" if remedies else "a smaller batch or model may fit"
    return f"warning: {line}, but only {_gb(available)} are there; {advice}"


def available_memory(cgroup="/sys/fs/cgroup"):
    """Bytes of this machine's memory that this process has or can get; 0 where that is not known.

    Args:
        cgroup: the folder in which Linux says what a container may have.
    """
    try:
        with open("/proc/meminfo") as system, open("/proc/self/status") as process:
            lines = dict(line.split(":", 1) for line in [*system, *process])
        free, resident = (1024 * int(lines[name].split()[0]) for name in ("MemAvailable", "VmRSS"))
    except (OSError, KeyError, ValueError):
        return 0
    return max(min(free, _container_memory(Path(cgroup))), 0) + resident


def _container_memory(cgroup):
    """What a container may still take, bytes, the files that the system keeps in memory not counted; infinite where
    nothing limits it. The two sets of names are those of the two versions of control groups."""
    for limit, usage, stat, cache in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    ):
        try:
            kept = dict(line.split() for line in (cgroup / stat).read_text().splitlines())
            return int((cgroup / limit).read_text()) - int((cgroup / usage).read_text()) + int(kept[cache])
        except (OSError, KeyError, ValueError):  # "max" is no limit
            continue
    return math.inf


def _block_bytes(block, tokens, hidden_size, width):
    """What a block keeps for the backward pass of an image; `width` is the bytes of a number in the compute dtype."""
    d, m = tokens * hidden_size, tokens * block.mlp_dim
    if block.first_token_only:  # a norm, keys and values
        return d * (3 * 4 + 4 * width)
    # Two norms in float32; queries, keys, values, their transposes and sums; the MLP before, in and after GELU; scores
    # before and after softmax, which is in float32.
    scores = block.num_heads * tokens**2 * (8 if width == 4 else 12)
    masks = 2 * (m + 2 * d) if block.dropout else 0
    return d * (6 * 4 + 8 * width) + 4 * width * m + scores + masks


def _jax_block_bytes(block, tokens, hidden_size):
    """What a block takes of an image on JAX on a CPU, fitted to peaks: arrays of the MLP's size, scores and masks."""
    d, m = tokens * hidden_size, tokens * block.mlp_dim
    if block.first_token_only:
        return 4 * 7 * d
    scores = block.num_heads * tokens**2
    masks = 11 * (m + 2 * d) if block.dropout else 0
    return int(4 * (6.5 * m + 4.5 * scores)) + masks


def _remedies(config, num_devices):
    """Pairs of a field of the recipe and a value that needs less memory, the mildest first: the first two fields change
    no number."""
    images = config.batch_size // num_devices
    for steps in (2**power for power in range(1, 20)):
        if config.accumulate_steps < steps and images % steps == 0:
            yield "accumulate_steps", steps
    if not config.remat:
        yield "remat", True
    if config.precision == "float32":
        yield "precision", "mixed_bfloat16"


def _gb(number):
    return f"{number / 1e9:.3g} GB"
