"""Fine-tunes published weights, with a new head initialized to zeros, as in the paper's Table 4.

    keras-vit train --config=finetune:ViT-B/16,cifar10
    keras-vit train --config=finetune:ViT-L/16,imagenet2012,resolution=512
    keras-vit sweep --config=finetune:ViT-B/16,cifar10 --workdir=runs/cifar10

The resolution is 384 pixels, or 378 for patches of 14. `resolution=512` (518 for patches of 14)
turns on Polyak averaging. In the paper, a sweep selects the learning rate; `keras-vit sweep` runs
such a sweep. Without a sweep, the learning rate is 0.03 as in the JAX reference, and 0.01 for VTAB.

The initial weights are the paper's ImageNet-21k weights. For a model that the paper does not
publish, they are AugReg weights, or the published weights of the model's family, if any.
`--config.weights=PATH` loads other weights. The file at PATH then determines most of the model
arguments that the config leaves at their defaults.
"""

from ml_collections import ConfigDict

from keras_vit import data, families, recipes
from keras_vit.checkpoints import published


def get_config(request=""):
    model, dataset, choices = recipes.parse_config_arg(request, "ViT-B/16,cifar10")
    recipe = recipes.finetuning(model, dataset, **choices)
    recipe |= families.model_config(model, **recipe["model"])
    # The dataset's own options override the recipe. For example, images are not cropped if the
    # label counts objects.
    fixed = data.DATASETS[dataset].options if dataset in data.DATASETS else {}
    recipe["data"] = data.defaults(
        name=dataset, **{**recipe["data"], **dict.fromkeys(fixed, "auto")}
    )
    recipe["weights"] = published.collection_of(
        families.canonical_name(model), "imagenet21k", "augreg", "bit_m"
    )
    return ConfigDict(recipes.defaults(**recipe))
