"""The JAX engine, built on `jax.sharding` and `jax.distributed`."""

from keras_vit.training.jax.devices import choose_mesh
from keras_vit.training.jax.engine import JaxEngine

__all__ = ["JaxEngine", "choose_mesh"]
