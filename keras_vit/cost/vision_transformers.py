"""Parameters and multiply-accumulates of Vision Transformers by formula: plain, hybrid and axial ones."""

from collections.abc import Sequence
from typing import Any

from keras_vit.cost.resnets import resnet_multiply_accumulates, resnet_parameters
from keras_vit.layers.resnet_stem import resolve_stem, stem_output_channels, stem_output_side


def parameters(
    *,
    patch_size: int,
    num_layers: int,
    hidden_size: int,
    mlp_dim: int,
    input_shape: tuple[int, int, int] = (224, 224, 3),
    classes: int = 0,
    classifier: str = "token",
    representation_size: int = 0,
    stem: str | None = None,
    resnet_blocks: Sequence[int] | None = None,
    num_heads: int = 1,
    position_embedding: str = "learned",
    position_embedding_at: str = "stem",
    class_token_position: bool = True,
    **others: Any,
) -> int:
    """The number of parameters of a `VisionTransformer`.

    Args:
        classes: outputs of the head; 0 for no head.
        **others: the other arguments of `VisionTransformer`, those above among them; they have no parameters.
    """
    d, m = hidden_size, mlp_dim
    blocks = resolve_stem(stem, resnet_blocks)
    (rows, columns), channels = _grid_and_channels(input_shape, patch_size, blocks)
    patches = rows * columns
    class_token = classifier.startswith("token")
    count = 0 if blocks is None else resnet_parameters(blocks, channels=input_shape[2])
    count += patch_size**2 * channels * d + d + class_token * d
    tables = num_layers if position_embedding_at == "every_layer" else 1
    if position_embedding == "learned":
        count += tables * (patches + (class_token and class_token_position)) * d
    elif position_embedding == "learned2d":
        count += tables * ((rows + columns) * d // 2 + (class_token and class_token_position) * d)
    elif position_embedding == "relative":
        count += num_layers * (2 * (patches + class_token) - 1) * (d // num_heads)
    count += num_layers * (4 * d * d + 2 * d * m + 9 * d + m) + 2 * d
    if classifier == "map":
        count += 4 * d * d + 2 * d * m + 8 * d + m  # a block with one norm and a learned query
    if representation_size:
        count += (d + 1) * representation_size
    return count + ((representation_size or d) + 1) * classes


def multiply_accumulates(
    *,
    patch_size: int,
    num_layers: int,
    hidden_size: int,
    mlp_dim: int,
    input_shape: tuple[int, int, int] = (224, 224, 3),
    classifier: str = "token",
    position_embedding: str = "learned",
    stem: str | None = None,
    resnet_blocks: Sequence[int] | None = None,
    count_padding: bool = False,
    **others: Any,
) -> int:
    """The multiply-accumulates of one image in a `VisionTransformer`, forward, without the head.

    Args:
        count_padding: whether a convolution's products with the zeros around its images count.
        **others: the other arguments of `VisionTransformer`, which cost nothing here.
    """
    d = hidden_size
    blocks = resolve_stem(stem, resnet_blocks)
    (rows, columns), channels = _grid_and_channels(input_shape, patch_size, blocks)
    patches = rows * columns
    tokens = patches + classifier.startswith("token")
    count = patches * patch_size**2 * channels * d
    count += num_layers * (4 * tokens * d * d + 2 * tokens * tokens * d + 2 * tokens * d * mlp_dim)
    if position_embedding == "relative":
        count += num_layers * tokens * (2 * tokens - 1) * d
    if classifier == "map":
        count += 2 * (tokens + 1) * d * d + 2 * tokens * d + 2 * d * mlp_dim  # one query attends to all tokens
    if blocks is not None:
        count += resnet_multiply_accumulates(blocks, input_shape, count_padding=count_padding)
    return count


def axial_parameters(*, num_layers: int, **arguments: Any) -> int:
    """The number of parameters of an `AxialVisionTransformer`, from its arguments, as `parameters` takes them."""
    return parameters(
        num_layers=2 * num_layers, **{**arguments, "classifier": "gap", "position_embedding": "learned2d"}
    )


def axial_multiply_accumulates(
    *,
    patch_size: int,
    num_layers: int,
    hidden_size: int,
    mlp_dim: int,
    input_shape: tuple[int, int, int] = (224, 224, 3),
    **others: Any,
) -> int:
    """The multiply-accumulates of one image in an `AxialVisionTransformer`, forward, without the head.

    Args:
        **others: the other arguments of `AxialVisionTransformer`, which cost nothing here.
    """
    d = hidden_size
    (rows, columns), channels = _grid_and_channels(input_shape, patch_size, None)
    tokens = rows * columns
    embedding = tokens * patch_size**2 * channels * d
    return embedding + num_layers * axial_block_multiply_accumulates(rows, columns, d, mlp_dim)


def axial_block_multiply_accumulates(rows, columns, d, mlp_dim):
    """Those of one `AxialTransformerBlock`: projections and MLP twice, scores and sums along each axis."""
    tokens = rows * columns
    return 2 * (4 * tokens * d * d + 2 * tokens * d * mlp_dim) + 2 * tokens * (rows + columns) * d


def _grid_and_channels(input_shape, patch_size, blocks):
    """`(rows, columns)` of the patches that the Transformer sees, and of how many channels they are."""
    height, width, channels = input_shape
    if blocks is not None:
        height, width = (stem_output_side(side, blocks) for side in (height, width))
        channels = stem_output_channels(blocks)
    return (height // patch_size, width // patch_size), channels
