"""Creates the layers of a Vision Transformer from the constructor's arguments.

The functions return dicts of layers by attribute name.
"""

import math

import keras

from keras_vit import layers
from keras_vit.arguments import parameters_of
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.layer_norm import LayerNormalization
from keras_vit.layers.padding import MaskedLayerNormalization
from keras_vit.layers.positions import POSITION_EMBEDDINGS
from keras_vit.layers.resnet_stem import stem_stride_of
from keras_vit.models.image_model import make_head, make_pre_logits
from keras_vit.models.validation import patch_grid

_SIZES = ("patch_size", "num_layers", "hidden_size", "mlp_dim", "num_heads", "classifier")


def sizes_of(arguments):
    """Returns the sizes of a Vision Transformer; see its class docstring."""
    blocks = arguments["resnet_blocks"]
    grid = patch_grid(arguments["input_shape"], arguments["patch_size"], blocks)
    num_class_tokens = int(arguments["classifier"].startswith("token")) + arguments["distilled"]
    num_prefix_tokens = num_class_tokens + arguments["num_registers"]
    return {
        **{name: arguments[name] for name in _SIZES},
        "grid": grid,
        "patch_stride": arguments["patch_size"] * stem_stride_of(blocks),
        "num_class_tokens": num_class_tokens,
        "num_prefix_tokens": num_prefix_tokens,
        "num_tokens": num_prefix_tokens + math.prod(grid),
    }


def make_input(arguments, preprocessing, policy):
    """Creates the layers that turn images into embedded patches."""
    stem = None
    if arguments["resnet_blocks"] is not None:
        stem = layers.ResNetStem(arguments["resnet_blocks"], name="resnet_stem", **policy)
    return {
        "input_preprocessing": layers.InputPreprocessing(
            preprocessing, name="expected_images", **policy
        ),
        "stem": stem,
        "patches": layers.Patches(arguments["patch_size"], name="patches", **policy),
        "patch_encoder": layers.PatchEncoder(
            arguments["hidden_size"], arguments["patch_bias"], name="embedding", **policy
        ),
    }


def make_tokens(arguments, positions, num_class_tokens, policy):
    """Creates the layers that turn embedded patches into the tokens of layer 0, in order."""
    class_token = distillation_token = registers = pre_norm = None
    if num_class_tokens:
        class_token = layers.ClassToken(name="class_token", **policy)
    if arguments["distilled"]:
        distillation_token = layers.ClassToken(name="distillation_token", **policy)
    if arguments["num_registers"]:
        registers = layers.RegisterTokens(
            arguments["num_registers"], num_class_tokens, name="register_tokens", **policy
        )
    if arguments["pre_norm"]:
        pre_norm = keras.layers.LayerNormalization(
            epsilon=arguments["epsilon"], name="pre_norm", **policy
        )
    # Both layers prepend their token, so the class token comes first.
    prepending = (distillation_token, class_token)
    in_order = (positions, *prepending, registers)
    if arguments["class_token_position"]:
        in_order = (*prepending, positions, registers)
    return {
        "class_token": class_token,
        "token_layers": tuple(layer for layer in in_order if layer is not None),
        "token_dropout": Dropout(arguments["dropout"], name="dropout", **policy),
        "pre_norm": pre_norm,
    }


def make_positions(arguments, grid, name, policy):
    """Creates a layer that adds position embeddings to tokens."""
    make = POSITION_EMBEDDINGS[arguments["position_embedding"]]
    return make(grid, name=name, **policy)


def make_encoder(arguments, positions, sizes, has_padding, policy):
    """Creates the blocks, and the layers that add position embeddings to their inputs."""
    rotary = arguments["rotary"]
    if rotary is not None:
        rotary = {**rotary, "grid": sizes["grid"], "prefix": sizes["num_prefix_tokens"]}
    # If the head reads only the class token, the last block skips the outputs of other tokens. This
    # saves about 7 % of ViT-B/16's FLOPs.
    reads_first = arguments["classifier"] == "token" and not arguments["distilled"]
    last = arguments["num_layers"] - 1
    shared = shared_arguments(layers.TransformerBlock, {**arguments, "rotary": rotary})
    blocks = [
        layers.TransformerBlock(
            first_token_only=reads_first and i == last,
            relative_positions=arguments["position_embedding"] == "relative",
            masked=has_padding,
            **options,
            **policy,
        )
        for i, options in enumerate(shared)
    ]
    later_positions = [
        _positions_of_block(arguments, i, positions, policy) for i in range(1, last + 1)
    ]
    return {"blocks": tuple(blocks), "positions": (positions, *later_positions)}


def shared_arguments(block_class, arguments):
    """Yields, for each block, its name and the arguments that it has in common with the model."""
    shared = {name: arguments[name] for name in parameters_of(block_class) if name in arguments}
    last = max(arguments["num_layers"] - 1, 1)
    for i in range(arguments["num_layers"]):
        rate = arguments.get("stochastic_depth", 0.0) * i / last
        yield {**shared, "stochastic_depth": rate, "name": f"encoderblock_{i}"}


def _positions_of_block(arguments, i, first, policy):
    """Returns the layer that adds position embeddings to the input of a later block, or None."""
    if arguments["position_embedding_at"] == "stem":
        return None
    if arguments["position_embedding_at"] == "every_layer_shared":
        return first
    return make_positions(arguments, first.grid, f"position_embedding_{i}", policy)


def make_top(arguments, has_padding, policy):
    """Creates the final norm, the pooling and the head (eq. 4)."""
    norm_class = MaskedLayerNormalization if has_padding else LayerNormalization
    norm = norm_class(epsilon=arguments["epsilon"], name="encoder_norm", **policy)
    pool_norm = pool = None
    if arguments["pool_norm"]:
        norm = keras.layers.Identity(name="encoder_norm", **policy)
        pool_norm = keras.layers.LayerNormalization(
            epsilon=arguments["epsilon"], name="pool_norm", **policy
        )
    if arguments["classifier"] == "token":
        # The tokens here are only the class tokens, whose values are concatenated.
        pool = keras.layers.Flatten(name="pool", **policy)
    elif arguments["classifier"].endswith("gap"):
        pool = keras.layers.GlobalAveragePooling1D("channels_last", name="pool", **policy)
    elif arguments["classifier"] == "map":
        pool = layers.AttentionPooling(
            arguments["num_heads"],
            arguments["mlp_dim"],
            exact_gelu=arguments["exact_gelu"] and arguments["mlp"] is None,
            epsilon=arguments["epsilon"],
            masked=has_padding,
            mlp=None if arguments["mlp"] == "swiglu" else arguments["mlp"],
            name="pool",
            **policy,
        )
    return {
        "norm": norm,
        "pool_layer": pool,
        "pool_norm": pool_norm,
        "pre_logits": make_pre_logits(arguments, **policy),
        "head": make_head(arguments),
    }
