"""The Vision Transformer as a functional Keras model."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from keras_vit import checkpoints, layers
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.patch_masking import PatchMasking
from keras_vit.layers.resnet_stem import resolve_stem, stem_output_side
from keras_vit.layers.validation import check_positive_int, check_rate
from keras_vit.models.heads import add_head
from keras_vit.preprocessing import Preprocessing

CLASSIFIERS = ("token", "gap", "map", "unpooled", "token_unpooled")
# From the grid of the patches, `(rows, columns)`, to a layer on tokens `(B, N, D)`. To add one, write the layer and
# its row here; its `has_class_token_position` says whether it can stand after the class token.
POSITION_EMBEDDINGS: dict[str, Any] = {
    "learned": layers.PositionEmbedding,
    "learned2d": layers.PositionEmbedding2D,
    "sincos2d": layers.SinCosPositionEmbedding,
    "none": layers.NoPositionEmbedding,
    "relative": layers.NoPositionEmbedding,  # the blocks have it, in their attention
}
# Where a position embedding is added: to the tokens once, to the input of each block from a table of its own, or to
# the input of each block from one table.
POSITION_EMBEDDING_AT = ("stem", "every_layer", "every_layer_shared")


def VisionTransformer(
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
    name: str = "vision_transformer",
) -> keras.Model:
    """Builds a Vision Transformer: images `(B, H, W, C)` in [-1, 1] to logits `(B, classes)`.

    Images are cut into patches, each patch is projected to a token, positions are added, `num_layers` blocks of
    attention and MLP follow, and a linear head reads the class token or the mean of all tokens.

    Args:
        patch_size: side of a patch, in pixels of the image, or of the stem's features where there is a stem.
        num_layers: number of Transformer blocks.
        hidden_size: size of a token.
        mlp_dim: size of the hidden layer of each block's MLP.
        num_heads: attention heads; must divide `hidden_size`.
        input_shape: `(height, width, channels)` in pixels; any number of channels; the sides need not be equal, but
            the patches must fill them.
        classes: number of outputs of the head. None is 1000, or what the published `weights` have.
        include_top: whether the model has its head. Without it the model returns features; `pre_logits` stays.
        weights: None, or what `checkpoints.load` takes: the name of published weights ("imagenet21k",
            "imagenet21k+imagenet2012", "augreg", "augreg:<file name>", "sam"), a path or an https or gs URL. Every
            array must match, the head included unless the model has none; only the position embedding is resampled
            where its grid is another. To load for fine-tuning, see `checkpoints.load`.
            The report goes to the log "keras_vit".
        classifier: what the head reads: "token" (the class token), "gap" (the mean over all tokens), "map" (attention
            pooling over all tokens, as in big_vision), "unpooled" (every token) or "token_unpooled" (every token, the
            class token first). Without "token" in its name there is no class token.
        representation_size: units of the tanh layer `pre_logits` before the head; 0 for none. None is 0, or what the
            published `weights` have.
        dropout: rate after the position embedding and in the blocks, in [0, 1).
        attention_dropout: rate on the attention scores, in [0, 1).
        stochastic_depth: probability of dropping a residual branch of the last block, in [0, 1); it grows linearly
            from 0 at the first.
        stem: what the image goes through before it is cut into patches: "" for nothing, "resnet" for the ResNet stem
            of a hybrid. None is "resnet" where `resnet_blocks` is given, else "".
        resnet_blocks: units in each stage of the ResNet stem; `()` is the stem's root alone.
        position_embedding: "learned", a vector for each token in raster order (the paper's 1-D); "learned2d", half a
            vector for each column and for each row; "relative", vectors for how far apart two tokens are in raster
            order, to which queries attend in every block; "sincos2d", big_vision's fixed sines and cosines; "none".
        position_embedding_at: where a learned one is added, as in appendix D.4: "stem", once before the first block;
            "every_layer", to the input of each block from a table of its own; "every_layer_shared", to each from the
            same table.
        class_token_position: whether the class token has a position of its own, as in the JAX reference; in big_vision
            it has none, and with "sincos2d" it cannot.
        exact_gelu: whether the MLPs use the exact GELU, as those of timm and Hugging Face do; the reference uses its
            tanh form.
        epsilon: of every LayerNorm, above 0; 1e-12 in Hugging Face's.
        head_bias: initial value of the head's biases. Its kernel starts with zeros.
        classifier_activation: activation of the head, such as "softmax"; None gives logits.
        masking_rate: the share of the patches whose embeddings are corrupted while the model learns to predict them,
            see `layers.patch_masking.PatchMasking` and `tasks.MaskedPatchPrediction`; 0 for none. Above 0 the model
            returns `(output, corrupted)`, the second one `(B, N)`, 1 for a corrupted patch.
        preprocessing: how images become the model's input, as `layers.InputPreprocessing` takes it; None for the
            reference's. It changes no number, and is saved with the model; loading published weights sets theirs.
        remat: whether the blocks keep only their inputs for the gradient and are computed twice in training, which
            saves memory and costs time; see `layers.TransformerBlock`. It changes no number.
        name: the model's name.

    Returns:
        A functional `keras.Model`. Its output is float32 logits `(B, classes)`, `(B, N, classes)` for the unpooled
        classifiers; with `include_top=False` features `(B, F)` or `(B, N, F)` in the compute dtype, where F is
        `representation_size or hidden_size`.

    Raises:
        ValueError: an argument is out of range, the patches do not fill the image, or the checkpoint does not match.

    Reference: paper section 3.1; equal to the VisionTransformer of the JAX reference
    ([`vit_jax`](https://github.com/google-research/vision_transformer)) with the same weights.
    """
    resnet_blocks = resolve_stem(stem, resnet_blocks)
    if weights is not None:
        published = checkpoints.find_published(
            weights,
            patch_size=patch_size,
            num_layers=num_layers,
            hidden_size=hidden_size,
            resnet_blocks=resnet_blocks,
            input_shape=input_shape,
        )
        if published is not None:
            classes = published.classes if classes is None else classes
            representation_size = published.representation_size if representation_size is None else representation_size
    classes = 1000 if classes is None else classes
    _validate(
        input_shape=input_shape,
        positive={
            "patch_size": patch_size,
            "num_layers": num_layers,
            "hidden_size": hidden_size,
            "mlp_dim": mlp_dim,
            "num_heads": num_heads,
            "classes": classes,
            **({"representation_size": representation_size} if representation_size else {}),
        },
        rates={"dropout": dropout, "attention_dropout": attention_dropout, "stochastic_depth": stochastic_depth},
        classifier=classifier,
        position_embedding=position_embedding,
        position_embedding_at=position_embedding_at,
        class_token_position=class_token_position,
        epsilon=epsilon,
    )
    grid = patch_grid(input_shape, patch_size, resnet_blocks)
    has_class_token = classifier.startswith("token")
    block_options: dict[str, Any] = {"exact_gelu": exact_gelu, "epsilon": epsilon}

    images = keras.Input(shape=input_shape, name="images")
    x = layers.InputPreprocessing(preprocessing, name="expected_images")(images)
    if resnet_blocks is not None:
        x = layers.ResNetStem(resnet_blocks, name="resnet_stem")(x)
    x = layers.Patches(patch_size, name="patches")(x)
    x = layers.PatchEncoder(hidden_size, name="embedding")(x)  # (B, rows*columns, hidden_size)
    if masking_rate:
        x, corrupted = PatchMasking(masking_rate, name="mask_patches")(x)
    if has_class_token and class_token_position:
        x = layers.ClassToken(name="class_token")(x)
    positions = POSITION_EMBEDDINGS[position_embedding](grid, name="position_embedding")
    x = positions(x)
    if has_class_token and not class_token_position:
        x = layers.ClassToken(name="class_token")(x)
    x = Dropout(dropout, name="dropout")(x)
    for i in range(num_layers):
        if i and position_embedding_at == "every_layer":
            x = POSITION_EMBEDDINGS[position_embedding](grid, name=f"position_embedding_{i}")(x)
        elif i and position_embedding_at == "every_layer_shared":
            x = positions(x)
        x = layers.TransformerBlock(
            num_heads,
            mlp_dim,
            dropout=dropout,
            attention_dropout=attention_dropout,
            stochastic_depth=stochastic_depth * i / max(num_layers - 1, 1),
            # Nothing reads the other tokens of the last block: about 7 % of ViT-B/16's arithmetic.
            first_token_only=classifier == "token" and i == num_layers - 1,
            relative_positions=position_embedding == "relative",
            remat=remat,
            name=f"encoderblock_{i}",
            **block_options,
        )(x)
    x = keras.layers.LayerNormalization(epsilon=epsilon, name="encoder_norm")(x)
    if classifier == "token":
        x = keras.layers.Flatten(name="pool")(x)  # from (B, 1, hidden_size) to (B, hidden_size)
    elif classifier == "gap":
        x = keras.layers.GlobalAveragePooling1D(data_format="channels_last", name="pool")(x)
    elif classifier == "map":
        x = layers.AttentionPooling(num_heads, mlp_dim, name="pool", **block_options)(x)
    x = add_head(
        x,
        include_top=include_top,
        classes=classes,
        bias=head_bias,
        activation=classifier_activation,
        representation_size=representation_size,
    )
    model = keras.Model(images, (x, corrupted) if masking_rate else x, name=name)
    if weights is not None:
        checkpoints.load(model, weights)
    return model


def patch_grid(input_shape, patch_size, resnet_blocks=None):
    """`(rows, columns)` of the patches of an image.

    Raises:
        ValueError: the patches do not fill the image.
    """

    def tokens_along(side):
        if resnet_blocks is not None:
            side = stem_output_side(side, resnet_blocks)
        return 0 if side % patch_size else side // patch_size

    grid = []
    for axis, side in zip(("height", "width"), input_shape):
        if not tokens_along(side):
            smaller = next((s for s in range(side - 1, 0, -1) if tokens_along(s)), None)
            larger = next(s for s in range(side + 1, 10**9) if tokens_along(s))
            nearest = f"{larger}" if smaller is None else f"{smaller} and {larger}"
            raise ValueError(
                f"The patches do not fill the image's {axis}; the nearest sizes that work are {nearest}. "
                f"Received: {axis}={side} with patch_size={patch_size}, resnet_blocks={resnet_blocks}"
            )
        grid.append(tokens_along(side))
    return tuple(grid)


def _validate(
    *,
    input_shape,
    positive,
    rates,
    classifier,
    position_embedding,
    position_embedding_at,
    class_token_position,
    epsilon,
):
    for argument, value in positive.items():
        check_positive_int(argument, value)
    for argument, value in rates.items():
        check_rate(argument, value)
    if positive["hidden_size"] % positive["num_heads"]:
        raise ValueError(
            "`num_heads` must divide `hidden_size`. "
            f"Received: num_heads={positive['num_heads']}, hidden_size={positive['hidden_size']}"
        )
    if classifier not in CLASSIFIERS:
        raise ValueError(f"`classifier` must be one of {', '.join(CLASSIFIERS)}. Received: classifier={classifier!r}")
    if position_embedding not in POSITION_EMBEDDINGS:
        raise ValueError(
            f"`position_embedding` must be one of {', '.join(POSITION_EMBEDDINGS)}. "
            f"Received: position_embedding={position_embedding!r}"
        )
    if position_embedding_at not in POSITION_EMBEDDING_AT:
        raise ValueError(
            f"`position_embedding_at` must be one of {', '.join(POSITION_EMBEDDING_AT)}. "
            f"Received: position_embedding_at={position_embedding_at!r}"
        )
    is_learned = position_embedding in ("learned", "learned2d")
    if position_embedding_at != "stem" and not (is_learned and class_token_position):
        raise ValueError(
            "Only learned and learned2d, with a position for the class token, are added at every layer. Received: "
            f"position_embedding_at={position_embedding_at!r}, position_embedding={position_embedding!r}, "
            f"class_token_position={class_token_position}"
        )
    can_position = POSITION_EMBEDDINGS[position_embedding].has_class_token_position
    if classifier.startswith("token") and class_token_position and not can_position:
        raise ValueError(
            f"With `position_embedding={position_embedding!r}` a class token has no position: pass "
            f"`class_token_position=False`. Received: class_token_position={class_token_position}"
        )
    if not isinstance(epsilon, int | float) or not epsilon > 0:
        raise ValueError(f"`epsilon` must be a number above 0. Received: epsilon={epsilon!r}")
    if (
        not isinstance(input_shape, list | tuple)
        or len(input_shape) != 3
        or not all(isinstance(side, int) and side > 0 for side in input_shape)
    ):
        raise ValueError(
            "`input_shape` must be (height, width, channels), three positive integers. "
            f"Received: input_shape={input_shape!r}"
        )
