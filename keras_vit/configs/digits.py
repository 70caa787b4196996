"""Trains a small Vision Transformer on scikit-learn's handwritten digits, in about a minute on two
CPU cores.

    keras-vit train --config=digits

Copy this file to write your own config. Every field can be overridden, as in
`--config.total_epochs=10`; `keras_vit/recipes/defaults.py` lists the fields.
"""

from ml_collections import ConfigDict

from keras_vit import data, recipes


def get_config():
    return ConfigDict(
        recipes.defaults(
            recipe="digits: ours, not the paper's",
            batch_size=64,
            total_epochs=75.0,
            steps_per_call=20,
            checkpoint_every_steps=200,
            # arguments of keras_vit.VisionTransformer; classes and input shape come from the data
            model={
                "patch_size": 4,
                "num_layers": 4,
                "hidden_size": 96,
                "mlp_dim": 192,
                "num_heads": 4,
            },
            data=data.defaults(  # keras_vit.data.defaults describes the fields
                name="digits",
                shift=1,  # largest random shift of a training image, in pixels
            ),
            optimizer={"name": "adamw", "weight_decay": 0.1},
            schedule={"decay": "cosine", "base": 3e-3, "warmup_steps": 40},
        )
    )
