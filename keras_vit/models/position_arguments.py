"""Where the positions of a model come from, read back from its layers."""

from keras_vit.models.vision_transformer import POSITION_EMBEDDING_AT, POSITION_EMBEDDINGS


def position_arguments(encoder):
    """The arguments of `VisionTransformer` that say where the positions of a model come from, a dict.

    Args:
        encoder: a `models.encoder.Encoder`.
    """
    names = [layer.name for layer in encoder.vit.layers]
    position = encoder.vit.get_layer("position_embedding")
    kinds = {layer: name for name, layer in reversed(POSITION_EMBEDDINGS.items())}
    kind = "relative" if encoder.blocks[0].relative_positions else kinds[type(position)]
    is_after = "class_token" in names and names.index("class_token") > names.index("position_embedding")
    later = encoder.positions[1:2] if encoder.positions[1:2] != [None] else []
    return {
        "position_embedding": kind,
        "position_embedding_at": POSITION_EMBEDDING_AT[0 if not later else 2 if later[0] is position else 1],
        "class_token_position": not is_after,
    }
