"""Compares computed costs with Table 6 of the paper, with the operations in the jaxpr, and with
manual counts."""

import math

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import cost, families

from .shared import THREE_LAYERS

# Columns: model, epochs, billions of multiply-accumulates of the forward pass for one image, and
# exaFLOPs of training in the paper.
TABLE_6 = [
    ("ViT-B/32", 7, 4.4084, 55),
    ("ViT-B/16", 7, 17.5631, 224),
    ("ViT-L/32", 7, 15.3765, 196),
    ("ViT-L/16", 14, 61.5537, 1567),
    ("ViT-H/14", 14, 167.2938, 4262),
    ("BiT-R50x1", 7, 3.946, 50),
    ("BiT-R50x2", 7, 15.552, 199),
    ("BiT-R101x1", 7, 7.476, 96),
    ("BiT-R152x1", 7, 11.027, 141),
    ("BiT-R152x2", 14, 43.873, 1126),
    ("R50+ViT-B/32", 7, 8.316, 106),
    ("R50+ViT-B/16", 7, 21.414, 274),
    ("R50+ViT-L/32", 7, 19.271, 246),
    ("R50+ViT-L/16", 14, 65.418, 1668),
]
JFT = 303e6  # number of images in JFT-300M


def _build(name):
    family = families.find_family(name)
    return cost.build_abstract(family.constructor, **family.sizes[name], classes=1000)


@pytest.mark.parametrize(("name", "epochs", "forward", "exaflops"), TABLE_6)
def test_exaflops_match_table_6(name, epochs, forward, exaflops):
    count = cost.multiply_accumulates(_build(name), table_6=True)
    assert count / 1e9 == pytest.approx(forward, abs=1e-3 if "R" in name else 1e-4)
    tolerance = 0.021 if name == "ViT-B/32" else 0.01
    assert cost.exaflops(count, epochs * JFT) == pytest.approx(exaflops, rel=tolerance)


def test_build_abstract_creates_no_weights():
    model = _build("ViT-Ti/16")
    with keras.StatelessScope():
        pass
    assert model.variables[0]._value is None  # leaving the scope did not initialize the variable
    assert keras.layers.Dense(2)(np.ones((1, 2))).shape == (1, 2)


SMALL = {**THREE_LAYERS, "num_layers": 2, "classes": 7, "input_shape": (32, 48, 3), "dropout": 0.1}


def _products(jaxpr):
    """Counts the multiply-accumulates of a jaxpr."""
    import jax.extend

    count = 0
    for equation in jaxpr.eqns:
        shapes = [variable.aval.shape for variable in equation.invars]
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            contracted_sizes = [shapes[0][axis] for axis in contracted]
            count += math.prod(equation.outvars[0].aval.shape) * math.prod(contracted_sizes)
        if equation.primitive.name == "conv_general_dilated":
            # Of arrays of ones, each product adds 1, and a product with padding adds 0.
            ones = map(jax.numpy.ones, shapes)
            count += int(equation.primitive.bind(*ones, **equation.params).sum())
        count += sum(map(_products, jax.extend.core.jaxprs_in_params(equation.params)))
    return count


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="the jaxpr needs the JAX backend")
@pytest.mark.parametrize(
    ("build", "arguments"),
    [
        (keras_vit.VisionTransformer, {"classifier": "map", "representation_size": 5}),
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
    jaxpr = jax.make_jaxpr(model)(jax.numpy.zeros((1, *model.input_shape[1:])))
    assert cost.multiply_accumulates(model) == _products(jaxpr.jaxpr)


def test_table_6_counts_whole_last_block_but_no_head():
    model = keras_vit.VisionTransformer(**SMALL)
    tokens = 25  # 4 x 6 patches and the class token
    width = SMALL["hidden_size"]
    per_token = 2 * width * width + 2 * tokens * width + 2 * width * SMALL["mlp_dim"]
    added = cost.multiply_accumulates(model, table_6=True) - cost.multiply_accumulates(model)
    assert added == (tokens - 1) * per_token - width * SMALL["classes"]


def test_shared_layer_counts_once_per_call():
    inputs = keras.Input((8,))
    shared = keras.layers.Dense(8)
    inner = keras.Sequential([keras.Input((8,)), shared])
    for layer in (shared, inner):
        model = keras.Model(inputs, layer(layer(inputs)))
        assert cost.multiply_accumulates(model) == 2 * 8 * 8


@pytest.mark.parametrize(
    ("options", "products"),  # number of products along the height times that along the width
    [
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


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda x: keras.layers.Attention()([x, x]), "Attention"),
        (lambda x: keras.ops.matmul(x, keras.ops.transpose(x, (0, 2, 1))), "Matmul"),
        (lambda x: keras.ops.depthwise_conv(x, np.ones((3, 6, 1))), "DepthwiseConv"),
        (_Table(), "_Table"),
        (keras.layers.LSTM(3), "LSTM"),
    ],
)
def test_rejects_uncountable_operations(build, name):
    inputs = keras.Input((8, 6))
    with pytest.raises(ValueError, match=f"to be counted. Received: .*, {name}"):
        cost.multiply_accumulates(keras.Model(inputs, build(inputs)))


def test_rejects_models_without_graph_or_static_shape():
    with pytest.raises(ValueError, match="a built sequential model"):
        cost.multiply_accumulates(keras.Sequential([keras.layers.Dense(3)]))
    inputs = keras.Input((None, None, 3))
    with pytest.raises(ValueError, match="inputs of static shape"):
        cost.multiply_accumulates(keras.Model(inputs, keras.layers.Conv2D(2, 3)(inputs)))
