"""Hugging Face's names for a Vision Transformer (transformers' `ViTModel` and `ViTForImageClassification`).

Published files have `encoder.layer.N.attention.attention.query`, version 5 of transformers writes
`layers.N.attention.q_proj`; both are read, with and without the prefix `vit.`.
"""

import re

from keras_vit.checkpoints import pytorch_names as pytorch
from keras_vit.checkpoints.names import POSITIONS

MARK = "embeddings.patch_embeddings.projection.weight"

_PLAIN = {
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


def from_huggingface(arrays, heads):
    """A file's arrays in the original's layout: `{current name: Stored}`; unknown names stay."""
    weights = {}
    for in_file, stored in arrays.items():
        name = in_file.removeprefix("vit.")
        block = re.fullmatch(r"(?:encoder\.layer|layers)\.(\d+)\.(.*)\.(weight|bias)", name)
        if block:
            found = _of_block(block[2], block[3], stored, heads)
            if found is None:
                weights[in_file] = stored
            else:
                weights[f"Transformer/encoderblock_{block[1]}/{found[0]}"] = found[1]
        elif name in _PLAIN:
            weights[_PLAIN[name]] = stored
        elif name in _DENSE and len(stored.shape) == 2:
            weights[_DENSE[name]] = pytorch.dense(stored)
        elif name == MARK and len(stored.shape) == 4:
            weights["embedding/kernel"] = pytorch.convolution(stored)
        else:
            weights[in_file] = stored
    return weights


def _of_block(module, kind, stored, heads):
    """`(name, Stored)` of one array of a block, or None."""
    if len(stored.shape) != (2 if kind == "weight" and module not in _NORMS else 1):
        return None
    if module in _NORMS:
        return f"{_NORMS[module]}/{'scale' if kind == 'weight' else 'bias'}", stored
    ending = "kernel" if kind == "weight" else "bias"
    if module in _MLP:
        return f"MlpBlock_0/{_MLP[module]}/{ending}", pytorch.dense(stored) if kind == "weight" else stored
    if module not in _ATTENTION:
        return None
    product = _ATTENTION[module]
    if product != "out":
        stored = pytorch.into_heads(stored, heads)
    elif kind == "weight":
        stored = pytorch.out_of_heads(stored, heads)
    return f"MultiHeadDotProductAttention_0/{product}/{ending}", stored
