"""Trains an image and a text tower from scratch on images with captions, as in SigLIP.

    keras-vit train --config=siglip:ViT-S/16 --config.data.train_split=train.csv \\
        --config.data.test_split=test.csv --config.data.tokenizer=tokenizer.json

The lists have the columns `file` and `caption`. For TFRecords and TFDS, set
--config.data.name=caption_tfrecords or caption_tfds:NAME. `--config.loss=softmax` is CLIP's loss.
"""

from ml_collections import ConfigDict

from keras_vit import data, recipes
from keras_vit.recipes.image_text import image_text, towers


def get_config(request="ViT-S/16"):
    recipe = image_text(f"image-text training of {request}, SigLIP's rates", **towers(request))
    recipe["data"] = data.defaults(
        name="captions", image_size=224, train_crop="resize", eval_crop="resize"
    )
    return ConfigDict(recipes.defaults(**recipe))
