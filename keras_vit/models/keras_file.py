"""Models from the files that Keras saves."""

import os

import keras

from keras_vit import layers
from keras_vit.models.vision_transformer import POSITION_EMBEDDINGS, VisionTransformer


def load_keras_file(path: str | os.PathLike, compile: bool = True) -> keras.Model:
    """The model of a local .keras file, which is data alone: code in it is never run.

    Version 0.1.0 saved a Vision Transformer as a plain `keras.Model` of its layers; it becomes a `VisionTransformer`,
    without the state of its optimizer.

    Args:
        path: the file.
        compile: whether a compiled model gets its optimizer, loss and metrics back.

    Raises:
        ValueError: there is no such file, it is damaged, or it holds code.
    """
    try:
        model = keras.saving.load_model(path, compile=compile, safe_mode=True)
    except Exception as error:  # of zipfile, json, h5py or Keras, as the damage is
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            "The file must hold a model that Keras saved, complete and without code of its own, of layers of Keras and "
            f"keras_vit ({reason}). Received: {path}"
        ) from error
    named = {layer.name: layer for layer in model.layers}
    is_old = isinstance(named.get("encoderblock_0"), layers.TransformerBlock) and "expected_images" in named
    return _upgraded(model, named) if is_old and not isinstance(model, VisionTransformer) else model


def _upgraded(model, named):
    """A `VisionTransformer` of the arguments and weights of a model of its layers."""
    blocks = [layer for layer in model.layers if isinstance(layer, layers.TransformerBlock)]
    block, positions, names = blocks[0], named["position_embedding"], list(named)
    token, pool, head, pre_logits = (named.get(name) for name in ("class_token", "pool", "head", "pre_logits"))
    pools = {keras.layers.Flatten: "token", layers.AttentionPooling: "map", keras.layers.GlobalAveragePooling1D: "gap"}
    calls = next(part for part in model.get_config()["layers"] if part["name"] == "position_embedding")["inbound_nodes"]
    shared = "every_layer_shared" if len(calls) > 1 else "stem"
    at = "every_layer" if "position_embedding_1" in named else shared
    kinds = [kind for kind, layer in POSITION_EMBEDDINGS.items() if type(positions) is layer]
    activation = "linear" if head is None else keras.activations.serialize(head.activation)
    upgraded = VisionTransformer(
        patch_size=named["patches"].patch_size,
        num_layers=len(blocks),
        hidden_size=named["embedding"].hidden_size,
        input_shape=model.input_shape[1:],
        classes=None if head is None else head.units,
        include_top=head is not None,
        classifier=pools.get(type(pool), "unpooled" if token is None else "token_unpooled"),
        representation_size=None if pre_logits is None else pre_logits.units,
        stochastic_depth=blocks[-1].stochastic_depth,
        resnet_blocks=named["resnet_stem"].blocks if "resnet_stem" in named else None,
        position_embedding="relative" if block.relative_positions else kinds[0],
        position_embedding_at=at,
        class_token_position=token is None or names.index("class_token") < names.index("position_embedding"),
        classifier_activation=None if activation == "linear" else activation,
        masking_rate=named["mask_patches"].rate if "mask_patches" in named else 0.0,
        preprocessing=named["expected_images"].preprocessing,
        name=model.name,
        dtype=block.dtype_policy,
        **{
            name: getattr(block, name)
            for name in ("num_heads", "mlp_dim", "dropout", "attention_dropout", "exact_gelu", "epsilon", "remat")
        },
    )
    for layer in upgraded.layers:
        layer.trainable = named[layer.name].trainable
    upgraded.input_preprocessing.logits_activation = named["expected_images"].logits_activation
    upgraded.set_weights(model.get_weights())
    return upgraded
