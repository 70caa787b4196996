"""Fine-tuning, as the paper's Table 4 has it, from published weights and with a new head of zeros.

    python experiments/run_tpu.py --config=experiments/configs/finetune.py:ViT-B/16,cifar10
    python experiments/run_tpu.py --config=experiments/configs/finetune.py:ViT-L/16,imagenet2012,resolution=512
    python experiments/sweep.py --config=experiments/configs/finetune.py:ViT-B/16,cifar10 --workdir=runs/cifar10

At 384 pixels, or 378 for patches of 14, which do not fill 384; `resolution=512` (518) averages the weights. Table 4
chooses the rate by a sweep, which `sweep.py` does; alone, this page takes the original code's 0.03. The weights are
ImageNet-21k's, or AugReg's for sizes that have no others; `--config.weights=PATH` takes one's own.
"""

from ml_collections import ConfigDict

from keras_vit import data, recipes
from keras_vit.checkpoints.published import PUBLISHED
from keras_vit.models.sizes import arguments


def get_config(request=""):
    model, dataset, choices = recipes.parse_config_arg(request, "ViT-B/16,cifar10")
    recipe = recipes.finetuning(model, dataset, **choices)
    recipe["model"] = arguments(model, **recipe["model"])
    # What a dataset forbids (a crop, where the label counts what is in the whole image) comes before the recipe.
    wants = data.DATASETS[dataset].options if dataset in data.DATASETS else {}
    recipe["data"] = data.defaults(name=dataset, **{**recipe["data"], **{k: "auto" for k in wants}})
    names = {row.collection for row in PUBLISHED if row.model == model.replace("/", "_")}
    recipe["weights"] = "imagenet21k" if "imagenet21k" in names else "augreg"
    return ConfigDict(recipes.defaults(**recipe))
