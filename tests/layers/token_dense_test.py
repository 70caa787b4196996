"""Tests that dense layers flatten tokens, except when they are compiled for TPUs."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers.compilation import compiling_for
from keras_vit.layers.token_dense import TokenDense, TokenProjection

from ..shared import to_numpy


def _dense():
    return TokenDense(6, activate=lambda x, training: ops.gelu(x))


def _projection():
    return TokenProjection("abcd,cde->abe", output_shape=(None, 6), bias_axes="e")


def _product_ranks(layer, x):
    """Returns the ranks of the left operands of the matrix products of a compiled layer."""
    if keras.backend.backend() == "jax":
        import jax

        equations = []
        for equation in jax.make_jaxpr(lambda x: layer(x))(x).jaxpr.eqns:
            called = equation.params.get("jaxpr")
            equations += [equation] if called is None else called.jaxpr.eqns
        return {
            equation.invars[0].aval.ndim
            for equation in equations
            if equation.primitive.name == "dot_general"
        }
    import tensorflow as tf

    graph = tf.function(lambda x: layer(x), autograph=False).get_concrete_function(x).graph
    products = {"MatMul", "BatchMatMulV2", "Einsum"}
    return {
        operation.inputs[0].shape.rank
        for operation in graph.get_operations()
        if operation.type in products
    }


@pytest.mark.parametrize(
    ("build", "shape"), [(_dense, (2, 5, 8)), (_projection, (2, 5, 4, 2))], ids=["dense", "heads"]
)
def test_tokens_are_flattened_except_for_tpus(build, shape):
    layer = build()
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    layer(x)
    assert _product_ranks(layer, x) == {2}
    with compiling_for("tpu"):
        ranks_on_tpu = _product_ranks(layer, x)
        outputs_on_tpu = to_numpy(layer(x))
        # `None` keeps the device of the outer context.
        with compiling_for(None):
            assert _product_ranks(layer, x) == ranks_on_tpu
    # Keras' own Dense layer flattens its inputs on TensorFlow.
    keras_flattens = build is _dense and keras.backend.backend() == "tensorflow"
    assert (2 in ranks_on_tpu) == keras_flattens
    assert _product_ranks(layer, x) == {2}
    np.testing.assert_allclose(outputs_on_tpu, to_numpy(layer(x)), rtol=1e-5, atol=1e-6)
