"""The Vision Transformer as a functional Keras model with its parts as attributes."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
from keras import KerasTensor

from keras_vit.layers.base import serializable
from keras_vit.models import parts
from keras_vit.models.image_model import ImageModel, keep, kept_arguments
from keras_vit.models.layer_numbers import layer_number
from keras_vit.models.replaced_forward import replacement_of
from keras_vit.models.validation import check_vision_transformer, complete_arguments
from keras_vit.preprocessing import Preprocessing


@serializable
class VisionTransformer(ImageModel):
    """A Vision Transformer: images `(B, H, W, C)` in [-1, 1] to logits `(B, classes)`.

    The model cuts images into patches, projects each patch to a token, adds position embeddings
    and applies `num_layers` blocks. A linear head reads the class token, the pooled tokens or every
    token. `forward` is the whole forward pass, made of methods that also work on arrays.

    Args:
        patch_size: side of a patch, in pixels or, with a stem, in cells of its feature map.
        num_layers, hidden_size, num_heads, mlp_dim: number of blocks, size of a token, number of
            attention heads (a divisor of `hidden_size`) and size of the MLPs' hidden layer.
        input_shape: `(height, width, channels)`; the sides are whole numbers of patches.
        classes: number of classes; None for that of the published `weights`, or 1000.
        include_top: whether to include the head. A model without a head returns features. With
            published `weights` without a head, and `classes=None`, the model has no head either.
        weights: source for `checkpoints.load`, such as the name of published weights
            ("imagenet21k", "augreg:<file name>"), a path, a URL or a repository on the Hugging Face
            Hub; None for random weights. The load report goes to the logger "keras_vit".
        classifier: input of the head: "token" (the class token), "gap" (the mean of the patch
            tokens), "token_gap" (the same, in a model with a class token), "map" (attention pooling
            as in big_vision), "unpooled" (every token) or "token_unpooled" (every token, the class
            token first). Models have a class token if their classifier starts with "token".
        representation_size: units of the tanh layer `pre_logits` before the head, or 0 for no such
            layer; None for the size in the published `weights`, or 0.
        stochastic_depth: probability of dropping a residual branch in the last block, in [0, 1);
            it grows linearly from 0 in the first block.
        stem: "resnet" for a hybrid, with a ResNet before the patches, or "" for none; None for
            "resnet" if `resnet_blocks` is set.
        resnet_blocks: number of units in each stage of the stem; `()` for only its root.
        position_embedding: "learned", a vector for each token in raster order (the paper's 1-D);
            "learned2d", half a vector for each column and half for each row; "relative", a vector
            for each distance in raster order, in every block; "sincos2d", big_vision's fixed
            sines and cosines; "none".
        position_embedding_at: where learned positions are added (appendix D.4): "stem", before the
            first block; "every_layer", before every block, each with a table of its own;
            "every_layer_shared", the same with one table.
        class_token_position: whether the class token has a position, as in the JAX reference but
            not in big_vision; False with "sincos2d".
        head_bias: initial value of the head's biases; its kernel is initialized to zeros.
        classifier_activation: activation of the head, such as "softmax"; None for logits.
        preprocessing: preprocessing that the images are expected to have, which the model stores
            and does not apply; see `layers.InputPreprocessing`. None for that of `weights`, or the
            JAX reference's. A later call of `checkpoints.load` replaces it.
        dropout: dropout rate after the position embedding and in the blocks, in [0, 1).
        attention_dropout, exact_gelu, epsilon, remat, mlp, mlp_norm, mlp_bias, attention_bias,
            attention_norm, qk_norm, layer_scale: see `layers.TransformerBlock`.
        rotary: arguments of `layers.rotary.rotary_table` other than `head_size`, `grid` and
            `prefix`, as a dict, for rotary position embeddings in every block; None for none.
        num_registers: number of learned tokens after the class tokens, without positions.
        pre_norm: whether to apply a LayerNorm before the first block, as in CLIP.
        patch_bias: whether the patches' projection has a bias.
        position_resampling: how `checkpoints.load` resamples learned positions to another grid:
            "zoom", as in the JAX reference, or another key of `position_embeddings.RULES`.
        pool_norm: whether the final LayerNorm comes after the pooling (MAE, EVA-02).
        distilled: whether to add a second class token with its own head, as in DeiT. The logits are
            the mean of both heads; without a head, the features are both tokens, `(B, 2D)`.
        name, dtype: as for any Keras model.

    Returns:
        float32 logits `(B, classes)`, or `(B, N, classes)` for the unpooled classifiers. Without a
        head, features `(B, F)` or `(B, N, F)` in the compute dtype; F is
        `representation_size or hidden_size`.

    Attributes:
        arguments, image_shape, preprocessing, head: see `ImageModel`.
        patch_size, num_layers, hidden_size, mlp_dim, num_heads, classifier: the arguments.
        grid: `(rows, columns)` of the patches.
        patch_stride: stride of the patches in image pixels.
        num_class_tokens, num_prefix_tokens, num_tokens: numbers of class tokens, of class and
            register tokens, and of all tokens in the blocks.
        stem, patches, patch_encoder, class_token, norm, pool_layer, pool_norm, pre_logits: layers,
            or None if the model does not have the layer.
        positions: for each block, the layer that adds positions to its input, or None.
        blocks: the `TransformerBlock`s. As in the paper, layer 1 is the first block, and layer 0
            is its input.

    Raises:
        ValueError: an argument is out of range, the image is not a whole number of patches, or the
            checkpoint does not match.

    Reference: paper section 3.1; matches the JAX reference
    ([`vit_jax`](https://github.com/google-research/vision_transformer)) with the same weights.
    """

    def __init__(
        self,
        *,
        patch_size: int,
        num_layers: int,
        hidden_size: int,
        mlp_dim: int,
        num_heads: int,
        input_shape: tuple[int, int, int] = (224, 224, 3),
        classes: int | None = None,
        include_top: bool = True,
        weights: str | os.PathLike | None = None,
        classifier: str = "token",
        representation_size: int | None = None,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        stochastic_depth: float = 0.0,
        stem: str | None = None,
        resnet_blocks: Sequence[int] | None = None,
        position_embedding: str = "learned",
        position_embedding_at: str = "stem",
        class_token_position: bool = True,
        exact_gelu: bool = False,
        epsilon: float = 1e-6,
        head_bias: float = 0.0,
        classifier_activation: str | Callable | None = None,
        preprocessing: Preprocessing | Mapping[str, Any] | None = None,
        remat: bool = False,
        mlp: str | None = None,
        mlp_norm: bool = False,
        mlp_bias: bool = True,
        attention_bias: str = "qkvo",
        qk_norm: bool = False,
        rotary: Mapping[str, Any] | None = None,
        layer_scale: float | None = None,
        num_registers: int = 0,
        pre_norm: bool = False,
        patch_bias: bool = True,
        position_resampling: str = "zoom",
        attention_norm: bool = False,
        pool_norm: bool = False,
        distilled: bool = False,
        name: str = "vision_transformer",
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        arguments = kept_arguments(locals()) | self.own_arguments()
        arguments = complete_arguments(arguments, weights, stem)
        check_vision_transformer(arguments)
        policy = {"dtype": dtype}
        self._make_layers(arguments, preprocessing, policy)
        images = keras.Input(shape=self.batch_shape(arguments), name="images")
        super().__init__(
            images,
            self.forward(images),
            arguments=arguments,
            weights=weights,
            preprocessing=preprocessing,
            name=name,
            **policy,
            **kwargs,
        )

    def _make_layers(self, arguments, preprocessing, policy):
        """Sets the sizes and layers as attributes."""
        sizes = parts.sizes_of(arguments)
        keep(self, **sizes)
        keep(self, **self.make_input(arguments, preprocessing, policy))
        positions = self.make_positions(arguments, policy)
        keep(self, **parts.make_tokens(arguments, positions, self.num_class_tokens, policy))
        keep(self, **parts.make_encoder(arguments, positions, sizes, self.has_padding, policy))
        keep(self, **parts.make_top(arguments, self.has_padding, policy))

    # Subclasses may override these.

    has_padding = False  # whether tokens of zeros are padding

    def batch_shape(self, arguments: Mapping[str, Any]) -> tuple[int, int, int]:
        """Returns the shape of one image in a batch."""
        return arguments["input_shape"]

    def make_input(
        self, arguments: Mapping[str, Any], preprocessing: Any, policy: dict
    ) -> dict[str, Any]:
        """Creates the layers that turn images into embedded patches, by attribute name."""
        return parts.make_input(arguments, preprocessing, policy)

    def make_positions(self, arguments: Mapping[str, Any], policy: dict) -> keras.layers.Layer:
        """Creates the layer that adds position embeddings to the input of the first block."""
        return parts.make_positions(arguments, self.grid, "position_embedding", policy)

    # The forward pass: takes KerasTensors while the model is built, and arrays afterwards.

    def forward(self, images: KerasTensor, training: bool | None = None) -> Any:
        """Computes the model's outputs."""
        tokens = self.encode(self.embed(images, training), training)
        return self.classify(self.pool(self.norm(tokens)))

    def embed(self, images: KerasTensor, training: bool | None = None) -> KerasTensor:
        """Computes the tokens of layer 0 (eq. 1): images `(B, H, W, C)` to `(B, num_tokens, D)`."""
        replaced = replacement_of(self).embed
        if replaced is not None:
            return replaced(images, training)
        return self.add_tokens(self.embed_patches(images), training)

    def embed_patches(self, images: KerasTensor) -> KerasTensor:
        """Projects the patches of images: `(B, H, W, C)` to `(B, N, D)`."""
        x = self.input_preprocessing(images)
        x = x if self.stem is None else self.stem(x)
        return self.patch_encoder(self.patches(x))

    def add_tokens(self, patches: KerasTensor, training: bool | None = None) -> KerasTensor:
        """Adds positions, class tokens and registers: `(B, N, D)` to `(B, num_tokens, D)`."""
        x = patches
        for layer in self.token_layers:
            x = self.add_positions(1, x) if layer is self.positions[0] else layer(x)
        x = self.token_dropout(x, training=training)
        return x if self.pre_norm is None else self.pre_norm(x)

    def encode(self, tokens: KerasTensor, training: bool | None = None) -> KerasTensor:
        """Applies all blocks to the tokens of layer 0."""
        for number in range(1, self.num_layers + 1):
            tokens = self.run_block(number, tokens, training, all_tokens=False)
        return tokens

    def run_block(
        self,
        number: int,
        tokens: KerasTensor,
        training: bool | None = None,
        all_tokens: bool = True,
    ) -> KerasTensor:
        """Computes the tokens of layer `number`, 1 or more, from those of the layer before.

        With `all_tokens=False`, a block may return only the class token, `(B, 1, D)`.
        """
        if number > 1:
            tokens = self.add_positions(number, tokens)
        block = self.blocks[number - 1]
        score_change = replacement_of(self).score_change(number)
        first_token_only = block.first_token_only and not all_tokens
        if score_change is None and first_token_only == block.first_token_only:
            return block(tokens, training=training)
        return block.encode(tokens, training, first_token_only, score_change)

    def add_positions(self, number: int, tokens: KerasTensor) -> KerasTensor:
        """Adds the position embeddings of layer `number`, if it has any."""
        replaced = replacement_of(self).add_positions
        if replaced is not None:
            return replaced(number, tokens)
        layer = self.positions[number - 1]
        return tokens if layer is None else layer(tokens)

    def pool(self, tokens: KerasTensor, pre_logits: bool = True) -> KerasTensor:
        """Computes the head's input from the tokens after `norm`: `(B, N, D)` to `(B, F)`.

        Models that do not pool return `(B, N, F)`. `pre_logits=False` omits the layer `pre_logits`.
        """
        if self.classifier.endswith("gap") and self.num_prefix_tokens:
            tokens = tokens[:, self.num_prefix_tokens :]
        if self.classifier == "token" and tokens.shape[1] != self.num_class_tokens:
            tokens = tokens[:, : self.num_class_tokens]
        for layer in (self.pool_layer, self.pool_norm, self.pre_logits if pre_logits else None):
            tokens = tokens if layer is None else layer(tokens)
        return tokens

    def classify(self, features: KerasTensor) -> KerasTensor:
        """Applies the head, if the model has one, to the outputs of `pool`."""
        return features if self.head is None else self.head(features)

    def attention_scores(self, number: int, tokens: KerasTensor) -> KerasTensor:
        """Computes the attention scores of layer `number` from the tokens of the previous layer.

        Returns float32 `(B, heads, queries, keys)` after the softmax. Layer -1 is the last one.
        """
        number = layer_number(self, number, first=1)
        tokens = tokens if number == 1 else self.add_positions(number, tokens)
        return self.blocks[number - 1].attention_scores(tokens)

    def intermediates(
        self, images: KerasTensor, attention: bool = False, training: bool | None = None
    ) -> dict[str, Any]:
        """Computes all intermediate representations of images `(B, H, W, C)`.

        Returns a dict with "tokens", the tokens of layers 0 to `num_layers`, each `(B, N, D)`;
        "attention", with `attention=True`, the `attention_scores` of layers 1 to `num_layers`;
        "encoded", the last tokens after `norm`; and "pre_logits", the result of `pool`.
        """
        tokens = [self.embed(images, training)]
        scores = []
        for number in range(1, self.num_layers + 1):
            if attention:
                scores.append(self.attention_scores(number, tokens[-1]))
            tokens.append(self.run_block(number, tokens[-1], training))
        encoded = self.norm(tokens[-1])
        result = {"tokens": tokens, "encoded": encoded, "pre_logits": self.pool(encoded)}
        return {**result, "attention": scores} if attention else result
