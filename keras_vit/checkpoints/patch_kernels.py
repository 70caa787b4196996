"""Adapts the kernel of the first convolution to other numbers of channels and patch sizes."""

import numpy as np

from keras_vit.checkpoints.position_embeddings import RULES


def adapt_input_channels(kernel, channels, rule):
    """Returns a kernel `(height, width, channels, D)` adapted to another number of input channels.

    "sum" gives each new channel an equal share of the sum over the old channels. "tile" repeats the
    old channels and multiplies them by (number of old channels) / (number of new channels). For RGB
    kernels, timm's `adapt_input_conv` is "sum" for 1 channel and "tile" for more.
    """
    present = kernel.shape[2]
    if rule == "sum":
        total = kernel.sum(axis=2, keepdims=True) / np.float32(channels)
        return np.repeat(total, channels, axis=2)
    return kernel[:, :, np.arange(channels) % present] * np.float32(present / channels)


def resize_patches(kernel, patch_size, position_rule):
    """Resizes a patch kernel `(old, old, C, D)` to `(new, new, C, D)` as FlexiViT does.

    If patches are enlarged, the new kernel has the same inner product with a resized patch as the
    old kernel with the original patch. If patches are reduced, the new kernel is the least-squares
    approximation. If `position_rule` is "bicubic_antialias", as in timm, patches are resized by
    this rule. Otherwise, they are resized bilinearly without antialiasing, as in big_vision.

    Reference: `resample_patchemb` of big_vision's `models/proj/flexi/vit.py`; timm's
        `resample_patch_embed`.
    """
    rows, columns = (kernel_matrix(old, patch_size, position_rule) for old in kernel.shape[:2])
    return np.einsum(
        "ro,oqcd,nq->rncd", rows, kernel.astype(np.float64), columns, optimize=True
    ).astype(np.float32)


def kernel_matrix(old, new, position_rule):
    """Returns the matrix `(new, old)` that `resize_patches` applies to each axis of a kernel."""
    # The pseudo-inverse of a Kronecker product is the Kronecker product of the pseudo-inverses, so
    # each axis has its own matrix.
    rule = "bicubic_antialias" if position_rule == "bicubic_antialias" else "bilinear"
    return np.linalg.pinv(RULES[rule](old, new).T)
