"""timm's names for a Vision Transformer (`timm.models.vision_transformer`)."""

import re

from keras_vit.checkpoints import pytorch_names as pytorch
from keras_vit.checkpoints.names import POSITIONS
from keras_vit.checkpoints.stored import LastRead

MARK = "patch_embed.proj.weight"

_PLAIN = {
    "cls_token": "cls",
    "pos_embed": POSITIONS,
    "patch_embed.proj.bias": "embedding/bias",
    "norm.weight": "Transformer/encoder_norm/scale",
    "norm.bias": "Transformer/encoder_norm/bias",
    "pre_logits.fc.bias": "pre_logits/bias",
    "head.bias": "head/bias",
}
_DENSE = {"pre_logits.fc.weight": "pre_logits/kernel", "head.weight": "head/kernel"}
_BLOCK = {
    "norm1.weight": "LayerNorm_0/scale",
    "norm1.bias": "LayerNorm_0/bias",
    "norm2.weight": "LayerNorm_1/scale",
    "norm2.bias": "LayerNorm_1/bias",
    "attn.proj.bias": "MultiHeadDotProductAttention_0/out/bias",
    "mlp.fc1.bias": "MlpBlock_0/Dense_0/bias",
    "mlp.fc2.bias": "MlpBlock_0/Dense_1/bias",
}
_BLOCK_DENSE = {"mlp.fc1.weight": "MlpBlock_0/Dense_0/kernel", "mlp.fc2.weight": "MlpBlock_0/Dense_1/kernel"}
_FUSED = {"attn.qkv.weight": "kernel", "attn.qkv.bias": "bias"}


def from_timm(arrays, heads):
    """A file's arrays in the original's layout: `{current name: Stored}`; unknown names stay."""
    weights, last_read = {}, LastRead()
    for name, stored in arrays.items():
        block = re.fullmatch(r"blocks\.(\d+)\.(.*)", name)
        if block:
            base, part = f"Transformer/encoderblock_{block[1]}", block[2]
            attention = f"{base}/MultiHeadDotProductAttention_0"
            if part in _BLOCK:
                weights[f"{base}/{_BLOCK[part]}"] = stored
            elif part in _BLOCK_DENSE and len(stored.shape) == 2:
                weights[f"{base}/{_BLOCK_DENSE[part]}"] = pytorch.dense(stored)
            elif part in _FUSED and stored.shape and stored.shape[0] % 3 == 0:
                for product, third in zip(("query", "key", "value"), pytorch.thirds(stored, last_read)):
                    weights[f"{attention}/{product}/{_FUSED[part]}"] = pytorch.into_heads(third, heads)
            elif part == "attn.proj.weight" and len(stored.shape) == 2:
                weights[f"{attention}/out/kernel"] = pytorch.out_of_heads(stored, heads)
            else:
                weights[name] = stored
        elif name in _PLAIN:
            weights[_PLAIN[name]] = stored
        elif name in _DENSE and len(stored.shape) == 2:
            weights[_DENSE[name]] = pytorch.dense(stored)
        elif name == MARK and len(stored.shape) == 4:
            weights["embedding/kernel"] = pytorch.convolution(stored)
        else:
            weights[name] = stored
    return weights
