"""Resizes feature maps bilinearly as in PyTorch, with the same numbers on every backend."""

from keras import KerasTensor, ops

from keras_vit.checkpoints.position_embeddings import RULES


def resize_bilinear(
    maps: KerasTensor, size: tuple[int, int], align_corners: bool = False
) -> KerasTensor:
    """Resizes maps `(B, h, w, C)` of static size to `(B, *size, C)`, without antialiasing.

    Each axis is multiplied by a matrix, because `ops.image.resize` cannot align corners. The result
    equals that of `torch.nn.functional.interpolate(mode="bilinear")`.
    """
    _, height, width, channels = maps.shape
    if (height, width) == tuple(size):
        return maps
    rule = RULES["zoom" if align_corners else "bilinear"]
    rows, columns = (
        ops.convert_to_tensor(rule(old, new), maps.dtype) for old, new in zip((height, width), size)
    )
    x = ops.matmul(rows, ops.reshape(maps, (-1, height, width * channels)))
    x = ops.matmul(columns, ops.reshape(x, (-1, width, channels)))
    return ops.reshape(x, (-1, *size, channels))
