"""Trains a text tower for an image tower that is already trained and stays locked, as in LiT.

    keras-vit train --config=lit:ViT-B/16 --config.data.train_split=train.csv \\
        --config.data.test_split=test.csv --config.data.tokenizer=tokenizer.json

The image tower has published weights of the model. `--config.weights=...` chooses other weights,
which then determine the image tower.
"""

from ml_collections import ConfigDict

from keras_vit import data, families, recipes
from keras_vit.checkpoints import published
from keras_vit.recipes.image_text import image_text, towers


def get_config(request="ViT-B/16"):
    model = families.canonical_name(request)
    recipe = image_text(f"locked-image tuning of {model}, ours", **towers(model, locked=True))
    recipe["weights"] = weights_of(model)
    recipe["data"] = data.defaults(
        name="captions", image_size=224, train_crop="resize", eval_crop="resize"
    )
    return ConfigDict(recipes.defaults(**recipe))


def weights_of(model):
    """Returns the name of a published file of the model, or a collection's own file."""
    collection = published.collection_of(model, "augreg", "imagenet21k")
    if not collection:
        raise ValueError(f"The config needs a model with published weights. Received: {model!r}")
    return f"{collection}:{published.find(collection, [model]).name}"
