"""The Vision Transformers that the benchmarks compare, and a trainer that repeats one batch.

Functions import the libraries, so that a process loads only those that it measures.
"""

import types

CLASSES = 1000
SIZES = {
    name: dict(zip(("patch_size", "hidden_size", "num_layers", "num_heads", "mlp_dim"), sizes))
    for name, sizes in {
        "tiny": (16, 192, 2, 3, 768),
        "S/16": (16, 384, 12, 6, 1536),
        "B/16": (16, 768, 12, 12, 3072),
        "L/16": (16, 1024, 24, 16, 4096),
        "H/14": (14, 1280, 32, 16, 5120),
    }.items()
}


def keras_hub_model(image_size, classes=CLASSES, **sizes):
    """Returns keras-hub's classifier of the given `sizes`."""
    import keras_hub

    backbone = keras_hub.models.ViTBackbone(
        image_shape=(image_size, image_size, 3),
        patch_size=sizes["patch_size"],
        num_layers=sizes["num_layers"],
        num_heads=sizes["num_heads"],
        hidden_dim=sizes["hidden_size"],
        mlp_dim=sizes["mlp_dim"],
    )
    return keras_hub.models.ViTImageClassifier(backbone, num_classes=classes)


def train_config(batch_size, image_size, sizes, **changes):
    """Returns a config that trains a model of these sizes with AdamW and gradients clipped at 1."""
    from ml_collections import ConfigDict

    from keras_vit import recipes

    return ConfigDict(
        recipes.defaults(
            batch_size=batch_size,
            total_steps=1000,
            clip_norm=1.0,
            optimizer={"name": "adamw"},
            model={**sizes, "input_shape": (image_size, image_size, 3)},
            schedule={"base": 1e-3},
            **changes,
        )
    )


def random_batch(batch_size, image_size):
    """Returns float32 images `(B, H, W, C)` in [-1, 1] and one-hot labels `(B, classes)`."""
    import numpy as np

    shape = (batch_size, image_size, image_size, 3)
    images = np.random.default_rng(0).uniform(-1, 1, shape).astype("float32")
    return images, np.eye(CLASSES, dtype="float32")[np.arange(batch_size) % CLASSES]


def build_engine(config, images, labels):
    """Returns the engine of `keras-vit train` for a config. Its input repeats one batch."""
    import keras
    import numpy as np
    import tensorflow as tf

    from keras_vit import Preprocessing, tasks, training

    batch_size = len(images)
    batch = tf.data.Dataset.from_tensors((images, labels, np.ones(batch_size, "float32")))
    inputs = types.SimpleNamespace(
        train=types.SimpleNamespace(class_names=[str(i) for i in range(CLASSES)]),
        batch_size=batch_size,
        image_shape=images.shape[1:],
        model_preprocessing=Preprocessing,
        train_batches=lambda *_, **__: batch.repeat().prefetch(2),
    )
    engine = training.choose_engine(config)
    keras.config.set_dtype_policy(config.precision)
    engine.build(config, tasks.get(config), inputs, config.total_steps)
    return engine
