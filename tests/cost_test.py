"""Compares computed costs with Table 6 of the ViT paper, with the operations in the jaxpr, and with
manual counts."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import cost, families

from .shared import THREE_LAYERS

# Columns: model, epochs, billions of multiply-accumulates of the forward pass for one image,
# exaFLOPs of training computed by `keras_vit`, and exaFLOPs of training in the paper.
TABLE_6 = [
    ("ViT-B/32", 7, 4.4084, 56.1, 55),
    ("ViT-B/16", 7, 17.5631, 223.5, 224),
    ("ViT-L/32", 7, 15.3765, 195.7, 196),
    ("ViT-L/16", 14, 61.5537, 1566.7, 1567),
    ("ViT-H/14", 14, 167.2938, 4258.0, 4262),
    ("BiT-R50x1", 7, 3.946, 50.2, 50),
    ("BiT-R50x2", 7, 15.552, 197.9, 199),
    ("BiT-R101x1", 7, 7.476, 95.1, 96),
    ("BiT-R152x1", 7, 11.027, 140.3, 141),
    ("BiT-R152x2", 14, 43.873, 1116.7, 1126),
    ("R50+ViT-B/32", 7, 8.316, 105.8, 106),
    ("R50+ViT-B/16", 7, 21.414, 272.5, 274),
    ("R50+ViT-L/32", 7, 19.271, 245.2, 246),
    ("R50+ViT-L/16", 14, 65.418, 1665.0, 1668),
]
JFT = 303e6  # number of images in JFT-300M


def _build(name, **changes):
    family = families.find_family(name)
    return cost.build_abstract(
        family.constructor, **{**family.sizes[name], "classes": 1000, **changes}
    )


@pytest.mark.one_backend
@pytest.mark.parametrize(("name", "epochs", "forward", "ours", "paper"), TABLE_6)
def test_exaflops_match_table_6(name, epochs, forward, ours, paper):
    count = cost.multiply_accumulates(_build(name), table_6=True)
    assert count / 1e9 == pytest.approx(forward, abs=10.0 ** -len(str(forward).split(".")[1]))
    assert cost.exaflops(count, epochs * JFT) == pytest.approx(ours, abs=0.05)
    assert ours == pytest.approx(paper, rel=0.021 if name == "ViT-B/32" else 0.01)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("name", "classes_1000", "with_representation"),
    [
        ("ViT-Ti/16", 5_717_416, 5_754_472),
        ("ViT-B/16", 86_567_656, 87_158_248),
        ("ViT-H/14", 632_045_800, 633_685_480),
        ("R+ViT-Ti/16", 6_337_704, 6_374_760),
        ("R50+ViT-L/32", 328_994_856, 330_044_456),
    ],
)
def test_parameter_counts(name, classes_1000, with_representation):
    assert _build(name).count_params() == classes_1000
    size = families.sizes()[name]["hidden_size"]
    assert _build(name, representation_size=size).count_params() == with_representation


def test_build_abstract_creates_no_weights():
    model = _build("ViT-Ti/16")
    with keras.StatelessScope():
        pass
    assert model.variables[0]._value is None  # leaving the scope did not initialize the variable
    assert keras.layers.Dense(2)(np.ones((1, 2))).shape == (1, 2)


SMALL = {**THREE_LAYERS, "num_layers": 2, "classes": 7, "input_shape": (32, 48, 3), "dropout": 0.1}


def _products(jaxpr):
    """Counts the multiply-accumulates of a jaxpr.

    Convolutions are computed on arrays of ones: each product adds 1, and products with padding add
        0.
    """
    import jax

    count = 0
    for equation in jaxpr.eqns:
        shapes = [variable.aval.shape for variable in equation.invars]
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            count += np.prod(equation.outvars[0].aval.shape) * np.prod(
                [shapes[0][axis] for axis in contracted]
            )
        if equation.primitive.name == "conv_general_dilated":
            count += equation.primitive.bind(*map(jax.numpy.ones, shapes), **equation.params).sum()
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        ):
            if hasattr(inner, "eqns"):
                count += _products(inner if not hasattr(inner, "jaxpr") else inner.jaxpr)
    return int(count)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="the jaxpr needs the JAX backend")
@pytest.mark.parametrize(
    ("build", "arguments"),
    [
        (keras_vit.VisionTransformer, {}),
        (keras_vit.VisionTransformer, {"classifier": "gap", "representation_size": 5}),
        (keras_vit.VisionTransformer, {"classifier": "map"}),
        (keras_vit.VisionTransformer, {"classifier": "unpooled"}),
        (keras_vit.VisionTransformer, {"patch_size": 1, "resnet_blocks": (1, 2)}),
        (keras_vit.VisionTransformer, {"classifier": "gap", "position_embedding": "relative"}),
        (keras_vit.models.AxialVisionTransformer, {}),
        (keras_vit.BiTResNet, {"depth": 8, "width": 32, "version": 1}),
    ],
    ids=str,
)
def test_multiply_accumulates_match_jaxpr(build, arguments):
    import jax

    sizes = {"input_shape": (32, 48, 3), "classes": 7} if "depth" in arguments else SMALL
    model = build(**{**sizes, **arguments})
    images = jax.numpy.zeros((1, *model.input_shape[1:]))
    jaxpr = jax.make_jaxpr(lambda x: model(x, training=False))(images)
    assert cost.multiply_accumulates(model) == _products(jaxpr.jaxpr)


def test_table_6_counts_whole_last_block_but_no_head():
    model = keras_vit.VisionTransformer(**SMALL)
    tokens = 25
    d = 12
    m = 20
    saved = (tokens - 1) * (2 * d * d + 2 * tokens * d + 2 * d * m)
    assert keras_vit.flops(model, table_6=True) - keras_vit.flops(model) == 2 * (saved - d * 7)


def test_flops_of_nested_functional_model():
    inputs = keras.Input((8, 6, 3))
    x = keras.layers.Conv2D(4, 3, strides=2, padding="same")(inputs)
    x = keras.layers.BatchNormalization()(x)
    outputs = keras.layers.Dense(5)(keras.layers.Flatten()(x))
    inner = keras.Model(inputs, outputs)
    model = keras.Model(inputs, keras.layers.Dense(2)(inner(inputs)))
    # The kernel has 3 rows and 3 columns. In total, the 4 output rows read 12 input rows, one of
    # which is padding. The 3 output columns read 9 input columns, one of which is padding.
    assert keras_vit.flops(model) == 2 * (11 * 8 * 3 * 4 + 4 * 3 * 4 * 5 + 5 * 2)


def test_shared_layer_counts_once_per_call():
    inputs = keras.Input((8,))
    shared = keras.layers.Dense(8)
    inner = keras.Sequential([keras.Input((8,)), shared])
    assert keras_vit.flops(keras.Model(inputs, shared(shared(inputs)))) == 2 * 2 * 8 * 8
    assert keras_vit.flops(keras.Model(inputs, inner(inner(inputs)))) == 2 * 2 * 8 * 8
    assert keras_vit.flops(inner) == 2 * 8 * 8


@pytest.mark.parametrize(
    ("options", "products"),
    [
        ({"padding": "valid"}, 6 * 3 * 5 * 3),
        ({"padding": "same"}, (3 * 8 - 2) * (3 * 7 - 2)),
        ({"padding": "same", "strides": 2}, (3 * 4 - 1) * (3 * 4 - 2)),
        ({"padding": "same", "dilation_rate": 2}, (3 * 8 - 4) * (3 * 7 - 4)),
        ({"padding": "valid", "data_format": "channels_first"}, 6 * 3 * 5 * 3),
    ],
    ids=str,
)
def test_convolution_flops_exclude_padding(options, products):
    shape = (4, 8, 7) if "data_format" in options else (8, 7, 4)
    inputs = keras.Input(shape)
    model = keras.Model(inputs, keras.layers.Conv2D(6, 3, groups=2, **options)(inputs))
    assert keras_vit.flops(model) == 2 * products * 2 * 6


class _Table(keras.layers.Layer):
    def build(self, input_shape):
        self.table = self.add_weight(shape=(input_shape[-1], 3), name="table")

    def call(self, x):
        return x @ self.table


class _Subclass(keras.Model):
    def call(self, x):
        return x


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: keras.layers.Attention()([x, x]), "to be counted. Received: .*, Attention"),
        (
            lambda x: keras.layers.MultiHeadAttention(2, 3)(x, x),
            "to be counted. Received: .*, MultiHeadAttention",
        ),
        (
            lambda x: keras.ops.matmul(x, keras.ops.transpose(x, (0, 2, 1))),
            "to be counted. Received: .*, Matmul",
        ),
        (lambda x: keras.ops.einsum("bnd,bmd->bnm", x, x), "to be counted. Received: .*, Einsum"),
        (_Table(), "to be counted. Received: .*, _Table"),
    ],
)
def test_rejects_uncountable_operations(build, message):
    inputs = keras.Input((8, 6))
    with pytest.raises(ValueError, match=message):
        keras_vit.flops(keras.Model(inputs, build(inputs)))


def test_rejects_models_without_graph_or_static_shape():
    with pytest.raises(
        ValueError,
        match="functional model or .*Received: .*_Subclass",
    ):
        keras_vit.flops(_Subclass())
    with pytest.raises(
        ValueError,
        match="a built sequential.*Received: .*Sequential",
    ):
        keras_vit.flops(keras.Sequential([keras.layers.Dense(3)]))
    inputs = keras.Input((None, None, 3))
    with pytest.raises(ValueError, match="must have inputs of static shape"):
        keras_vit.flops(keras.Model(inputs, keras.layers.Conv2D(2, 3)(inputs)))


def test_custom_layer_can_define_multiply_accumulates():
    class Counted(_Table):
        def multiply_accumulates(self, input_shape):
            return input_shape[1] * input_shape[2] * 3

    inputs = keras.Input((8, 6))
    assert cost.multiply_accumulates(keras.Model(inputs, Counted()(inputs))) == 8 * 6 * 3


def test_error_names_uncountable_layer():
    inputs = keras.Input((8, 6))
    model = keras.Model(inputs, keras.layers.LSTM(3, name="recurrent")(inputs))
    with pytest.raises(ValueError, match="Received: 'recurrent', LSTM"):
        keras_vit.flops(model)
