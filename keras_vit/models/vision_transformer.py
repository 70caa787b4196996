"""The Vision Transformer as a functional Keras model."""

import keras

from keras_vit import checkpoints, layers
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.resnet_stem import stem_output_side
from keras_vit.layers.validation import check_positive_int, check_rate

CLASSIFIERS = ("token", "gap", "map", "unpooled", "token_unpooled")
POSITION_EMBEDDINGS = ("learned", "sincos2d")


def VisionTransformer(
    *,
    patch_size,
    num_layers,
    hidden_size,
    mlp_dim,
    num_heads,
    input_shape=(224, 224, 3),
    classes=None,
    include_top=True,
    weights=None,
    classifier="token",
    representation_size=None,
    dropout=0.0,
    attention_dropout=0.0,
    stochastic_depth=0.0,
    resnet_blocks=None,
    position_embedding="learned",
    class_token_position=True,
    exact_gelu=False,
    epsilon=1e-6,
    head_bias=0.0,
    classifier_activation=None,
    preprocessing=None,
    remat=False,
    name="vision_transformer",
):
    """Builds a Vision Transformer: images `(B, H, W, C)` in [-1, 1] to logits `(B, classes)`.

    Images are cut into patches, each patch is projected to a token, positions are added, `num_layers` blocks of
    attention and MLP follow, and a linear head reads the class token or the mean of all tokens.

    Args:
        patch_size: side of a patch, in pixels of the image, or of the stem's features with `resnet_blocks`.
        num_layers: number of Transformer blocks.
        hidden_size: size of a token.
        mlp_dim: size of the hidden layer of each block's MLP.
        num_heads: attention heads; must divide `hidden_size`.
        input_shape: `(height, width, channels)` in pixels; need not be square, but the patches must fill it.
        classes: number of outputs of the head. None is 1000, or what the published `weights` have.
        include_top: whether the head is there. Without it the model returns features; `pre_logits` stays.
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
        stochastic_depth: probability of leaving out a residual branch of the last block, in [0, 1); it grows
            linearly from 0 at the first.
        resnet_blocks: units in each stage of the ResNet stem of a hybrid; `()` is the stem's root alone, None no stem.
        position_embedding: "learned", or "sincos2d" for big_vision's fixed sines and cosines.
        class_token_position: whether the class token has a position of its own, as in the original; in big_vision it
            has none, and with "sincos2d" it cannot.
        exact_gelu: whether the MLPs use GELU itself, as timm's and Hugging Face's do; the original uses its tanh form.
        epsilon: of every LayerNorm; 1e-12 in Hugging Face's.
        head_bias: what the head's bias starts with. Its kernel starts with zeros.
        classifier_activation: activation of the head, such as "softmax"; None gives logits.
        preprocessing: how images become the model's input, as `layers.InputPreprocessing` takes it; None for the
            original's. It changes no number, and is saved with the model; loading published weights sets theirs.
        remat: whether the blocks keep only their inputs for the gradient and are computed twice in training, which
            saves memory and costs time; see `layers.TransformerBlock`. It changes no number.
        name: the model's name.

    Returns:
        A functional `keras.Model`. Its output is float32 logits `(B, classes)`, `(B, N, classes)` for the unpooled
        classifiers; with `include_top=False` features `(B, F)` or `(B, N, F)` in the compute dtype, where F is
        `representation_size or hidden_size`.

    Raises:
        ValueError: an argument is out of range, the patches do not fill the image, or the checkpoint does not match.

    Reference: paper section 3.1; equal to the original's VisionTransformer with the same weights.
    """
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
    representation_size = 0 if representation_size is None else representation_size
    for argument, value in (
        ("patch_size", patch_size),
        ("num_layers", num_layers),
        ("hidden_size", hidden_size),
        ("mlp_dim", mlp_dim),
        ("num_heads", num_heads),
        ("classes", classes),
    ):
        check_positive_int(argument, value)
    if representation_size != 0:
        check_positive_int("representation_size", representation_size)
    check_rate("dropout", dropout)
    check_rate("attention_dropout", attention_dropout)
    check_rate("stochastic_depth", stochastic_depth)
    if hidden_size % num_heads:
        raise ValueError(
            f"`num_heads` must divide `hidden_size`. Received: num_heads={num_heads}, hidden_size={hidden_size}"
        )
    if classifier not in CLASSIFIERS:
        raise ValueError(f"`classifier` must be one of {', '.join(CLASSIFIERS)}. Received: classifier={classifier!r}")
    if position_embedding not in POSITION_EMBEDDINGS:
        raise ValueError(
            f"`position_embedding` must be one of {', '.join(POSITION_EMBEDDINGS)}. "
            f"Received: position_embedding={position_embedding!r}"
        )
    class_token = classifier in ("token", "token_unpooled")
    if class_token and class_token_position and position_embedding == "sincos2d":
        raise ValueError(
            "With `position_embedding='sincos2d'` a class token has no position: pass `class_token_position=False`. "
            f"Received: class_token_position={class_token_position}"
        )
    if not isinstance(epsilon, int | float) or not epsilon > 0:
        raise ValueError(f"`epsilon` must be a number above 0. Received: epsilon={epsilon!r}")
    stem = None if resnet_blocks is None else layers.ResNetStem(resnet_blocks, name="resnet_stem")
    grid = _grid(input_shape, patch_size, resnet_blocks)

    images = keras.Input(shape=input_shape, name="images")
    x = layers.InputPreprocessing(preprocessing, name="expected_images")(images)
    if stem is not None:
        x = stem(x)
    x = layers.Patches(patch_size, name="patches")(x)
    x = layers.PatchEncoder(hidden_size, name="embedding")(x)  # (B, rows*columns, hidden_size)
    if class_token and class_token_position:
        x = layers.ClassToken(name="class_token")(x)
    if position_embedding == "learned":
        x = layers.PositionEmbedding(grid, name="position_embedding")(x)
    else:
        x = layers.SinCosPositionEmbedding(grid, name="position_embedding")(x)
    if class_token and not class_token_position:
        x = layers.ClassToken(name="class_token")(x)
    x = Dropout(dropout, name="dropout")(x)
    for i in range(num_layers):
        x = layers.TransformerBlock(
            num_heads,
            mlp_dim,
            dropout=dropout,
            attention_dropout=attention_dropout,
            stochastic_depth=stochastic_depth * i / max(num_layers - 1, 1),
            # Nobody reads the other tokens of the last block: about 7 % of ViT-B/16's arithmetic.
            first_token_only=classifier == "token" and i == num_layers - 1,
            exact_gelu=exact_gelu,
            epsilon=epsilon,
            remat=remat,
            name=f"encoderblock_{i}",
        )(x)
    x = keras.layers.LayerNormalization(epsilon=epsilon, name="encoder_norm")(x)
    if classifier == "token":
        x = keras.layers.Flatten(name="pool")(x)  # the one token that is left: (B, hidden_size)
    elif classifier == "gap":
        x = keras.layers.GlobalAveragePooling1D(data_format="channels_last", name="pool")(x)
    elif classifier == "map":
        x = layers.AttentionPooling(num_heads, mlp_dim, exact_gelu=exact_gelu, epsilon=epsilon, name="pool")(x)
    if representation_size:
        x = keras.layers.Dense(
            representation_size,
            activation="tanh",
            kernel_initializer="lecun_normal",
            name="pre_logits",
        )(x)
    if include_top:
        x = keras.layers.Dense(
            classes,
            activation=classifier_activation,
            kernel_initializer="zeros",
            bias_initializer=keras.initializers.Constant(head_bias),
            dtype="float32",
            name="head",
        )(x)
    model = keras.Model(images, x, name=name)
    if weights is not None:
        checkpoints.load(model, weights)
    return model


def _grid(input_shape, patch_size, resnet_blocks):
    """`(rows, columns)` of the patches; checks that they fill the image."""
    if (
        not isinstance(input_shape, list | tuple)
        or len(input_shape) != 3
        or not all(isinstance(side, int) and side > 0 for side in input_shape)
    ):
        raise ValueError(
            "`input_shape` must be (height, width, channels), three positive integers. "
            f"Received: input_shape={input_shape!r}"
        )

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
