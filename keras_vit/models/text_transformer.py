"""The text tower of CLIP and SigLIP: token ids to embeddings."""

import types
from typing import Any

import keras
from keras import KerasTensor

from keras_vit.arguments import check_names
from keras_vit.layers import PositionEmbedding, TransformerBlock
from keras_vit.layers.base import arguments_among, serializable
from keras_vit.layers.causal import CausalTransformerBlock
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.end_token import EndTokenPooling
from keras_vit.layers.mlp import ACTIVATIONS
from keras_vit.layers.validation import check_choice, check_positive_int
from keras_vit.models.image_model import build_with_frozen_parts, frozen_parts, keep
from keras_vit.models.parts import shared_arguments
from keras_vit.models.validation import refuse


@serializable
class TextTransformer(keras.Model):
    """A Transformer from token ids to text embeddings.

    Maps int32 `(B, length)` to float32 `(B, embedding_size)`.

    The embeddings are not normalized; `TwoTowers.encode_text` normalizes them. Padding is attended
    to like any other token, so texts must be padded as in training; see `text.Tokenizer`.

    Args:
        vocabulary_size: number of token ids.
        length: number of tokens of a text, including padding.
        num_layers, hidden_size, mlp_dim, num_heads: number of blocks, size of a token, size of the
            MLPs' hidden layer and number of attention heads (a divisor of `hidden_size`).
        embedding_size: size of the embeddings, the space shared with the images.
        causal: whether a token attends only to itself and earlier tokens, as in CLIP.
        pool: token that becomes the embedding: "last" (SigLIP), "end" (the first `end_id`, or
            position 0 of a text without it) or "largest" (the first of the largest ids, as in
            OpenAI's CLIP, in which the end token has the largest id).
        end_id: id of the end token, only for `pool="end"`.
        projection_bias: whether the projection to the embeddings has a bias.
        mlp: activation of the MLPs, "gelu_tanh", "gelu" (exact) or "quick_gelu".
        epsilon: epsilon of all LayerNorms.
        dropout: dropout rate after the position embedding and in the blocks, in [0, 1).
        remat: whether to recompute the blocks in the backward pass, which saves memory.
        tokenizer: path or repository of the tokenizer, see `text.Tokenizer`; "" if unknown. The
            model records it and takes only ids.
        name, dtype: as for any Keras model.

    Attributes:
        arguments: the arguments of the constructor, as a read-only mapping.
        token_embedding, position_embedding, blocks, norm, end_token, head: the layers, or None.

    Raises:
        ValueError: an argument is out of range.

    Reference: CLIP (Radford et al., 2021), SigLIP (Zhai et al., 2023), and big_vision's
        `models/proj/image_text/text_transformer.py`.
    """

    def __init__(
        self,
        *,
        vocabulary_size: int,
        length: int,
        num_layers: int,
        hidden_size: int,
        mlp_dim: int,
        num_heads: int,
        embedding_size: int,
        causal: bool = False,
        pool: str = "last",
        end_id: int | None = None,
        projection_bias: bool = True,
        mlp: str = "gelu_tanh",
        epsilon: float = 1e-6,
        dropout: float = 0.0,
        remat: bool = False,
        tokenizer: str = "",
        name: str = "text_transformer",
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        arguments = arguments_among(locals(), omit=("name", "dtype"))
        check_names(type(self).__name__, [*arguments, "name", "dtype", "trainable"], kwargs)
        _check(arguments)
        policy = {"dtype": dtype}
        keep(self, arguments=types.MappingProxyType(arguments), **_make_layers(arguments, policy))
        ids = keras.Input((length,), dtype="int32", name="ids")
        super().__init__(ids, self.forward(ids), name=name, **kwargs)
        self.dtype_policy = keras.dtype_policies.get(dtype)

    # The forward pass: takes KerasTensors while the model is built, and arrays afterwards.

    def forward(self, ids: KerasTensor, training: bool | None = None) -> KerasTensor:
        """Computes the embeddings of token ids."""
        return self.head(self.pool(self.encode(ids, training), ids))

    def encode(self, ids: KerasTensor, training: bool | None = None) -> KerasTensor:
        """Computes all tokens after the last norm: `(B, length)` to `(B, length, D)`."""
        x = self.position_embedding(self.token_embedding(ids))
        x = self.token_dropout(x, training=training)
        for block in self.blocks:
            x = block(x, training=training)
        return self.norm(x)

    def pool(self, tokens: KerasTensor, ids: KerasTensor) -> KerasTensor:
        """Selects the token that becomes the embedding: `(B, length, D)` to `(B, D)`."""
        return tokens[:, -1] if self.end_token is None else self.end_token(tokens, ids)

    def get_config(self) -> dict[str, Any]:
        return {
            **self.arguments,
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "trainable": self.trainable,
            "frozen": frozen_parts(self.layers),
        }

    from_config = classmethod(build_with_frozen_parts)


def _check(arguments):
    """Raises a `ValueError` for an argument out of range; the blocks check the others."""
    for name in ("vocabulary_size", "length", "num_layers", "hidden_size", "embedding_size"):
        check_positive_int(name, arguments[name])
    check_choice("pool", arguments["pool"], ("last", "end", "largest"))
    check_choice("mlp", arguments["mlp"], ACTIVATIONS)
    end_ids = range(arguments["vocabulary_size"]) if arguments["pool"] == "end" else (None,)
    if arguments["end_id"] not in end_ids:
        message = (
            '`pool="end"` requires `end_id`, the id of the end token in the vocabulary; other '
            "pooling does not use it."
        )
        refuse(message, arguments, "pool", "end_id", "vocabulary_size")


def _make_layers(arguments, policy):
    """Creates the layers, by attribute name."""
    normal = keras.initializers.RandomNormal(stddev=0.02)
    block_class = CausalTransformerBlock if arguments["causal"] else TransformerBlock
    end_token = None
    if arguments["pool"] != "last":
        end_token = EndTokenPooling(arguments["end_id"], name="pool", **policy)
    blocks = [
        block_class(**shared, **policy) for shared in shared_arguments(block_class, arguments)
    ]
    return {
        "token_embedding": keras.layers.Embedding(
            arguments["vocabulary_size"],
            arguments["hidden_size"],
            normal,
            name="token_embedding",
            **policy,
        ),
        "position_embedding": PositionEmbedding(name="position_embedding", **policy),
        "token_dropout": Dropout(arguments["dropout"], name="dropout", **policy),
        "blocks": tuple(blocks),
        "norm": keras.layers.LayerNormalization(
            epsilon=arguments["epsilon"], name="encoder_norm", **policy
        ),
        "end_token": end_token,
        "head": keras.layers.Dense(
            arguments["embedding_size"],
            use_bias=arguments["projection_bias"],
            name="head",
            dtype="float32",
        ),
    }
