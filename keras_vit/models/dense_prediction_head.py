"""The convolutional head of the Dense Prediction Transformer, which fuses maps of four levels."""

import math

import keras
from keras import ops

from keras_vit.layers.base import BaseLayer, serializable
from keras_vit.layers.dropout import Dropout
from keras_vit.models.dense import batch_norm
from keras_vit.models.resizing import resize_bilinear

# Scale of each level's map, relative to the grid of patches.
_FACTORS = (4, 2, 1, 0.5)


@serializable
class DPTHead(BaseLayer):
    """The head of `DensePredictionTransformer`.

    Maps the tokens of four levels, a list of arrays `(B, N, D)`, to the outputs of the model.

    Args:
        grid: `(rows, columns)` of the patches.
        image_size: `(height, width)` of the images.
        prefix: number of class and register tokens before the patches.
        outputs: number of classes; 1 for depth.
        predicts, level_channels, features, readout, batch_norm, residual_bias, match_levels,
            depth_projection, depth_features, max_depth, head_dropout: see
            `DensePredictionTransformer`.
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
        make = self._make_depth if self.predicts == "depth" else self._make_segmentation
        self.final_size = make((None, *size, self.features), policy)

    def _make_segmentation(self, shape, policy):
        """Creates and builds the last layers for segmentation; returns the size of the outputs."""
        self.hidden = _conv(self.features, 3, "hidden", policy, use_bias=False)
        self.hidden_norm = batch_norm("hidden_norm", **policy)
        self.dropout = Dropout(self.head_dropout, name="dropout", **policy)
        self.classifier = _conv(self.outputs, 1, "classifier", {"dtype": "float32"})
        _build_conv(self.hidden, shape)
        self.hidden_norm.build(shape)
        _build_conv(self.classifier, shape)
        return 2 * shape[1], 2 * shape[2]

    def _make_depth(self, shape, policy):
        """Creates and builds the last layers for depth; returns the size of the outputs."""
        self.projection = None
        if self.depth_projection:
            self.projection = _conv(self.features, 3, "projection", policy)
            _build_conv(self.projection, shape)
        size = self.image_size if self.match_levels else (2 * shape[1], 2 * shape[2])
        self.narrow = _conv(self.features // 2, 3, "narrow", policy)
        self.hidden = _conv(self.depth_features, 3, "hidden", policy)
        # Initial depths are above 0, because the ReLU of other depths would have no gradient.
        bias = "zeros" if self.max_depth else "ones"
        self.classifier = _conv(1, 1, "classifier", {"dtype": "float32"}, bias_initializer=bias)
        _build_conv(self.narrow, shape)
        hidden = _build_conv(self.hidden, (None, *size, self.features // 2))
        _build_conv(self.classifier, hidden)
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
        """Returns the multiply-accumulates of one example, padding included, without resizing."""
        return sum(
            math.prod(layer.kernel.shape) * layer.positions
            for layer in self._flatten_layers()
            if hasattr(layer, "positions")
        )


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
        shape = _build_conv(self.projection, (None, *self.grid, size))
        if self.factor > 1:
            self.resize = keras.layers.Conv2DTranspose(
                self.channels,
                self.factor,
                strides=self.factor,
                data_format="channels_last",
                name="resize",
                **policy,
            )
            shape = _build_conv(self.resize, shape)
        if self.factor < 1:
            # Keras' padding="same" would pad an even side only at its end.
            stride = round(1 / self.factor)
            self.resize = _conv(self.channels, 3, "resize", policy, strides=stride, padding="valid")
            shape = _build_conv(self.resize, (None, shape[1] + 2, shape[2] + 2, self.channels))
        self.level = _conv(self.features, 3, "level", policy, use_bias=False)
        self.output_map = _build_conv(self.level, shape)

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
    """Adds a level to the map of the deeper levels, and refines the sum.

    The last level, for which `is_first` is True, has no deeper levels.
    """

    def __init__(self, features, is_first, batch_norm, use_bias, **kwargs):
        super().__init__(**kwargs)
        self._keep_arguments(locals())

    def build(self, input_shape):
        policy = {"dtype": self.dtype_policy}
        options = {"use_bias": self.use_bias, "batch_norm": self.batch_norm, **policy}
        self.skip = None if self.is_first else ResidualUnit(name="skip", **options)
        self.main = ResidualUnit(name="main", **options)
        self.projection = _conv(self.features, 1, "projection", policy)
        if self.skip:
            self.skip.build(input_shape)
        self.main.build(input_shape)
        _build_conv(self.projection, input_shape)

    def call(self, level, deeper=None, training=None):
        x = level
        if deeper is not None:
            level = resize_bilinear(level, deeper.shape[1:3])
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
            _build_conv(self.convs[-1], input_shape)
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


def _conv(filters, size, name, policy, **options):
    """Creates a convolution that keeps the size of a map unless `options` change that."""
    options = {"padding": "same", "data_format": "channels_last", **options}
    return keras.layers.Conv2D(filters, size, name=name, **options, **policy)


def _build_conv(layer, shape):
    """Builds a convolution for maps `(B, H, W, C)`, and returns the shape of its output.

    The attribute `positions` is set to the number of places where the kernel is applied.
    """
    layer.build(shape)
    output = layer.compute_output_shape(shape)
    layer.positions = min(math.prod(shape[1:3]), math.prod(output[1:3]))
    return output
