"""timm's names for a Vision Transformer (`timm.models.vision_transformer`)."""

import re

from keras_vit.checkpoints import lazy_array
from keras_vit.checkpoints.vit_jax_names import EMBEDDING, POSITIONS

# An array of this name makes a file one of timm's.
MARKER = "patch_embed.proj.weight"

_UNCHANGED = {
    "cls_token": "cls",
    "pos_embed": POSITIONS,
    "patch_embed.proj.bias": "embedding/bias",
    "norm.weight": "Transformer/encoder_norm/scale",
    "norm.bias": "Transformer/encoder_norm/bias",
    "pre_logits.fc.bias": "pre_logits/bias",
    "head.bias": "head/bias",
}
_DENSE = {"pre_logits.fc.weight": "pre_logits/kernel", "head.weight": "head/kernel"}
_BLOCK_UNCHANGED = {
    "norm1.weight": "LayerNorm_0/scale",
    "norm1.bias": "LayerNorm_0/bias",
    "norm2.weight": "LayerNorm_1/scale",
    "norm2.bias": "LayerNorm_1/bias",
    "attn.proj.bias": "MultiHeadDotProductAttention_0/out/bias",
    "mlp.fc1.bias": "MlpBlock_0/Dense_0/bias",
    "mlp.fc2.bias": "MlpBlock_0/Dense_1/bias",
}
_BLOCK_DENSE = {"mlp.fc1.weight": "MlpBlock_0/Dense_0/kernel", "mlp.fc2.weight": "MlpBlock_0/Dense_1/kernel"}
_BLOCK_QKV = {"attn.qkv.weight": "kernel", "attn.qkv.bias": "bias"}


def from_timm(arrays, num_heads):
    """A file's arrays in the layout of `vit_jax`: `{name: LazyArray}`; names that are not known stay as they are."""
    weights, last_read = {}, lazy_array.LastRead()
    for name, array in arrays.items():
        block = re.fullmatch(r"blocks\.(\d+)\.(.*)", name)
        if block:
            prefix, rest = f"Transformer/encoderblock_{block[1]}", block[2]
            attention = f"{prefix}/MultiHeadDotProductAttention_0"
            if rest in _BLOCK_UNCHANGED:
                weights[f"{prefix}/{_BLOCK_UNCHANGED[rest]}"] = array
            elif rest in _BLOCK_DENSE and len(array.shape) == 2:
                weights[f"{prefix}/{_BLOCK_DENSE[rest]}"] = lazy_array.dense_from_pytorch(array)
            elif rest in _BLOCK_QKV and array.shape and array.shape[0] % 3 == 0:
                for product, part in zip(("query", "key", "value"), lazy_array.split_qkv(array, last_read)):
                    weights[f"{attention}/{product}/{_BLOCK_QKV[rest]}"] = lazy_array.qkv_from_pytorch(part, num_heads)
            elif rest == "attn.proj.weight" and len(array.shape) == 2:
                weights[f"{attention}/out/kernel"] = lazy_array.attention_output_from_pytorch(array, num_heads)
            else:
                weights[name] = array
        elif name in _UNCHANGED:
            weights[_UNCHANGED[name]] = array
        elif name in _DENSE and len(array.shape) == 2:
            weights[_DENSE[name]] = lazy_array.dense_from_pytorch(array)
        elif name == MARKER and len(array.shape) == 4:
            weights[EMBEDDING] = lazy_array.conv_from_pytorch(array)
        else:
            weights[name] = array
    return weights
