"""Which parameters decay, and at which share of the rate each one learns, by their names."""

import re

DECAY_MASKS = ("all", "kernels")


def decaying(variables, decay_mask, no_decay):
    """Whether the weight decay is for each variable.

    Args:
        variables: `keras.Variable`s.
        decay_mask: "all", or "kernels" for those called `kernel` (no biases, norms, class token or positions).
        no_decay: further names to leave out, separated by commas: of a parameter or of a layer.

    Returns:
        A list of bools.

    Raises:
        ValueError: no variable has one of the names.
    """
    names = [name.strip() for name in no_decay.split(",") if name.strip()]
    parts = [_path(variable).split("/") for variable in variables]
    for name in names:
        if not any(name in words for words in parts):
            raise ValueError(
                "`no_decay` must name parameters or layers of the model, such as pos_embedding or head. "
                f"Received: no_decay={no_decay!r} with nothing called {name!r}"
            )
    return [
        (decay_mask == "all" or words[-1] == "kernel") and not any(name in words for name in names) for words in parts
    ]


def layerwise_multipliers(variables, layer_decay):
    """The share of the rate for each variable: `layer_decay` to the power of its distance from the head.

    The head and the norm before it have distance 0, the last block 1, and so on to what comes before the first block.

    Args:
        variables: `keras.Variable`s.
        layer_decay: in (0, 1]; 1 for the same rate everywhere.

    Returns:
        A list of floats.

    Raises:
        ValueError: it is below 1 and the variables are of no Transformer.

    Reference: Clark et al., "ELECTRA"; Bao et al., "BEiT".
    """
    if layer_decay == 1:
        return [1.0] * len(variables)
    blocks = [re.search(r"(?:^|/)encoderblock_(\d+)/", _path(variable)) for variable in variables]
    numbers = [int(block[1]) for block in blocks if block]
    if not numbers:
        raise ValueError(f"`layer_decay` needs a Transformer with blocks. Received: layer_decay={layer_decay}")
    depths, depth = [], 0
    # Variables come in the order of the model: what stands before the first block is at the bottom, what comes after
    # the last at the top.
    for block in blocks:
        if block:
            depth = int(block[1]) + 1
        elif depth == max(numbers) + 1:
            depth += 1
        depths.append(depth)
    return [layer_decay ** (max(numbers) + 2 - depth) for depth in depths]


def _path(variable):
    return getattr(variable, "path", variable.name)
