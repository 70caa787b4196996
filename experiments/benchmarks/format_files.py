"""Writes the files that `formats.py` compares, for a Vision Transformer with random weights.

Functions import the libraries, so that the peak memory of a process includes no unused ones.
"""

import json
import os

MODELS = {"Ti/16": "ViT_Ti16", "S/16": "ViT_S16", "B/16": "ViT_B16", "L/16": "ViT_L16", "test": ""}
BFLOAT16_SAVED_MODELS = (
    "saved_model_bfloat16",
    "saved_model_any_bfloat16",
    "saved_model_frozen_bfloat16",
)


def prepare(size, formats, folder):
    """Writes the model of a size, its exports and the other files that the workers read to a
    folder.

    `size` is a name in `MODELS`.
    """
    import keras
    import numpy as np

    import keras_vit
    from keras_vit.export import comparison

    keras.utils.set_random_seed(0)
    constructor = MODELS[size]
    model = getattr(keras_vit, constructor)(weights=None) if constructor else tiny_model()
    # The new head is zero, which would make all logits equal.
    model.head.kernel.assign(np.random.default_rng(0).normal(0, 0.05, model.head.kernel.shape))
    images, logits, _ = comparison.reference(
        model, comparison.example_images(model.input_shape[1:], 16)
    )
    np.save(folder / "images.npy", images)
    np.save(folder / "logits.npy", logits)
    model.save(folder / "model.keras")
    sizes = {
        "hidden_size": model.hidden_size,
        "mlp_dim": model.arguments["mlp_dim"],
        "num_layers": len(model.blocks),
        "num_heads": model.arguments["num_heads"],
        "tokens": 1 + model.grid[0] * model.grid[1],
        "patch_size": model.patch_size,
        "image_size": model.input_shape[1],
        "classes": model.output_shape[-1],
    }
    (folder / "sizes.json").write_text(json.dumps(sizes))
    for name in formats:
        write_export(model, name, folder, images)
    if any(name.startswith("timm") for name in formats):
        keras_vit.checkpoints.save(model, folder / "timm_weights", format="timm")
    write_int8_products(sizes, folder)


def tiny_model():
    """Returns a model of two small blocks, for trying this program."""
    import keras_vit

    return keras_vit.VisionTransformer(
        input_shape=(32, 32, 3),
        patch_size=8,
        num_layers=2,
        hidden_size=64,
        mlp_dim=128,
        num_heads=2,
        classes=10,
    )


def write_export(model, name, folder, images):
    """Writes the file or the SavedModel of a format to a folder; nothing for formats that are not
    exports."""
    from keras_vit import export
    from keras_vit.export.file_format import check_convertible
    from keras_vit.export.litert_file import LITERT
    from keras_vit.export.onnx_file import ONNX

    path = folder / name
    if name.startswith("saved_model"):
        written = export.saved_model(
            model,
            folder,
            signatures=["tensor"],
            precision="bfloat16" if name in BFLOAT16_SAVED_MODELS else "float32",
            device="any" if "any" in name else "cpu",
        )
        os.rename(written, path)
    elif name.startswith(("litert", "onnx", "openvino")):
        form = LITERT if name.startswith("litert") else ONNX
        weights = "int8" if name in ("litert_int8", "onnx_int8") else "none"
        spec = check_convertible(model, name)
        path.write_bytes(form.content(model, spec, weights, images))


def write_int8_products(sizes, folder):
    """Writes a LiteRT model in int8 that computes only the matrix products of the blocks."""
    import tensorflow as tf

    spec = tf.TensorSpec((None, sizes["tokens"], sizes["hidden_size"]), tf.float32, "tokens")
    function = tf.function(products(sizes, "float32"), input_signature=[spec], autograph=False)
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [function.get_concrete_function()], tf.Module()
    )
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    (folder / "limit_int8").write_bytes(converter.convert())


def products(sizes, dtype):
    """Returns a function that applies the matrix products of all blocks, with random kernels, to
    tokens `(B, N, D)`."""
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(0)
    heads = sizes["num_heads"]
    size = sizes["hidden_size"]
    hidden = sizes["mlp_dim"]
    shapes = ((size, size), (size, 2 * size), (size, size), (size, hidden), (hidden, size))

    def kernel(rows, columns):
        return tf.constant(random.normal(0, rows**-0.5, (rows, columns)), dtype)

    blocks = [[kernel(*shape) for shape in shapes] for _ in range(sizes["num_layers"])]

    def flat(x):  # a 2-D product is faster
        return tf.reshape(x, (-1, size))

    def split(x, count, parts):
        x = tf.reshape(x, (-1, count, parts * heads, size // heads))
        return tf.split(tf.transpose(x, (0, 2, 1, 3)), parts, 1)

    def compute(tokens):
        x = tf.cast(tokens, dtype)
        for i, (query, key_value, output, up, down) in enumerate(blocks):
            is_last = i == len(blocks) - 1
            queries = x[:, :1] if is_last else x  # the last block computes only the class token
            (q,) = split(flat(queries) @ query, queries.shape[1], 1)
            (k, v) = split(flat(x) @ key_value, x.shape[1], 2)
            attended = flat(tf.transpose(tf.matmul(q, k, transpose_b=True) @ v, (0, 2, 1, 3)))
            x = tf.reshape(attended @ output @ up @ down, (-1, queries.shape[1], size))
        return {"outputs": tf.cast(x, "float32")}

    return compute
