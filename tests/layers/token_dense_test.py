"""Dense layers of tokens flatten them on CPUs, and never when they are compiled for TPUs."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers.compilation import compiling_for
from keras_vit.layers.token_dense import TokenDense, TokenProjection

TOKENS = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")


def _layers():
    dense = TokenDense(6, activate=lambda x, training: ops.gelu(x))
    projection = TokenProjection("abcd,cde->abe", output_shape=(None, 6), bias_axes="e")
    heads = TOKENS.reshape(2, 5, 4, 2)
    return [(dense, TOKENS), (projection, heads)]


def _product_ranks(layer, x):
    """Returns the ranks of the left operands of the matrix products of a compiled layer."""
    if keras.backend.backend() == "jax":
        import jax

        equations = jax.make_jaxpr(lambda x: layer(x))(x).jaxpr.eqns
        flat = [each for outer in equations for each in _inner(outer)]
        return {each.invars[0].aval.ndim for each in flat if each.primitive.name == "dot_general"}
    import tensorflow as tf

    graph = tf.function(lambda x: layer(x), autograph=False).get_concrete_function(x).graph
    products = {"MatMul", "BatchMatMulV2", "Einsum"}
    return {
        operation.inputs[0].shape.rank
        for operation in graph.get_operations()
        if operation.type in products
    }


def _inner(equation):
    """Returns an equation, or those of the function that it calls."""
    inner = equation.params.get("jaxpr")
    return [equation] if inner is None else inner.jaxpr.eqns


@pytest.mark.parametrize("index", [0, 1])
def test_tokens_are_flattened_except_for_tpus(index):
    layer, x = _layers()[index]
    layer(x)
    assert _product_ranks(layer, x) == {2}
    with compiling_for("tpu"):
        on_tpu = _product_ranks(layer, x)
        values = ops.convert_to_numpy(layer(x))
        with compiling_for(None):
            assert _product_ranks(layer, x) == on_tpu
    assert 2 not in on_tpu or keras.backend.backend() == "tensorflow"
    assert _product_ranks(layer, x) == {2}
    np.testing.assert_allclose(values, ops.convert_to_numpy(layer(x)), rtol=1e-5, atol=1e-6)
