"""Compiles the steps of a run with the TPU compiler, on a machine without a TPU.

`check` returns a `Check`: whether a run fits, its memory, FLOPs and HBM traffic, and a roofline estimate of its time.
It requires the extra `aot`, which pins jax and libtpu, on x86-64 Linux.
"""

from keras_vit.tpu.estimate import check
from keras_vit.tpu.results import Check
from keras_vit.tpu.topologies import DEVICES, Topology, get_topology

__all__ = ["DEVICES", "Check", "Topology", "check", "get_topology"]
