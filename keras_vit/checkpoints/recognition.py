"""From a file alone to the model that it is of."""

from keras_vit.architectures import NUM_HEADS
from keras_vit.checkpoints import names, positions, sources
from keras_vit.checkpoints.architecture import architecture
from keras_vit.checkpoints.dialects import open_checkpoint


def recognise(source, num_heads=None, grid=None):
    """What must be built to load a file whole.

    Args:
        source: a path or URL, as `load` takes it.
        num_heads: needed where the file does not show it (timm, Hugging Face) and the size is no published one.
        grid: `(rows, columns)` of the patches, needed where the file has no positions or a grid that is not square.

    Returns:
        `(name, arguments)`: "VisionTransformer" or "BiTResNet", and its keyword arguments.

    Raises:
        ValueError: the file is no checkpoint, holds no model known here, or does not show one of the two.
    """
    located = sources.locate(source, None, None)
    with open_checkpoint(located.path, located.subtree) as checkpoint:
        shapes = {name: stored.shape for name, stored in checkpoint.arrays.items()}
        found = architecture(shapes)
        top = {"include_top": found["classes"] is not None, "classes": found.pop("classes") or 1000}
        if "depth" in found:
            if None in found.values():
                raise ValueError(f"The checkpoint is of no BiT ResNet known here. Received: {source}")
            return "BiTResNet", {**found, **top}
        found["num_heads"] = found["num_heads"] or num_heads or NUM_HEADS.get(found["hidden_size"])
        if found["num_heads"] is None and found["hidden_size"]:
            raise ValueError(
                "The file does not show the number of attention heads, and its size is no published one: give "
                f"`num_heads`. Received: hidden_size={found['hidden_size']} in {source}"
            )
        absent = [key for key, value in found.items() if value is None and key != "resnet_blocks"]
        if absent:
            raise ValueError(f"The file holds no Vision Transformer: no {', '.join(absent)}. Received: {source}")
        arguments = {**found, **top, **_of_positions(shapes, checkpoint.grid or grid, source)}
        stride = found["patch_size"]
        if found["resnet_blocks"] is not None:
            stride *= 2 ** (2 + max(len(found["resnet_blocks"]) - 1, 0))
        rows, columns = arguments.pop("grid")
        channels = shapes.get("conv_root/kernel", shapes[names.EMBEDDING])[2]
        arguments["input_shape"] = (rows * stride, columns * stride, channels)
        if checkpoint.dialect in ("timm", "huggingface"):
            arguments["exact_gelu"] = True
        if checkpoint.dialect == "huggingface":
            arguments["epsilon"] = 1e-12
        return "VisionTransformer", arguments


def _of_positions(shapes, grid, source):
    """The arguments that the position embedding shows, and the grid."""
    token = names.CLASS_TOKEN in shapes
    if names.POSITIONS not in shapes:
        if grid is None:
            raise ValueError(f"The file has no positions: give the `grid` of the patches. Received: {source}")
        return {"grid": grid, "position_embedding": "sincos2d", "class_token_position": not token}
    rows = shapes[names.POSITIONS][1]
    # A grid of no tokens: whatever the rows are, they are not those of a model that there is not yet.
    found = positions.source_grid(rows, token, (0, 0), grid)
    if found is None:
        raise ValueError(
            f"The {rows} positions of the file are not those of {'a square' if grid is None else grid}: give the "
            f"`grid` of the patches. Received: {source}"
        )
    return {"grid": found[0], "class_token_position": found[1] or not token}
