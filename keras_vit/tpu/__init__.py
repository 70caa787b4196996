"""Compiles the steps of a run for a TPU, with the TPU's own compiler, on a machine that has none.

    check(task, recipe, batch_size, "v3:2x2")    -> `Check`: whether it fits, what it needs, a roofline estimate

`topologies` has the slices and what is published of their devices. `tensorflow_programs` and `jax_programs` lower the
steps of either engine as they are; `compiler` compiles them and alone knows private names of JAX; `hlo` and `counts`
read what it made of them. It needs the extra `aot`: jax and libtpu of one pair of versions, on x86-64 Linux.
"""

from keras_vit.tpu.estimate import check
from keras_vit.tpu.results import Check
from keras_vit.tpu.topologies import DEVICES, Topology, get_topology

__all__ = ["DEVICES", "Check", "Topology", "check", "get_topology"]
