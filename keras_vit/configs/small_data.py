"""Fine-tunes on small datasets with AdamW. The recipe is ours, not the paper's; its benefit has not
been measured.

    keras-vit train --config=small_data:ViT-B/16,pets
    keras-vit train --config=small_data:ViT-S/16,folder --config.data.path=photos
    keras-vit train --config=small_data:ViT-S/16,../photos  # the same for a path
    keras-vit train --config=small_data:DINOv2-B/14,folder --config.data.path=photos

Like other recent recipes for fine-tuning Vision Transformers, this recipe uses layer-wise learning
rate decay, weight decay of kernels only, augmentation and label smoothing. It works with any
dataset of `keras_vit.data`.
"""

from ml_collections import ConfigDict

from keras_vit import data, families, recipes
from keras_vit.checkpoints import published
from keras_vit.data.loading import name_and_path


def get_config(request=""):
    model, dataset, choices = recipes.parse_config_arg(request, "ViT-B/16,pets")
    if choices:
        raise ValueError(
            "This config takes a model and a dataset, but no choices. Received: "
            f"{', '.join(choices)}"
        )
    name, path = name_and_path(dataset)
    fields = families.model_fields(model)
    # ResNets have neither stochastic depth nor layer decay.
    has_blocks = "stochastic_depth" in fields
    arguments = {"stochastic_depth": 0.1} if has_blocks else {}
    layer_decay = 0.75 if has_blocks else 1.0
    return ConfigDict(
        recipes.defaults(
            recipe=f"fine-tuning of {model} on {dataset}, small data: ours, not the paper's",
            batch_size=128,
            total_steps=2000,
            log_every_steps=20,
            clip_norm=1.0,
            weights=published.collection_of(families.canonical_name(model), "augreg", "bit_m"),
            **families.model_config(model, **arguments),
            data=data.defaults(
                name=name,
                path=path,
                **families.model_class(model).data_fields(fields),
                augreg="light1",
                label_smoothing=0.1,
            ),
            optimizer={
                "name": "adamw",
                "weight_decay": 0.05,
                "decay_mask": "kernels",
                "layer_decay": layer_decay,
            },
            schedule={"decay": "cosine", "base": 5e-4, "warmup_steps": 200},
        )
    )
