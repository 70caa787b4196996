r"""Pre-trains a model on a dataset, with a recipe from the paper's Table 3 or from AugReg.

    keras-vit train --config=pretrain:ViT-B/16,imagenet2012
    keras-vit train --config=pretrain:ViT-L/16,imagenet21k,epochs=30
    keras-vit train --config=pretrain:R50x1,jft300m --config.data.path=... \
        --config.data.classes=18291 --config.data.train_split='train-*' \
        --config.data.test_split='test-*'
    keras-vit train \
        --config=pretrain:ViT-S/16,imagenet2012,augreg=medium1,dropout=0.1,weight_decay=0.1

What follows the dataset are choices. `augreg=...` selects AugReg's recipe, which also needs
`dropout` and `weight_decay`; without it, the recipe is that of Table 3. If a table has several
values for a field, you must choose one, as with `epochs=30` above. Without a choice, an error
message lists the values. For imagenet21k, `--config.data.path=...` is the folder of the images. For
jft300m, it is the folder of your own TFRecords, because JFT-300M is not public. Every field can be
overridden.
"""

from ml_collections import ConfigDict

from keras_vit import data, families, recipes


def get_config(request=""):
    model, dataset, choices = recipes.parse_config_arg(request, "ViT-B/16,imagenet2012")
    preset = recipes.augreg if "augreg" in choices else recipes.pretraining
    recipe = preset(model, dataset, **choices)
    recipe |= families.model_config(model, **recipe["model"])
    recipe["data"] = data.defaults(
        name="tfrecords" if dataset == "jft300m" else dataset, **recipe["data"]
    )
    return ConfigDict(recipes.defaults(**recipe))
