"""big_vision's layout: the original's modules, with other places for positions and pooling.

Its `MAPHead_0` and `pos_embedding` hold no other numbers than the original would. Older files keep positions inside
the Transformer, the pooling's modules at the top, or all blocks stacked along a first axis (a scanned model).
"""

import re

from keras_vit.checkpoints.names import POSITIONS
from keras_vit.checkpoints.stored import LastRead

_POSITIONS = ("pos_embedding", "Transformer/pos_embedding")
_BARE_POOLING = re.compile(r"(probe|MlpBlock_0/.*|MultiHeadDotProductAttention_0/.*|LayerNorm_0/.*)")
_STACKED = re.compile(r"Transformer/encoderblock/(.*)")


def from_big_vision(weights):
    """`{current name: Stored}` with big_vision's places renamed to the original's.

    Reference: big_vision's `fix_old_checkpoints`. A class token's position that these files add to the token itself
    is left for the load to settle, which knows what the model has.
    """
    bare_pooling = "probe" in weights
    fixed, last_read = {}, LastRead()
    for name, stored in weights.items():
        stacked = _STACKED.fullmatch(name)
        if stacked and len(stored.shape) > 1:
            for i in range(stored.shape[0]):
                fixed[f"Transformer/encoderblock_{i}/{stacked[1]}"] = last_read.part(stored, stored.shape[1:], i)
        elif name in _POSITIONS:
            fixed[POSITIONS] = stored
        elif bare_pooling and _BARE_POOLING.fullmatch(name):
            fixed[f"MAPHead_0/{name}"] = stored
        else:
            fixed[name] = stored
    return fixed
