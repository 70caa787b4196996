"""Distills a large model into a small one that is fast. The recipe is ours; its benefit has not
been measured.

    keras-vit train --config=distill:ViT-Ti/16,folder --config.teacher=runs/large \\
        --config.data.path=photos
    keras-vit train --config=distill:ViT-Ti/16,images --config.teacher=runs/large \\
        --config.data.path=unlabeled

The teacher is a run, an export, a .keras file, or a source of `keras_vit.from_pretrained`. The
second command needs no labels. As in "Knowledge distillation: A good teacher is patient and
consistent", training is long, and both models see the same crops and the same mixup.
"""

from ml_collections import ConfigDict

from keras_vit import data, families, recipes
from keras_vit.checkpoints import published
from keras_vit.data.loading import name_and_path


def get_config(request=""):
    model, dataset, _ = recipes.parse_config_arg(request, "ViT-Ti/16,folder", known=())
    name, path = name_and_path(dataset)
    has_labels = name != "images"
    fields = families.model_fields(model)
    return ConfigDict(
        recipes.defaults(
            recipe=f"distillation into {model} on {dataset}: ours",
            task="distillation",
            batch_size=128,
            total_steps=10_000,
            clip_norm=1.0,
            weights=published.collection_of(families.canonical_name(model), "augreg", "bit_m"),
            best_metric="accuracy" if has_labels else "agreement",
            **families.model_config(model),
            data=data.defaults(
                name=name,
                path=path,
                **families.model_class(model).data_fields(fields),
                mixup_alpha=0.5,
            ),
            distillation={"labels": has_labels},
            optimizer={"name": "adamw", "weight_decay": 0.05, "decay_mask": "kernels"},
            schedule={"decay": "cosine", "base": 1e-3, "warmup_steps": 500},
        )
    )
