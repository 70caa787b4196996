"""Trains a small ResNet from scratch on the 60,000 training images of Fashion-MNIST.

    keras-vit train --config=fashion --workdir=runs/fashion

On Debian, the package dataset-fashion-mnist installs the images. On other systems, download the
four IDX files and set --config.data.path=FOLDER.
"""

from ml_collections import ConfigDict

from keras_vit import data, recipes


def get_config():
    return ConfigDict(
        recipes.defaults(
            recipe="fashion: ours, not the paper's",
            batch_size=128,
            total_epochs=15.0,
            steps_per_call=20,
            clip_norm=1.0,
            checkpoint_every_steps=500,
            architecture="BiTResNet",
            model={"depth": 8},
            data=data.defaults(
                name="idx",
                path="/usr/share/datasets/fashion-mnist",
                channels=1,
                # 28 pixels, enlarged, because the stride of this ResNet is 8
                image_size=48,
                train_crop="resize",
                flip="on",
                # largest random shift in pixels of the resized image, about 2 pixels of the
                # original image
                shift=3,
                label_smoothing=0.1,
            ),
            optimizer={"name": "adamw", "weight_decay": 0.1},
            schedule={"decay": "cosine", "base": 3e-3, "warmup_steps": 200},
        )
    )
