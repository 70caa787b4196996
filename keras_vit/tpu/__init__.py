"""Compiles training and evaluation steps with the TPU compiler, on a machine without a TPU.

`check` returns a `Check`: whether a run fits in memory, its memory use, FLOPs and HBM traffic, and
a roofline estimate of its step time. `check` requires x86-64 Linux and the extra `aot`, which pins
jax and libtpu.
"""

from keras_vit.tpu.estimate import check
from keras_vit.tpu.results import Check
from keras_vit.tpu.topologies import DEVICES, Topology, get_topology

__all__ = ["DEVICES", "Check", "Topology", "check", "get_topology"]
