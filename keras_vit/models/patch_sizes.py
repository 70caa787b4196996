"""Runs a Vision Transformer at another patch size, as in FlexiViT."""

import contextlib
import math
from collections.abc import Iterator

from keras import ops

from keras_vit.checkpoints.patch_kernels import kernel_matrix
from keras_vit.checkpoints.position_embeddings import RULES
from keras_vit.layers.patches import cut_patches
from keras_vit.layers.validation import check_positive_int
from keras_vit.models.replaced_forward import replaced_forward
from keras_vit.models.validation import check_supported, patch_grid
from keras_vit.models.vision_transformer import VisionTransformer

_SUPPORTED = {
    "resnet_blocks": (None,),
    "rotary": (None,),
    "position_embedding": ("learned", "none"),
}


@contextlib.contextmanager
def at_patch_size(model: VisionTransformer, patch_size: int) -> Iterator[None]:
    """Returns a context in which a model uses another patch size in this thread.

    This also applies to calls inside another model. The forward pass resizes the patch kernel and
    the position embeddings in the same way as `from_pretrained(..., patch_size=...)`; gradients
    flow to the stored weights. The model's own `fit`, `evaluate` and `predict` follow the context.
    Other compiled functions, such as `predict` of a model around this one, keep the patch size of
    their first call. Maps of patches, such as `features(..., grid=True)`, are refused inside the
    context.

    Args:
        model: a `VisionTransformer` without a stem or rotary embedding, whose position embeddings
            are learned or none.
        patch_size: side of a patch in pixels; the image must be a whole number of patches.

    Raises:
        ValueError: the model or the patch size is not supported.

    Reference: FlexiViT, arXiv 2212.08013.
    """
    if type(model) is not VisionTransformer:
        raise ValueError(
            "Only a plain VisionTransformer can change its patch size. "
            f"Received: model={getattr(model, 'name', model)!r}, a {type(model).__name__}"
        )
    check_supported(
        model.arguments,
        _SUPPORTED,
        "Changing the patch size requires a model without a stem or rotary embedding; its "
        "`position_embedding` must be learned or none.",
    )
    check_positive_int("patch_size", patch_size)
    grid = patch_grid(model.image_shape, patch_size)
    replacement = {} if patch_size == model.patch_size else _parts(model, patch_size, grid)
    with _functions_set_aside(model), replaced_forward(model, model.forward, **replacement):
        yield


@contextlib.contextmanager
def _functions_set_aside(model):
    """Sets aside the functions that Keras compiled for the model's own patch size."""
    kept = model.train_function, model.test_function, model.predict_function
    model.train_function = model.test_function = model.predict_function = None
    try:
        yield
    finally:
        model.train_function, model.test_function, model.predict_function = kept


def _parts(model, patch_size, grid):
    """Returns functions that replace `embed` and `add_positions`."""
    rule = model.arguments["position_resampling"]
    kernel_matrices = [kernel_matrix(model.patch_size, patch_size, rule)] * 2
    position_matrices = [RULES[rule](old, new) for old, new in zip(model.grid, grid)]

    def embed(images, training):
        patches = cut_patches(model.input_preprocessing(images), patch_size)
        encoder = model.patch_encoder
        kernel = _resize(encoder.kernel, kernel_matrices)
        tokens = ops.matmul(patches, ops.cast(kernel, patches.dtype))
        if encoder.bias is not None:
            tokens = tokens + ops.cast(encoder.bias, tokens.dtype)
        return model.add_tokens(tokens, training)

    def add_positions(number, tokens):
        layer = model.positions[number - 1]
        if layer is None or model.arguments["position_embedding"] == "none":
            return tokens
        table = ops.convert_to_tensor(layer.pos_embedding)
        num_class_tokens = table.shape[1] - math.prod(model.grid)
        patches = _resize(table[0, num_class_tokens:], position_matrices)
        table = ops.concatenate([table[:, :num_class_tokens], patches[None]], axis=1)
        return tokens + ops.cast(table, tokens.dtype)

    return {"embed": embed, "add_positions": add_positions}


def _resize(table, matrices):
    """Resizes a flattened grid of R x C cells: `(R*C*K, D)` to `(r*c*K, D)`, computed in float32.

    Each cell has K vectors. The rows are multiplied by a matrix `(r, R)`, and the columns by a
    matrix `(c, C)`.
    """
    rows, columns = (ops.convert_to_tensor(matrix, "float32") for matrix in matrices)
    grid = ops.reshape(
        ops.cast(table, "float32"), (rows.shape[1], columns.shape[1], -1, table.shape[-1])
    )
    resized = ops.einsum("ro,oqkd,cq->rckd", rows, grid, columns)
    return ops.reshape(resized, (-1, table.shape[-1]))
