"""What a model costs, by formula: parameters, and the multiply-accumulates of an image on its way forward.

A multiply-accumulate is two FLOPs, and a training step takes three times a forward pass: once forward, twice backward.
The count is the one that reproduces the paper's Table 6: the Transformer's matrix products and all convolutions, the
patch embedding among them, without the head, norms, softmax and activations. It is of the whole model; one whose head
reads the class token computes less in its last block, and `flops` counts what a model computes.
"""

from keras_vit.cost.models import exaflops, flops
from keras_vit.cost.resnets import (
    axial_resnet_multiply_accumulates,
    axial_resnet_parameters,
    bit_multiply_accumulates,
    bit_parameters,
    resnet_multiply_accumulates,
    resnet_parameters,
)
from keras_vit.cost.vision_transformers import (
    axial_multiply_accumulates,
    axial_parameters,
    multiply_accumulates,
    parameters,
)

__all__ = [
    "axial_multiply_accumulates",
    "axial_parameters",
    "axial_resnet_multiply_accumulates",
    "axial_resnet_parameters",
    "bit_multiply_accumulates",
    "bit_parameters",
    "exaflops",
    "flops",
    "multiply_accumulates",
    "parameters",
    "resnet_multiply_accumulates",
    "resnet_parameters",
]
