"""Compiles the steps of a run for a TPU with the TPU's own compiler, on a machine without one.

`check` returns a `Check`: whether a run fits, what it needs, and a roofline estimate of its time. It needs the extra
`aot`: jax and libtpu of one pair of versions, on x86-64 Linux.
"""

from keras_vit.tpu.estimate import check
from keras_vit.tpu.results import Check
from keras_vit.tpu.topologies import DEVICES, Topology, get_topology

__all__ = ["DEVICES", "Check", "Topology", "check", "get_topology"]
