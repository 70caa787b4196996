"""big_vision's names for a Vision Transformer: the modules of `vit_jax`, with other places for positions and pooling.

Its `MAPHead_0` is an attention pooling that `vit_jax` does not have. Older files keep the positions inside the
Transformer, the pooling's modules at the top level, or all blocks stacked along a first axis (a scanned model).
"""

import re

from keras_vit.checkpoints.lazy_array import LastRead
from keras_vit.checkpoints.vit_jax_names import POSITIONS

_POSITIONS = ("pos_embedding", "Transformer/pos_embedding")
_TOP_LEVEL_POOLING = re.compile(r"(probe|MlpBlock_0/.*|MultiHeadDotProductAttention_0/.*|LayerNorm_0/.*)")
_STACKED = re.compile(r"Transformer/encoderblock/(.*)")


def from_big_vision(weights):
    """`{name: LazyArray}` with big_vision's names replaced by those of `vit_jax`; others stay as they are.

    big_vision adds a class token's position to the token itself; planning the load handles it, which knows whether
    the model has such a position.

    Reference: big_vision's `fix_old_checkpoints`.
    """
    top_level_pooling = "probe" in weights
    renamed, last_read = {}, LastRead()
    for name, array in weights.items():
        stacked = _STACKED.fullmatch(name)
        if stacked and len(array.shape) > 1:
            for i in range(array.shape[0]):
                renamed[f"Transformer/encoderblock_{i}/{stacked[1]}"] = last_read.slice(array, array.shape[1:], i)
        elif name in _POSITIONS:
            renamed[POSITIONS] = array
        elif top_level_pooling and _TOP_LEVEL_POOLING.fullmatch(name):
            renamed[f"MAPHead_0/{name}"] = array
        else:
            renamed[name] = array
    return renamed
