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
        level_sizes = [layer.level.output_map[1:3] for layer in self.reassemble]
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
        self.hidden = _conv(shape, self.features, 3, "hidden", policy, use_bias=False)
        self.hidden_norm = batch_norm("hidden_norm", **policy)
        self.dropout = Dropout(self.head_dropout, name="dropout", **policy)
        self.classifier = _conv(shape, self.outputs, 1, "classifier", {"dtype": "float32"})
        self.hidden_norm.build(shape)
        return 2 * shape[1], 2 * shape[2]

    def _make_depth(self, shape, policy):
        """Creates and builds the last layers for depth; returns the size of the outputs."""
        self.projection = None
        if self.depth_projection:
            self.projection = _conv(shape, self.features, 3, "projection", policy)
        size = self.image_size if self.match_levels else (2 * shape[1], 2 * shape[2])
        self.narrow = _conv(shape, self.features // 2, 3, "narrow", policy)
        resized = (None, *size, self.features // 2)
        self.hidden = _conv(resized, self.depth_features, 3, "hidden", policy)
        # Initial depths are above 0, because the ReLU of other depths would have no gradient.
        bias = "zeros" if self.max_depth else "ones"
        self.classifier = _conv(
            self.hidden.output_map,
            1,
            1,
            "classifier",
            {"dtype": "float32"},
            bias_initializer=bias,
        )
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
            patches = math.prod(self.grid)
            self.readout_layer.build((None, patches, 2 * size))
            self.readout_layer.positions = patches
        self.projection = _conv((None, *self.grid, size), self.channels, 1, "projection", policy)
        shape = self.projection.output_map
        if self.factor > 1:
            options = {"kind": keras.layers.Conv2DTranspose, "strides": self.factor}
            self.resize = _conv(shape, self.channels, self.factor, "resize", policy, **options)
        if self.factor < 1:
            # Keras' padding="same" would pad an even side only at its end.
            padded = (None, shape[1] + 2, shape[2] + 2, self.channels)
            options = {"strides": round(1 / self.factor), "padding": "valid"}
            self.resize = _conv(padded, self.channels, 3, "resize", policy, **options)
        if self.resize is not None:
            shape = self.resize.output_map
        self.level = _conv(shape, self.features, 3, "level", policy, use_bias=False)

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
        self.projection = _conv(input_shape, self.features, 1, "projection", policy)
        if self.skip:
            self.skip.build(input_shape)
        self.main.build(input_shape)

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
        options = {"use_bias": self.use_bias}
        self.convs = []
        self.norms = []
        for i in (1, 2):
            conv = _conv(input_shape, input_shape[-1], 3, f"conv_{i}", policy, **options)
            self.convs.append(conv)
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


def _conv(shape, filters, size, name, policy, kind=keras.layers.Conv2D, **options):
    """Creates and builds a convolution for maps of a shape `(B, H, W, C)`.

    It keeps the size of a map unless `options` change that. Its attribute `output_map` is the shape
    of its output, and `positions` is the number of places where the kernel is applied.
    """
    options = {"padding": "same", "data_format": "channels_last", **options}
    layer = kind(filters, size, name=name, **options, **policy)
    layer.build(shape)
    layer.output_map = layer.compute_output_shape(shape)
    layer.positions = min(math.prod(shape[1:3]), math.prod(layer.output_map[1:3]))
    return layer
