"""Fine-tuning as in the paper's Table 4, from published weights and with a new head of zeros.

    keras-vit train --config=finetune:ViT-B/16,cifar10
    keras-vit train --config=finetune:ViT-L/16,imagenet2012,resolution=512
    keras-vit sweep --config=finetune:ViT-B/16,cifar10 --workdir=runs/cifar10

Images have 384 pixels, or 378 for patches of 14; `resolution=512` (518) also averages the weights. Table 4 chooses the
learning rate by a sweep, which `keras-vit sweep` runs; otherwise it is 0.03, as in the JAX reference. The weights are
those of ImageNet-21k, or AugReg, BiT-M or the family for sizes without them. `--config.weights=PATH` loads others;
pooling, positions, GELU and epsilon are then those of the file.
"""

from ml_collections import ConfigDict

from keras_vit import data, families, recipes
from keras_vit.checkpoints import published


def get_config(request=""):
    model, dataset, choices = recipes.parse_config_arg(request, "ViT-B/16,cifar10")
    recipe = recipes.finetuning(model, dataset, **choices)
    recipe |= families.model_config(model, **recipe["model"])
    # What a dataset forbids takes precedence over the recipe, such as crops if the label counts objects.
    fixed = data.DATASETS[dataset].options if dataset in data.DATASETS else {}
    recipe["data"] = data.defaults(name=dataset, **{**recipe["data"], **{field: "auto" for field in fixed}})
    recipe["weights"] = published.collection_of(families.canonical_name(model), "imagenet21k", "augreg", "bit_m")
    return ConfigDict(recipes.defaults(**recipe))
