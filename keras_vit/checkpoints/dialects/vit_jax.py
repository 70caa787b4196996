"""The dialect of `vit_jax`, big_vision (including its ResNets) and keras_vit.

Its names are canonical.
"""

from keras_vit.checkpoints import names
from keras_vit.checkpoints.dialects.dialect import Alias, Dialect, Stacked
from keras_vit.checkpoints.names import BLOCK, POSITIONS

# The modules of attention pooling, which old big_vision files have at the top level.
_POOLING = (
    "MlpBlock_0/{rest}",
    "MultiHeadDotProductAttention_0/{rest}",
    "LayerNorm_0/{rest}",
    "probe",
)


def _shape_in_file(name, array):
    return array.reshape(1, 1, 1, -1) if names.is_group_norm(name) else array


VIT_JAX = Dialect(
    "vit_jax",
    (names.EMBEDDING, names.STEM_ROOT, names.BIT_ROOT),
    (
        # The published files count all modules of a block.
        (
            f"{BLOCK}MultiHeadDotProductAttention_1/{{rest}}",
            f"{BLOCK}MultiHeadDotProductAttention_0/{{rest}}",
        ),
        (f"{BLOCK}LayerNorm_2/{{rest}}", f"{BLOCK}LayerNorm_1/{{rest}}"),
        (f"{BLOCK}MlpBlock_3/{{rest}}", f"{BLOCK}MlpBlock_0/{{rest}}"),
        # In big_vision, the position embeddings may be at the top level, and the weights of all
        # blocks stacked.
        ("pos_embedding", Alias(POSITIONS)),
        ("Transformer/pos_embedding", Alias(POSITIONS)),
        *((name, Alias(f"MAPHead_0/{name}")) for name in _POOLING),
        ("Transformer/encoderblock/{rest}", Stacked(f"{BLOCK}{{rest}}")),
    ),
    prefixes=("", "opt/target/", "params/", "params/img/", "img/", "opt/target/img/"),
    shape_in_file=_shape_in_file,
)
