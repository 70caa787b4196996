"""The Vision Transformer as a functional Keras model with its parts as attributes."""

import contextlib
import contextvars
import dataclasses
import numbers
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit import checkpoints, layers
from keras_vit.checkpoints.loading import load_into
from keras_vit.checkpoints.patch_kernels import kernel_matrix
from keras_vit.checkpoints.position_embeddings import RULES
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.naflex import (
    MaskedLayerNormalization,
    NaFlexPatchEncoder,
    NaFlexPatches,
    NaFlexPositionEmbedding,
    real_tokens,
)
from keras_vit.layers.patch_masking import PatchMasking
from keras_vit.layers.patches import RESIZED
from keras_vit.layers.resnet_stem import resolve_stem
from keras_vit.layers.validation import check_choice, check_positive_int
from keras_vit.models.image_model import ImageModel, add_head, kept_arguments, policy_of
from keras_vit.models.validation import check_vision_transformer, patch_grid
from keras_vit.naflex import batch_shape
from keras_vit.preprocessing import Preprocessing, concrete_values

# Layer classes by `position_embedding`. A layer takes the patch grid, `(rows, columns)`, and adds position embeddings
# to tokens `(B, N, D)`. Its `has_class_token_position` is True if it accepts a class token in front of the patches.
# To support another position embedding, write a layer and add it here.
POSITION_EMBEDDINGS: dict[str, Any] = {
    "learned": layers.PositionEmbedding,
    "learned2d": layers.PositionEmbedding2D,
    "sincos2d": layers.SinCosPositionEmbedding,
    "none": layers.NoPositionEmbedding,
    "relative": layers.NoPositionEmbedding,  # the attention layers add relative positions
}
# Arguments that are passed unchanged to every block.
_BLOCK = (
    *("num_heads", "mlp_dim", "dropout", "attention_dropout", "exact_gelu", "epsilon", "remat", "mlp", "mlp_norm"),
    *("mlp_bias", "attention_bias", "qk_norm", "layer_scale", "attention_norm"),
)
# Set by `replaced_forward`: the model, the function that replaces its forward pass, the images passed to `embed`, and
# the changes to the attention scores.
_FORWARD: contextvars.ContextVar = contextvars.ContextVar("forward", default=(None, None, [], ()))


@keras.saving.register_keras_serializable(package="keras_vit")
class VisionTransformer(ImageModel):
    """A Vision Transformer: images `(B, H, W, C)` in [-1, 1] to logits `(B, classes)`.

    The model cuts images into patches, projects each patch to a token, adds position embeddings, and applies
    `num_layers` blocks of attention and MLP. A linear head reads the class token, the pooled tokens or every token.

    Args:
        patch_size: side of a patch, in pixels of the image or, with a stem, in cells of the stem's feature map.
        num_layers: number of Transformer blocks.
        hidden_size: size of a token.
        mlp_dim: size of the hidden layer of each block's MLP.
        num_heads: number of attention heads; must divide `hidden_size`.
        input_shape: `(height, width, channels)`, the sides in pixels; any number of channels. The sides may differ, but
            each must be a whole number of patches.
        classes: number of classes of the head. None for the number in the published `weights`, or 1000 without
            published weights.
        include_top: whether to include the head. Without a head, the model returns features, after `pre_logits` if the
            model has it. If the published `weights` have no head and `classes` is None, the model has no head either.
        weights: source for `checkpoints.load`: the name of published weights (such as "imagenet21k",
            "imagenet21k+imagenet2012", "augreg", "augreg:<file name>" or "sam"), a path, an https or gs URL, or a
            repository on the Hugging Face Hub; None for random weights. Files are loaded with `head="keep"`; for
            fine-tuning, see `checkpoints.load`. The load report goes to the logger "keras_vit".
        classifier: input of the head: "token" (the class token), "gap" (the mean of the patch tokens), "token_gap" (the
            same, in a model with a class token), "map" (attention pooling over all tokens, as in big_vision),
            "unpooled" (every token) or "token_unpooled" (every token, the class token first). Only models whose
            classifier starts with "token" have a class token.
        representation_size: units of the tanh layer `pre_logits` before the head; 0 omits the layer. None for the
            size in the published `weights`, or 0 without published weights.
        dropout: dropout rate after the position embedding and in the blocks, in [0, 1).
        attention_dropout: dropout rate of the attention scores, in [0, 1).
        stochastic_depth: probability of dropping a residual branch in the last block, in [0, 1). The probability grows
            linearly from 0 in the first block.
        stem: "resnet" for a hybrid, with a ResNet stem before the patches; "" for no stem; None for "resnet" if
            `resnet_blocks` is set, otherwise "".
        resnet_blocks: number of units in each stage of the ResNet stem; `()` for only the stem's root.
        position_embedding: "learned", a vector for each token in raster order (the paper's 1-D); "learned2d", half a
            vector for each column and half for each row; "relative", a vector for each raster-order distance between
            two tokens, used by the attention of every block; "sincos2d", big_vision's fixed sines and cosines; "none".
        position_embedding_at: where learned position embeddings are added, as in appendix D.4: "stem", once before the
            first block; "every_layer", to the input of each block, with a table per block; "every_layer_shared", to the
            input of each block, with one table.
        position_resampling: how `checkpoints.load` resamples learned position embeddings to another grid: "zoom",
            bilinear with aligned corners as in the JAX reference, or another key of
            `checkpoints.position_embeddings.RULES`. Files of other libraries use the method of their library.
        class_token_position: whether the class token has a position embedding. It has one in the JAX reference, but not
            in big_vision. With "sincos2d", a class token requires False.
        exact_gelu: whether the MLPs use the exact GELU, as in timm and Hugging Face, instead of the reference's tanh
            approximation.
        epsilon: epsilon of every LayerNorm, above 0; 1e-12 in Hugging Face's ViT.
        head_bias: initial value of the head's biases. The head's kernel is initialized to zeros.
        classifier_activation: activation of the head, such as "softmax"; None for logits.
        masking_rate: fraction of the patch embeddings to corrupt for masked patch prediction, see
            `layers.patch_masking.PatchMasking` and `tasks.MaskedPatchPrediction`. If it is above 0, the model returns
            `(output, corrupted)`, where `corrupted` is `(B, N)`, 1 for a corrupted patch.
        preprocessing: preprocessing that the images are expected to have, see `layers.InputPreprocessing`; None for the
            preprocessing of `weights`, or of the JAX reference without weights. The model stores it but does not apply
            it. A later call of `checkpoints.load` replaces it.
        remat: whether to recompute the blocks in the backward pass, which saves memory but takes time; see
            `layers.TransformerBlock`. The results do not change.
        mlp, mlp_norm, mlp_bias, attention_bias, attention_norm, qk_norm, layer_scale: see `layers.TransformerBlock`.
        rotary: rotary position embedding of the patches in every block: a dict of arguments of
            `layers.rotary.rotary_table` other than `size`, `grid` and `prefix`, such as DINOv3's `{"style": "half",
            "coordinates": "centered", "theta": 100.0}`; None for no rotary embedding.
        num_registers: number of register tokens after the class tokens; they are learned, without position embeddings.
        pre_norm: whether to apply a LayerNorm before the first block, as in CLIP.
        patch_bias: whether the patch projection has a bias.
        pool_norm: whether the final LayerNorm comes after the pooling instead of before it (MAE's and EVA-02's
            `fc_norm`).
        distilled: whether to add a second class token with a separate head, as in DeiT. The logits are the mean of both
            heads. With `include_top=False`, the features are both tokens, `(B, 2D)`.
        max_patches: maximum number of patches per image in a NaFlex model, for images of any aspect ratio; 0 for other
            models. The input of a NaFlex model is a batch of `keras_vit.naflex`, `(B, max_patches, P*P + 2, C)`. The
            position table has the grid of `input_shape` and is resized to the grid of each image. Requires
            `classifier="map"` and the defaults of several other arguments.
        name: name of the model.
        dtype: dtype policy; None for Keras' global policy.

    Returns:
        float32 logits `(B, classes)`, or `(B, N, classes)` for the unpooled classifiers. With `include_top=False`,
        features `(B, F)` or `(B, N, F)` in the compute dtype, where F is `representation_size or hidden_size` (`2 *
        hidden_size` if `distilled`).

    Attributes:
        arguments, image_shape, preprocessing, head: see `ImageModel`.
        patch_size, num_layers, hidden_size, mlp_dim, num_heads, classifier: the arguments of the same name.
        grid: `(rows, columns)` of the patches.
        patch_stride: stride of the patches in image pixels; in a hybrid, the stem's stride times `patch_size`.
        num_class_tokens: number of class tokens; 2 in a distilled model.
        num_prefix_tokens: number of tokens before the patch tokens: class tokens and register tokens.
        num_tokens: number of tokens in the blocks.
        stem, patch_encoder, class_token, norm, pool_layer, pool_norm, pre_logits: layers, or None if the model does not
            have the layer.
        positions: for each block, the layer that adds position embeddings to the block's input, or None.
        blocks: the `TransformerBlock`s, in order. Layers are numbered as in the paper: layer 1 is the first block, and
            layer 0 is that block's input.

    Raises:
        ValueError: an argument is out of range, the image is not a whole number of patches, or the checkpoint does not
            match.

    Reference: paper section 3.1; matches the VisionTransformer of the JAX reference
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
        masking_rate: float = 0.0,
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
        max_patches: int = 0,
        name: str = "vision_transformer",
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        # Take missing arguments from the published weights.
        arguments = kept_arguments(locals())
        resnet_blocks = resolve_stem(stem, resnet_blocks)
        if weights is not None:
            published = checkpoints.find_published(weights, **{**arguments, "resnet_blocks": resnet_blocks})
            if published is not None and published.classes == 0 and classes is None:
                arguments["include_top"] = False
            elif published is not None:
                classes = published.classes if classes is None else classes
                if representation_size is None:
                    representation_size = published.representation_size
        classes, representation_size = 1000 if classes is None else classes, representation_size or 0
        arguments |= {
            "resnet_blocks": resnet_blocks,
            "classes": classes,
            "representation_size": representation_size,
            "rotary": None if rotary is None else dict(rotary),
        }
        check_choice("position_embedding", position_embedding, POSITION_EMBEDDINGS)
        make_positions = POSITION_EMBEDDINGS[position_embedding]
        check_vision_transformer(arguments, make_positions.has_class_token_position)
        grid = patch_grid(input_shape, patch_size, resnet_blocks)
        has_class_token = classifier.startswith("token")
        num_class_tokens = int(has_class_token) + distilled
        num_prefix_tokens = num_class_tokens + num_registers
        policy = {"dtype": policy_of(dtype)}

        # Layer 0: embed the patches and add class tokens, position embeddings and register tokens (eq. 1).
        preparation = layers.InputPreprocessing(preprocessing, name="expected_images", **policy)
        preparation.autocast &= not max_patches  # bfloat16 cannot represent odd positions above 256
        resnet = None if resnet_blocks is None else layers.ResNetStem(resnet_blocks, name="resnet_stem", **policy)
        make_patches, make_encoder, make_norm = layers.Patches, layers.PatchEncoder, keras.layers.LayerNormalization
        if max_patches:
            make_patches, make_encoder, make_norm = NaFlexPatches, NaFlexPatchEncoder, MaskedLayerNormalization
            make_positions = NaFlexPositionEmbedding
            input_shape = batch_shape(max_patches, patch_size, input_shape[2])
            preparation.preprocessing = dataclasses.replace(preparation.preprocessing, resize="naflex")
        patches = make_patches(patch_size, name="patches", **policy)
        patch_encoder = make_encoder(hidden_size, patch_bias, name="embedding", **policy)
        masking = PatchMasking(masking_rate, name="mask_patches", **policy) if masking_rate else None
        positions = make_positions(grid, name="position_embedding", **policy)
        class_token = layers.ClassToken(name="class_token", **policy) if has_class_token else None
        distillation_token = layers.ClassToken(name="distillation_token", **policy) if distilled else None
        class_tokens = [distillation_token, class_token]  # each prepends its token, so the class token comes first
        first = [preparation, resnet, patches, patch_encoder, masking]
        first += [*class_tokens, positions] if class_token_position else [positions, *class_tokens]
        if num_registers:
            first.append(layers.RegisterTokens(num_registers, num_class_tokens, name="register_tokens", **policy))
        first.append(Dropout(dropout, name="dropout", **policy))
        if pre_norm:
            first.append(keras.layers.LayerNormalization(epsilon=epsilon, name="pre_norm", **policy))
        first = [layer for layer in first if layer is not None]
        images = keras.Input(shape=input_shape, name="images")
        x, corrupted = _run(first, images)  # (B, num_tokens, hidden_size)

        # Layers 1 to num_layers (eq. 2 and 3).
        block: dict[str, Any] = {name: arguments[name] for name in _BLOCK}
        if rotary is not None:
            block["rotary"] = {**rotary, "grid": grid, "prefix": num_prefix_tokens}
        blocks, later_positions = [], []
        for i in range(num_layers):
            if i:
                later = None if position_embedding_at == "stem" else positions
                if position_embedding_at == "every_layer":
                    later = make_positions(grid, name=f"position_embedding_{i}", **policy)
                later_positions.append(later)
                x = x if later is None else later(x)
            blocks.append(
                layers.TransformerBlock(
                    stochastic_depth=stochastic_depth * i / max(num_layers - 1, 1),
                    # The head reads only the class token. Skipping other tokens saves about 7 % of ViT-B/16's FLOPs.
                    first_token_only=classifier == "token" and i == num_layers - 1 and not distilled,
                    relative_positions=position_embedding == "relative",
                    masked=bool(max_patches),
                    name=f"encoderblock_{i}",
                    **block,
                    **policy,
                )
            )
            x = blocks[-1](x)

        # Add the norm, the pooling (if the classifier pools) and the head (eq. 4).
        norm: Any = make_norm(epsilon=epsilon, name="encoder_norm", **policy)
        norm_after_pool: Any = None
        if pool_norm:
            norm = keras.layers.Identity(name="encoder_norm", **policy)
            norm_after_pool = keras.layers.LayerNormalization(epsilon=epsilon, name="pool_norm", **policy)
        x = norm(x)
        pool: Any = None
        if classifier == "token":
            x = x[:, :2] if distilled else x
            pool = keras.layers.Flatten(name="pool", **policy)  # (B, hidden_size * number of class tokens)
        elif classifier.endswith("gap"):
            x = x[:, num_prefix_tokens:] if num_prefix_tokens else x
            pool = keras.layers.GlobalAveragePooling1D(data_format="channels_last", name="pool", **policy)
        elif classifier == "map":
            activation = None if mlp == "swiglu" else mlp
            options: dict[str, Any] = {"exact_gelu": exact_gelu and mlp is None, "mlp": activation, "epsilon": epsilon}
            pool = layers.AttentionPooling(
                num_heads, mlp_dim, masked=bool(max_patches), name="pool", **options, **policy
            )
        x = x if pool is None else pool(x)
        x = x if norm_after_pool is None else norm_after_pool(x)
        x = add_head(x, arguments, **policy)
        outputs = (x, corrupted) if masking_rate else x
        super().__init__(images, outputs, arguments=arguments, name=name, **policy, **kwargs)

        # Set the attributes, which the class docstring describes.
        self.patch_size, self.num_layers, self.hidden_size = patch_size, num_layers, hidden_size
        self.mlp_dim, self.num_heads, self.classifier = mlp_dim, num_heads, classifier
        self.grid, self.patch_stride = grid, patch_size * (1 if resnet is None else resnet.stride)
        self.num_class_tokens, self.num_prefix_tokens = num_class_tokens, num_prefix_tokens
        self.num_tokens = max_patches or num_prefix_tokens + grid[0] * grid[1]
        self.stem, self.patch_encoder, self.class_token = resnet, patch_encoder, class_token
        self.positions, self.blocks = (positions, *later_positions), tuple(blocks)
        self.norm, self.pool_layer, self.pool_norm = norm, pool, norm_after_pool
        self.pre_logits = next((layer for layer in self.layers if layer.name == "pre_logits"), None)
        self._first = tuple(first)
        if weights is not None:
            load_into(self, weights, given=() if preprocessing is None else ("preprocessing",))

    def __call__(self, inputs: keras.KerasTensor, *args: Any, **kwargs: Any) -> Any:
        self.check_naflex(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def check_naflex(self, images: Any) -> None:
        """Raises a `ValueError` if a NaFlex model gets plain images or another model gets a NaFlex batch.

        In eager calls, also raises an error for a NaFlex batch with an image that has no patches.
        """
        shape = tuple(getattr(images, "shape", ()))
        if len(shape) != 4:
            return
        if shape[1:] == self.image_shape:
            places = images[:, :, -2:] if self.arguments["max_patches"] else None
            places = places if places is None or isinstance(places, np.ndarray) else concrete_values(places)
            if places is not None and not (places > 0).any((1, 2, 3)).all():
                raise ValueError(
                    f"At least one image of the batch has no patches: its patch sizes are 0. Received: shape={shape}"
                )
            return
        if self.arguments["max_patches"]:
            raise ValueError(
                f"A NaFlex model of {self.image_shape[0]} patches takes batches of shape (B, "
                f"{', '.join(map(str, self.image_shape))}); use `keras_vit.preprocess_input(list_of_images, model)`. "
                f"Received: images of shape {shape}"
            )
        if shape[2] == self.arguments["patch_size"] ** 2 + 2:
            raise ValueError(
                f"A NaFlex batch requires a model built with `max_patches`; {self.name!r} takes images of shape "
                f"(B, {', '.join(map(str, self.image_shape))}). Received: images of shape {shape}"
            )

    def check_grid(self) -> None:
        """Raises a `ValueError` for a NaFlex model, because each of its images has its own patch grid."""
        if self.arguments["max_patches"]:
            raise ValueError(
                "Each image of a NaFlex batch has its own patch grid, so the tokens do not form maps of one size. "
                f"Received: model={self.name!r}"
            )

    def call(self, inputs: keras.KerasTensor, training: bool | None = None, mask: Any = None) -> Any:
        model, function, *_ = _FORWARD.get()
        if model is self:
            return function(keras.tree.flatten(inputs)[0])
        return super().call(inputs, training=training, mask=mask)

    @contextlib.contextmanager
    def replaced_forward(self, function: Callable, score_changes: Sequence = ()) -> Iterator[list]:
        """Replaces this model's forward pass with `function(images)` in this thread, even if the model is nested.

        `run_block` adds `score_changes[number - 1]`, if it exists, to the attention scores. Yields a list that collects
        the images passed to `embed`.
        """
        embedded: list = []
        token = _FORWARD.set((self, function, embedded, score_changes))
        try:
            yield embedded
        finally:
            _FORWARD.reset(token)

    @contextlib.contextmanager
    def at_patch_size(self, patch_size: int) -> Iterator[None]:
        """Returns a context in which this model uses another patch size in this thread.

        The forward pass resizes the patch kernel and the position embeddings in the same way as
        `from_pretrained(..., patch_size=...)`; gradients flow to the stored weights. Functions that were compiled
        outside the context keep their patch size.

        Raises:
            ValueError: `patch_size` is not a positive integer, the image is not a whole number of patches, the model
                has a stem, a rotary embedding, masked patches or NaFlex inputs, or `position_embedding` is neither
                "learned" nor "none".

        Reference: FlexiViT, arXiv 2212.08013.
        """
        a, names = self.arguments, ("resnet_blocks", "rotary", "masking_rate", "max_patches", "position_embedding")
        refused = self.stem or a["rotary"] or a["masking_rate"] or a["max_patches"]
        if refused or a["position_embedding"] not in ("learned", "none"):
            raise ValueError(
                "Changing the patch size requires a model without a stem, rotary embedding, masked patches or NaFlex "
                "inputs; its `position_embedding` must be learned or none. "
                f"Received: {', '.join(f'{name}={a[name]!r}' for name in names)}"
            )
        check_positive_int("patch_size", patch_size)
        grid, rule = patch_grid(self.image_shape, patch_size), a["position_resampling"]
        kernel = positions = None
        if patch_size != self.patch_size:
            kernel = [kernel_matrix(self.patch_size, patch_size, rule)] * 2
            positions = [RULES[rule](old, new) for old, new in zip(self.grid, grid)]
        patches = next(layer for layer in self._first if isinstance(layer, layers.Patches))
        resized: dict[int, Any] = {id(layer): positions for layer in self.positions}
        resized |= {id(patches): patch_size, id(self.patch_encoder): kernel}
        token = RESIZED.set({**RESIZED.get(), **resized})
        try:
            yield
        finally:
            RESIZED.reset(token)

    def embed(self, images: keras.KerasTensor, training: bool = False) -> keras.KerasTensor:
        """Computes the tokens of layer 0: images `(B, H, W, C)` to `(B, num_tokens, D)`."""
        model, _, embedded, _ = _FORWARD.get()
        if model is self:
            embedded.append(images)
        return _run(self._first, images, training)[0]

    def run_block(
        self, number: int, tokens: keras.KerasTensor, training: bool = False, all_tokens: bool = True
    ) -> keras.KerasTensor:
        """Computes the tokens of layer `number`, 1 or more, from the tokens of the previous layer, both `(B, N, D)`.

        With `all_tokens=False`, a block with `first_token_only` returns only the class token, `(B, 1, D)`.
        """
        block = self.blocks[number - 1]
        model, _, _, changes = _FORWARD.get()
        score_change = changes[number - 1] if model is self and number <= len(changes) else None
        tokens = self._with_positions(number, tokens)
        if score_change is None and not (block.first_token_only and all_tokens):
            return block(tokens, training=training)
        return block.encode(tokens, training, block.first_token_only and not all_tokens, score_change)

    def attention_scores(self, number: int, tokens: keras.KerasTensor) -> keras.KerasTensor:
        """Computes the attention scores of layer `number`, after the softmax, from the tokens of the previous layer.

        Layers are counted from 1. Returns float32 `(B, heads, N, N)`; the last axis is the keys.
        """
        block = self.blocks[number - 1]
        real = real_tokens(tokens) if block.masked else None
        x = block.norm_1(self._with_positions(number, tokens))
        return block.attention.scores_of(x, real)

    def _with_positions(self, number, tokens):
        positions = self.positions[number - 1] if number > 1 else None
        return tokens if positions is None else positions(tokens)

    def check_pools(self) -> None:
        """Raises a `ValueError` if the model does not pool its tokens."""
        if self.pool_layer is None:
            raise ValueError(
                f"`tokens` must not be 'pooled', because a model with classifier={self.classifier!r} does not pool its "
                f"tokens. Received: tokens='pooled', model={self.name!r}"
            )

    def pool(self, tokens: keras.KerasTensor, pre_logits: bool = True) -> keras.KerasTensor:
        """Computes the head's input from all tokens after `norm`: `(B, N, D)` to `(B, F)`.

        With `pre_logits=False`, omits the layer `pre_logits`.
        """
        self.check_pools()
        if self.classifier.endswith("gap"):
            tokens = tokens[:, self.num_prefix_tokens :]
        if self.classifier == "token":
            tokens = tokens[:, : self.num_class_tokens]
        x = self.pool_layer(tokens)
        x = x if self.pool_norm is None else self.pool_norm(x)
        return self.pre_logits(x) if pre_logits and self.pre_logits is not None else x

    def intermediates(
        self, images: keras.KerasTensor, attention: bool = False, training: bool = False
    ) -> dict[str, Any]:
        """Computes all intermediate representations of images `(B, H, W, C)`.

        Returns:
            A dict with the keys

            - "tokens": list of the tokens of layers 0 to `num_layers`, each `(B, N, D)`;
            - "attention", only with `attention=True`: list of the attention scores of layers 1 to `num_layers`, each
              float32 `(B, heads, N, N)`;
            - "encoded": the last layer's tokens after `norm`, `(B, N, D)`;
            - "pre_logits": the head's input, `(B, F)`, or `(B, N, F)` for an unpooled classifier.
        """
        tokens, scores = [self.embed(images, training)], []
        for number in range(1, self.num_layers + 1):
            if attention:
                scores.append(self.attention_scores(number, tokens[-1]))
            tokens.append(self.run_block(number, tokens[-1], training))
        encoded = self.norm(tokens[-1])
        pooled = encoded if self.pool_layer is None else self.pool(encoded, pre_logits=False)
        features = pooled if self.pre_logits is None else self.pre_logits(pooled)
        result = {"tokens": tokens, "encoded": encoded, "pre_logits": features}
        return {**result, "attention": scores} if attention else result

    def layer_numbers(self, layers: int | Sequence[int], least: int = 0) -> tuple[list[int], bool]:
        """Returns a list with the `layer_number` of each layer, and whether `layers` is a single number."""
        is_single = not isinstance(layers, Sequence | np.ndarray)
        every: Any = [layers] if is_single else layers
        numbers = [self.layer_number(layer, least) for layer in every]
        if not numbers:
            raise ValueError("`layers` must contain at least one layer number. Received: layers=[]")
        return numbers, is_single

    def layer_number(self, layer: int, least: int = 0) -> int:
        """Converts a layer number, which counts from the end if negative, to a number from `least` to `num_layers`."""
        last = self.num_layers
        is_integer = isinstance(layer, numbers.Integral) and not isinstance(layer, bool)
        number = int(layer) + (last + 1 if layer < 0 else 0) if is_integer else -1
        if not max(least, 0) <= number <= last:
            raise ValueError(
                f"The layers of {self.name!r} are {least} to {last}, where 1 is the first block, or "
                f"{least - last - 1} to -1 from the end. Received: layer={layer!r}"
            )
        return number


def _run(first, x, training=None):
    """Applies the layers `first` in order; returns the tokens and the mask of corrupted patches, or None."""
    corrupted = None
    for layer in first:
        if isinstance(layer, PatchMasking):
            x, corrupted = layer(x, training=training)
        else:
            x = layer(x, training=training) if isinstance(layer, Dropout) else layer(x)
    return x, corrupted
