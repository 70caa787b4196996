"""Creates the layers of a Vision Transformer from the constructor's arguments, as dicts by
attribute name."""

import math
from collections.abc import Mapping
from typing import Any

import keras

from keras_vit import layers
from keras_vit.arguments import parameters_of
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.padding import MaskedLayerNormalization
from keras_vit.layers.resnet_stem import stem_stride_of
from keras_vit.models.image_model import make_head, make_pre_logits
from keras_vit.models.validation import patch_grid
from keras_vit.preprocessing import Preprocessing

# Layer classes by `position_embedding`. A layer takes the patch grid, `(rows, columns)`, and adds
# position embeddings to tokens `(B, N, D)`. Its `has_class_token_position` is True if it accepts a
# class token in front of the patches. To support another position embedding, write a layer and add
# it here.
POSITION_EMBEDDINGS: dict[str, Any] = {
    "learned": layers.PositionEmbedding,
    "learned2d": layers.PositionEmbedding2D,
    "sincos2d": layers.SinCosPositionEmbedding,
    "none": layers.NoPositionEmbedding,
    "relative": layers.NoPositionEmbedding,  # the attention layers add relative positions
}
_SIZES = ("patch_size", "num_layers", "hidden_size", "mlp_dim", "num_heads", "classifier")


def sizes_of(a: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sizes of a Vision Transformer; see its class docstring."""
    grid = patch_grid(a["input_shape"], a["patch_size"], a["resnet_blocks"])
    stem_stride = 1 if a["resnet_blocks"] is None else stem_stride_of(a["resnet_blocks"])
    num_class_tokens = int(a["classifier"].startswith("token")) + a["distilled"]
    num_prefix_tokens = num_class_tokens + a["num_registers"]
    return {
        **{name: a[name] for name in _SIZES},
        "grid": grid,
        "patch_stride": a["patch_size"] * stem_stride,
        "num_class_tokens": num_class_tokens,
        "num_prefix_tokens": num_prefix_tokens,
        "num_tokens": num_prefix_tokens + math.prod(grid),
    }


def make_input(
    a: Mapping[str, Any], preprocessing: Preprocessing | Mapping[str, Any] | None, policy: dict
) -> dict:
    """Creates the layers that turn images into embedded patches."""
    stem = None
    if a["resnet_blocks"] is not None:
        stem = layers.ResNetStem(a["resnet_blocks"], name="resnet_stem", **policy)
    return {
        "input_preprocessing": layers.InputPreprocessing(
            preprocessing, name="expected_images", **policy
        ),
        "stem": stem,
        "patches": layers.Patches(a["patch_size"], name="patches", **policy),
        "patch_encoder": layers.PatchEncoder(
            a["hidden_size"], a["patch_bias"], name="embedding", **policy
        ),
    }


def make_tokens(
    a: Mapping[str, Any], positions: keras.layers.Layer, num_class_tokens: int, policy: dict
) -> dict:
    """Creates the layers that turn embedded patches into the tokens of layer 0, in order."""
    class_token = distillation_token = registers = pre_norm = None
    if num_class_tokens:
        class_token = layers.ClassToken(name="class_token", **policy)
    if a["distilled"]:
        distillation_token = layers.ClassToken(name="distillation_token", **policy)
    if a["num_registers"]:
        registers = layers.RegisterTokens(
            a["num_registers"], num_class_tokens, name="register_tokens", **policy
        )
    if a["pre_norm"]:
        pre_norm = keras.layers.LayerNormalization(epsilon=a["epsilon"], name="pre_norm", **policy)
    # Each prepends its token, so the class token comes first.
    in_order = [
        distillation_token,
        class_token,
    ]
    in_order.insert(2 if a["class_token_position"] else 0, positions)
    in_order.append(registers)
    return {
        "class_token": class_token,
        "token_layers": tuple(layer for layer in in_order if layer is not None),
        "token_dropout": Dropout(a["dropout"], name="dropout", **policy),
        "pre_norm": pre_norm,
    }


def make_encoder(
    a: Mapping[str, Any],
    positions: keras.layers.Layer,
    sizes: Mapping[str, Any],
    has_padding: bool,
    policy: dict,
) -> dict:
    """Creates the blocks, and for each block the layer that adds position embeddings to the block's
    input."""
    # A block gets every argument that it has in common with the model.
    shared = {name: a[name] for name in parameters_of(layers.TransformerBlock) if name in a}
    if a["rotary"] is not None:
        shared["rotary"] = {
            **a["rotary"],
            "grid": sizes["grid"],
            "prefix": sizes["num_prefix_tokens"],
        }
    # The head reads only the class token. Skipping other tokens saves about 7 % of ViT-B/16's
    # FLOPs.
    reads_first = a["classifier"] == "token" and not a["distilled"]
    last = a["num_layers"] - 1
    blocks = []
    of_blocks = [positions]
    for i in range(a["num_layers"]):
        shared["stochastic_depth"] = a["stochastic_depth"] * i / max(last, 1)
        block = layers.TransformerBlock(
            first_token_only=reads_first and i == last,
            relative_positions=a["position_embedding"] == "relative",
            masked=has_padding,
            name=f"encoderblock_{i}",
            **shared,
            **policy,
        )
        blocks.append(block)
        if i:
            of_blocks.append(_positions_of_block(a, i, positions, policy))
    return {"blocks": tuple(blocks), "positions": tuple(of_blocks)}


def _positions_of_block(a, i, first, policy):
    """Returns the layer that adds position embeddings to the input of block `i`, 1 or more, or
    None."""
    if a["position_embedding_at"] == "stem":
        return None
    if a["position_embedding_at"] == "every_layer_shared":
        return first
    return POSITION_EMBEDDINGS[a["position_embedding"]](
        first.grid, name=f"position_embedding_{i}", **policy
    )


def make_top(a: Mapping[str, Any], has_padding: bool, policy: dict) -> dict:
    """Creates the final norm, the pooling and the head (eq. 4)."""
    norm_class = MaskedLayerNormalization if has_padding else keras.layers.LayerNormalization
    norm = norm_class(epsilon=a["epsilon"], name="encoder_norm", **policy)
    pool_norm = pool = None
    if a["pool_norm"]:
        norm = keras.layers.Identity(name="encoder_norm", **policy)
        pool_norm = keras.layers.LayerNormalization(
            epsilon=a["epsilon"], name="pool_norm", **policy
        )
    if a["classifier"] == "token":
        # (B, hidden_size * number of class tokens)
        pool = keras.layers.Flatten(name="pool", **policy)
    elif a["classifier"].endswith("gap"):
        pool = keras.layers.GlobalAveragePooling1D(
            data_format="channels_last", name="pool", **policy
        )
    elif a["classifier"] == "map":
        pool = layers.AttentionPooling(
            a["num_heads"],
            a["mlp_dim"],
            exact_gelu=a["exact_gelu"] and a["mlp"] is None,
            epsilon=a["epsilon"],
            masked=has_padding,
            mlp=None if a["mlp"] == "swiglu" else a["mlp"],
            name="pool",
            **policy,
        )
    return {
        "norm": norm,
        "pool_layer": pool,
        "pool_norm": pool_norm,
        "pre_logits": make_pre_logits(a, **policy),
        "head": make_head(a),
    }
