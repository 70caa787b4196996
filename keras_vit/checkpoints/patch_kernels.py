"""Adapts the kernel of the first convolution to another number of channels or another patch size."""

import numpy as np

from keras_vit.checkpoints.position_embeddings import RULES


def adapt_input_channels(kernel, channels, rule):
    """Adapts a convolution kernel to another number of input channels, like timm's `adapt_input_conv`."""
    present = kernel.shape[2]
    if rule == "sum":
        total = kernel.sum(axis=2, keepdims=True) / np.float32(channels)
        return np.repeat(total, channels, axis=2)
    return kernel[:, :, np.arange(channels) % present] * np.float32(present / channels)


def resize_patches(kernel, patch_size, position_rule):
    """Resizes a patch kernel `(old, old, C, D)` to `(new, new, C, D)` as FlexiViT does.

    If patches are enlarged, the inner product of a resized patch and the new kernel equals that of the original patch
    and the old kernel. If patches are reduced, the new kernel is the least-squares approximation. Patches are resized
    as in the library that wrote the file: with antialiased bicubic interpolation in timm, otherwise bilinearly.

    Reference: `resample_patchemb` of big_vision's `models/proj/flexi/vit.py`; timm's `resample_patch_embed`.
    """
    rows, columns = (kernel_matrix(old, patch_size, position_rule) for old in kernel.shape[:2])
    return np.einsum("ro,oqcd,nq->rncd", rows, kernel.astype(np.float64), columns, optimize=True).astype(np.float32)


def kernel_matrix(old, new, position_rule):
    """Returns the matrix `(new, old)` that `resize_patches` applies to each axis of a kernel."""
    # The pseudo-inverse of a Kronecker product is the Kronecker product of pseudo-inverses, so treat each axis alone.
    resize = RULES["bicubic_antialias"] if position_rule == "bicubic_antialias" else _bilinear_matrix
    return np.linalg.pinv(resize(old, new).T)


def _bilinear_matrix(old, new):
    """Returns the matrix `(new, old)` of bilinear `tf.image.resize` without antialiasing."""
    source = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    return np.maximum(1 - np.abs(np.arange(old) - source[:, None]), 0)
