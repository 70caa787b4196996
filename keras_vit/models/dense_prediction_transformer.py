"""The Dense Prediction Transformer (DPT) and Depth Anything."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.layers.base import BaseLayer, arguments_among, serializable
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.validation import (
    check_choice,
    check_positive_int,
    check_positive_ints,
    check_rate,
)
from keras_vit.models.dense import (
    DenseVisionTransformer,
    batch_norm,
    build_conv,
    count_products,
)
from keras_vit.models.image_model import keep
from keras_vit.models.resizing import resize_bilinear
from keras_vit.models.validation import refuse

# Scale of each level's map, relative to the grid of patches.
_FACTORS = (4, 2, 1, 0.5)


@serializable
class DensePredictionTransformer(DenseVisionTransformer):
    """A Vision Transformer with a convolutional head that fuses four levels: DPT.

    The tokens of each level become a map of its own size. Starting with the last level, the maps
    are added, refined and enlarged.

    Args:
        predicts: "segmentation" or "depth".
        classes: number of classes; 1 for depth.
        level_channels: channels of the four maps before they are fused.
        features: channels of the fused maps.
        readout: what happens to the class token: "ignore"; "add", to every patch; "project",
            concatenated with every patch and projected.
        batch_norm: whether the residual units of the fusion contain BatchNorm. The head for
            segmentation always contains one.
        residual_bias: whether the convolutions of the residual units have biases; None for units
            without BatchNorm.
        match_levels: whether a map is resized to the size of the next level and finally of the
            image, as in Depth Anything. Otherwise its size is doubled, as in DPT.
        depth_projection: whether a further convolution precedes the head for depth.
        depth_features: channels of the last hidden layer for depth.
        max_depth: depth is a sigmoid multiplied by this number, as in metric Depth Anything; 0 for
            depth without a limit, by a ReLU.
        head_dropout: dropout rate before the last layer for segmentation, in [0, 1).
        **kwargs: arguments of `DenseVisionTransformer`, such as the four `levels`, by default the
            ends of four equal parts, and of `VisionTransformer`. Published DPT has
            `level_norm=False`.

    Returns:
        float32 logits `(B, h, w, classes)` or depth `(B, h, w)`. The size is 16 times the grid of
        patches if the grid is even. With `match_levels`, depth has the size of the image, and
        logits have 16 times the grid.

    Raises:
        ValueError: an argument is out of range, or the readout needs a class token that the model
            lacks.

    Reference: Ranftl et al., "Vision Transformers for Dense Prediction" (2021), and Yang et al.,
        "Depth Anything V2" (2024); matches transformers with the same weights.
    """

    def __init__(
        self,
        *,
        predicts: str = "segmentation",
        classes: int | None = None,
        level_channels: Sequence[int] = (96, 192, 384, 768),
        features: int = 256,
        readout: str = "ignore",
        batch_norm: bool = False,
        residual_bias: bool | None = None,
        match_levels: bool = False,
        depth_projection: bool = False,
        depth_features: int = 32,
        max_depth: float = 0.0,
        head_dropout: float = 0.1,
        name: str = "dense_prediction_transformer",
        **kwargs: Any,
    ) -> None:
        level_channels = tuple(level_channels)
        own = arguments_among(locals(), omit=("classes", "name"))
        _check(own, classes)
        keep(self, predicts=predicts, head_arguments=own)
        classes = 1 if predicts == "depth" else classes
        super().__init__(classes=classes, name=name, **kwargs)

    def default_levels(self, num_layers: int) -> tuple[int, ...]:
        return tuple(max(num_layers * part // 4, 1) for part in range(1, 5))

    def make_dense_head(self, arguments: Mapping[str, Any], policy: dict) -> keras.layers.Layer:
        if len(self.levels) != 4:
            raise ValueError(f"`levels` must be four block numbers. Received: levels={self.levels}")
        if arguments["readout"] != "ignore" and self.class_token is None:
            message = "`readout` must be ignore in a model without a class token."
            refuse(message, arguments, "readout", "classifier")
        return DPTHead(
            self.grid,
            tuple(arguments["input_shape"][:2]),
            self.num_prefix_tokens,
            arguments["classes"],
            name="head",
            **self.head_arguments,
            **policy,
        )


def _check(own, classes):
    """Raises a `ValueError` for invalid arguments of the head."""
    check_choice("predicts", own["predicts"], ("segmentation", "depth"))
    check_choice("readout", own["readout"], ("ignore", "add", "project"))
    check_positive_int("features", own["features"])
    check_positive_int("depth_features", own["depth_features"])
    check_positive_ints("level_channels", own["level_channels"], "four positive integers", 4)
    check_rate("head_dropout", own["head_dropout"])
    if own["predicts"] == "depth" and classes not in (None, 1):
        raise ValueError(f"`classes` must be 1 for depth. Received: {classes=}")
    if not own["max_depth"] >= 0 or (own["max_depth"] and own["predicts"] != "depth"):
        message = "`max_depth` must be a depth, or 0 in a model for segmentation."
        refuse(message, own, "max_depth", "predicts")


def _conv(filters, size, name, policy, **options):
    """Creates a convolution that keeps the size of a map unless `options` change that."""
    options = {"padding": "same", "data_format": "channels_last", **options}
    return keras.layers.Conv2D(filters, size, name=name, **options, **policy)


@serializable
class DPTHead(BaseLayer):
    """The head of `DensePredictionTransformer`.

    Maps the tokens of four levels, a list of arrays `(B, N, D)`, to the outputs of the model.
    """

    def __init__(
        self,
        grid,
        image_size,
        prefix,
        outputs,
        predicts,
        level_channels,
        features,
        readout,
        batch_norm,
        residual_bias,
        match_levels,
        depth_projection,
        depth_features,
        max_depth,
        head_dropout,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self._keep_arguments(locals())

    def build(self, input_shape):
        policy = {"dtype": self.dtype_policy}
        self.reassemble = []
        for i, tokens in enumerate(input_shape):
            sizes = (self.grid, self.prefix, _FACTORS[i], self.level_channels[i], self.features)
            layer = Reassemble(*sizes, self.readout, name=f"reassemble_{i}", **policy)
            layer.build(tokens)
            self.reassemble.append(layer)
        level_sizes = [layer.output_map[1:3] for layer in self.reassemble]
        use_bias = not self.batch_norm if self.residual_bias is None else self.residual_bias
        # The fusions start with the last level. `sizes` are those of their resized outputs.
        self.fusions = []
        self.sizes = []
        size = level_sizes[-1]
        for i in range(4):
            fusion = Fusion(
                self.features, i == 0, self.batch_norm, use_bias, name=f"fusion_{i}", **policy
            )
            fusion.build((None, *size, self.features))
            doubles = i == 3 or not self.match_levels
            size = (2 * size[0], 2 * size[1]) if doubles else level_sizes[2 - i]
            self.fusions.append(fusion)
            self.sizes.append(size)
        fused = (None, *size, self.features)
        make = self._make_depth if self.predicts == "depth" else self._make_segmentation
        self.final_size = make(fused, policy)

    def _make_segmentation(self, shape, policy):
        """Creates and builds the last layers for segmentation; returns the size of the outputs."""
        self.hidden = _conv(self.features, 3, "hidden", policy, use_bias=False)
        self.hidden_norm = batch_norm("hidden_norm", **policy)
        self.dropout = Dropout(self.head_dropout, name="dropout", **policy)
        self.classifier = _conv(self.outputs, 1, "classifier", {"dtype": "float32"})
        build_conv(self.hidden, shape)
        self.hidden_norm.build(shape)
        build_conv(self.classifier, shape)
        return 2 * shape[1], 2 * shape[2]

    def _make_depth(self, shape, policy):
        """Creates and builds the last layers for depth; returns the size of the outputs."""
        self.projection = None
        if self.depth_projection:
            self.projection = _conv(self.features, 3, "projection", policy)
            build_conv(self.projection, shape)
        size = self.image_size if self.match_levels else (2 * shape[1], 2 * shape[2])
        self.narrow = _conv(self.features // 2, 3, "narrow", policy)
        self.hidden = _conv(self.depth_features, 3, "hidden", policy)
        # Initial depths are above 0, because the ReLU of other depths would have no gradient.
        bias = "zeros" if self.max_depth else "ones"
        self.classifier = _conv(1, 1, "classifier", {"dtype": "float32"}, bias_initializer=bias)
        build_conv(self.narrow, shape)
        hidden = build_conv(self.hidden, (None, *size, self.features // 2))
        build_conv(self.classifier, hidden)
        return size

    def call(self, levels, training=None):
        maps = [layer(tokens) for layer, tokens in zip(self.reassemble, levels)]
        x = None
        for fusion, size, level in zip(self.fusions, self.sizes, reversed(maps)):
            x = resize_bilinear(fusion(level, x, training=training), size, align_corners=True)
        return self._depth(x) if self.predicts == "depth" else self._segment(x, training)

    def _segment(self, x, training):
        x = ops.relu(self.hidden_norm(self.hidden(x), training=training))
        x = self.classifier(self.dropout(x, training=training))
        return resize_bilinear(x, self.final_size, align_corners=True)

    def _depth(self, x):
        if self.projection is not None:
            x = ops.relu(self.projection(x))
        x = resize_bilinear(self.narrow(x), self.final_size, align_corners=True)
        x = self.classifier(ops.relu(self.hidden(x)))[..., 0]
        return self.max_depth * ops.sigmoid(x) if self.max_depth else ops.relu(x)

    def compute_output_shape(self, input_shape):
        classes = () if self.predicts == "depth" else (self.outputs,)
        return (input_shape[0][0], *self.final_size, *classes)

    def multiply_accumulates(self, input_shape):
        """Returns the multiply-accumulates of one example, without those of resizing."""
        return count_products(self)


class Reassemble(BaseLayer):
    """Turns tokens `(B, N, D)` into a map whose sides are those of the grid times `factor`."""

    def __init__(self, grid, prefix, factor, channels, features, readout, **kwargs):
        super().__init__(**kwargs)
        self._keep_arguments(locals())

    def build(self, input_shape):
        policy = {"dtype": self.dtype_policy}
        size = input_shape[-1]
        self.readout_layer = self.resize = None
        if self.readout == "project":
            self.readout_layer = keras.layers.Dense(size, name="readout", **policy)
            self.readout_layer.build((None, math.prod(self.grid), 2 * size))
            self.readout_layer.positions = math.prod(self.grid)
        self.projection = _conv(self.channels, 1, "projection", policy)
        shape = build_conv(self.projection, (None, *self.grid, size))
        if self.factor > 1:
            self.resize = keras.layers.Conv2DTranspose(
                self.channels,
                self.factor,
                strides=self.factor,
                data_format="channels_last",
                name="resize",
                **policy,
            )
            shape = build_conv(self.resize, shape)
        if self.factor < 1:
            # Keras' padding="same" would pad an even side only at its end.
            stride = round(1 / self.factor)
            self.resize = _conv(self.channels, 3, "resize", policy, strides=stride, padding="valid")
            shape = build_conv(self.resize, (None, shape[1] + 2, shape[2] + 2, self.channels))
        self.level = _conv(self.features, 3, "level", policy, use_bias=False)
        self.output_map = build_conv(self.level, shape)

    def call(self, tokens):
        x = tokens[:, self.prefix :]
        token = tokens[:, :1]
        if self.readout == "add":
            x = x + token
        if self.readout == "project":
            x = ops.concatenate([x, ops.broadcast_to(token, ops.shape(x))], axis=-1)
            x = keras.activations.gelu(self.readout_layer(x), approximate=False)
        x = self.projection(ops.reshape(x, (-1, *self.grid, x.shape[-1])))
        if self.factor < 1:
            x = ops.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        x = x if self.resize is None else self.resize(x)
        return self.level(x)


class Fusion(BaseLayer):
    """Adds a level to the map of the deeper levels, and refines the sum."""

    def __init__(self, features, is_first, batch_norm, use_bias, **kwargs):
        super().__init__(**kwargs)
        self._keep_arguments(locals())

    def build(self, input_shape):
        options = {
            "dtype": self.dtype_policy,
            "use_bias": self.use_bias,
            "batch_norm": self.batch_norm,
        }
        self.skip = None if self.is_first else ResidualUnit(name="skip", **options)
        self.main = ResidualUnit(name="main", **options)
        self.projection = _conv(self.features, 1, "projection", {"dtype": self.dtype_policy})
        if self.skip:
            self.skip.build(input_shape)
        self.main.build(input_shape)
        build_conv(self.projection, input_shape)

    def call(self, level, deeper=None, training=None):
        x = level
        if deeper is not None:
            level = resize_bilinear(level, deeper.shape[1:3], align_corners=False)
            x = deeper + self.skip(level, training=training)
        # The 1x1 convolution commutes with the resizing that follows, and costs less before it.
        return self.projection(self.main(x, training=training))


class ResidualUnit(BaseLayer):
    """Adds the result of two convolutions to the input. A ReLU precedes each convolution."""

    def __init__(self, batch_norm, use_bias, **kwargs):
        super().__init__(**kwargs)
        self._keep_arguments(locals())

    def build(self, input_shape):
        policy = {"dtype": self.dtype_policy}
        channels = input_shape[-1]
        self.convs = []
        self.norms = []
        for i in (1, 2):
            self.convs.append(_conv(channels, 3, f"conv_{i}", policy, use_bias=self.use_bias))
            build_conv(self.convs[-1], input_shape)
            if self.batch_norm:
                self.norms.append(batch_norm(f"batch_norm_{i}", **policy))
                self.norms[-1].build(input_shape)

    def call(self, x, training=None):
        y = x
        for i, conv in enumerate(self.convs):
            y = conv(ops.relu(y))
            if self.norms:
                y = self.norms[i](y, training=training)
        return x + y
