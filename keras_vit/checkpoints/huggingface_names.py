"""Hugging Face's names for a Vision Transformer (transformers' `ViTModel` and `ViTForImageClassification`).

Published files have `encoder.layer.N.attention.attention.query`, version 5 of transformers writes
`layers.N.attention.q_proj`; both are read, with and without the prefix `vit.`.
"""

import re

from keras_vit.checkpoints import lazy_array
from keras_vit.checkpoints.vit_jax_names import EMBEDDING, POSITIONS

# An array of this name makes a file one of Hugging Face's.
MARKER = "embeddings.patch_embeddings.projection.weight"

_UNCHANGED = {
    "embeddings.cls_token": "cls",
    "embeddings.position_embeddings": POSITIONS,
    "embeddings.patch_embeddings.projection.bias": "embedding/bias",
    "layernorm.weight": "Transformer/encoder_norm/scale",
    "layernorm.bias": "Transformer/encoder_norm/bias",
    "pooler.dense.bias": "pre_logits/bias",
    "classifier.bias": "head/bias",
}
_DENSE = {"pooler.dense.weight": "pre_logits/kernel", "classifier.weight": "head/kernel"}
_NORMS = {"layernorm_before": "LayerNorm_0", "layernorm_after": "LayerNorm_1"}
_ATTENTION = {
    "attention.attention.query": "query",
    "attention.attention.key": "key",
    "attention.attention.value": "value",
    "attention.output.dense": "out",
    "attention.q_proj": "query",
    "attention.k_proj": "key",
    "attention.v_proj": "value",
    "attention.o_proj": "out",
}
_MLP = {"intermediate.dense": "Dense_0", "output.dense": "Dense_1", "mlp.fc1": "Dense_0", "mlp.fc2": "Dense_1"}


def from_huggingface(arrays, num_heads):
    """A file's arrays in the layout of `vit_jax`: `{name: LazyArray}`; names that are not known stay as they are."""
    weights = {}
    for name_in_file, array in arrays.items():
        name = name_in_file.removeprefix("vit.")
        block = re.fullmatch(r"(?:encoder\.layer|layers)\.(\d+)\.(.*)\.(weight|bias)", name)
        if block:
            name_in_block, array = _of_block(block[2], block[3], array, num_heads)
            if name_in_block is None:
                weights[name_in_file] = array
            else:
                weights[f"Transformer/encoderblock_{block[1]}/{name_in_block}"] = array
        elif name in _UNCHANGED:
            weights[_UNCHANGED[name]] = array
        elif name in _DENSE and len(array.shape) == 2:
            weights[_DENSE[name]] = lazy_array.dense_from_pytorch(array)
        elif name == MARKER and len(array.shape) == 4:
            weights[EMBEDDING] = lazy_array.conv_from_pytorch(array)
        else:
            weights[name_in_file] = array
    return weights


def _of_block(module, kind, array, num_heads):
    """`(name inside the block, LazyArray)` of one array of a block; where it is not known, None and the array."""
    if len(array.shape) != (2 if kind == "weight" and module not in _NORMS else 1):
        return None, array
    if module in _NORMS:
        return f"{_NORMS[module]}/{'scale' if kind == 'weight' else 'bias'}", array
    ending = "kernel" if kind == "weight" else "bias"
    if module in _MLP:
        array = lazy_array.dense_from_pytorch(array) if kind == "weight" else array
        return f"MlpBlock_0/{_MLP[module]}/{ending}", array
    if module not in _ATTENTION:
        return None, array
    product = _ATTENTION[module]
    if product != "out":
        array = lazy_array.qkv_from_pytorch(array, num_heads)
    elif kind == "weight":
        array = lazy_array.attention_output_from_pytorch(array, num_heads)
    return f"MultiHeadDotProductAttention_0/{product}/{ending}", array
