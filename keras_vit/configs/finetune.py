"""Fine-tuning, as the paper's Table 4 has it, from published weights and with a new head of zeros.

    keras-vit train --config=finetune:ViT-B/16,cifar10
    keras-vit train --config=finetune:ViT-L/16,imagenet2012,resolution=512
    keras-vit sweep --config=finetune:ViT-B/16,cifar10 --workdir=runs/cifar10

At 384 pixels, or 378 for patches of 14, which do not fill 384; `resolution=512` (518) averages the weights. Table 4
chooses the learning rate by a sweep, which `keras-vit sweep` does; alone, this page takes the JAX reference's 0.03. The
weights are ImageNet-21k's, AugReg's for sizes that have no others, BiT-M's for BiT ResNets, or those of the family.
`--config.weights=PATH` takes others, with what the file shows about its model: pooling, positions, GELU and epsilon.
"""

from ml_collections import ConfigDict

from keras_vit import data, families, recipes
from keras_vit.checkpoints import published


def get_config(request=""):
    model, dataset, choices = recipes.parse_config_arg(request, "ViT-B/16,cifar10")
    recipe = recipes.finetuning(model, dataset, **choices)
    recipe |= families.model_config(model, **recipe["model"])
    # What a dataset forbids (a crop, where the label counts what is in the whole image) comes before the recipe.
    fixed = data.DATASETS[dataset].options if dataset in data.DATASETS else {}
    recipe["data"] = data.defaults(name=dataset, **{**recipe["data"], **{field: "auto" for field in fixed}})
    recipe["weights"] = published.collection_of(families.canonical_name(model), "imagenet21k", "augreg", "bit_m")
    return ConfigDict(recipes.defaults(**recipe))
