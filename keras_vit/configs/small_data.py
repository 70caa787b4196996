"""Fine-tunes on small datasets with AdamW. The recipe is ours, not the paper's; its benefit has not
been measured.

    keras-vit train --config=small_data:ViT-B/16,pets
    keras-vit train --config=small_data:ViT-S/16,folder --config.data.path=photos
    keras-vit train --config=small_data:ViT-S/16,../photos  # the same for a path
    keras-vit train --config=small_data:DINOv2-B/14,folder --config.data.path=photos

Like other recent recipes for fine-tuning Vision Transformers, this recipe uses layer-wise learning
rate decay, weight decay of kernels only, augmentation and label smoothing. It works with any
dataset of `keras_vit.data`.

The batch size, the learning rate, the steps and the evaluations follow from the number of images
(`keras_vit/recipes/small_data.py`), unless the command line sets them. If the images cannot be
counted yet, they are assumed to be 10,000.
"""

import functools
import types

from ml_collections import ConfigDict, FieldReference

from keras_vit import data, families, recipes
from keras_vit.checkpoints import published
from keras_vit.data.config import count_training_images
from keras_vit.data.loading import name_and_path
from keras_vit.recipes import small_data


def get_config(request=""):
    model, dataset, _ = recipes.parse_config_arg(request, "ViT-B/16,pets", known=())
    name, path = name_and_path(dataset)
    fields = families.model_fields(model)
    # ResNets have neither stochastic depth nor layer decay.
    arguments = {"stochastic_depth": 0.1} if "stochastic_depth" in fields else {}
    config = ConfigDict(
        recipes.defaults(
            recipe=f"fine-tuning of {model} on {dataset}, small data: ours, not the paper's",
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
                "layer_decay": 0.75 if arguments else 1.0,
            },
            schedule={"decay": "cosine"},
        )
    )
    _follow_images(config)
    return config


def _follow_images(config):
    """Makes the fields that follow from the number of images references; see `_later`."""
    config.update(
        batch_size=_later(lambda: small_data.batch_size(_images(config))),
        total_steps=_later(lambda: small_data.total_steps(_images(config), config.batch_size)),
        eval_every_steps=_later(lambda: small_data.tenth(_steps(config))),
    )
    config.schedule.update(
        base=_later(lambda: small_data.rate(config.batch_size), 0.0),
        warmup_steps=_later(lambda: small_data.tenth(_steps(config))),
    )


def _later(compute, default=0):
    """Returns a field that is computed when it is read, after the command line has set others."""
    # ml_collections calls `op.fn(value, *op.args)` on every read.
    return FieldReference(default, op=types.SimpleNamespace(fn=lambda _: compute(), args=()))


def _steps(config):
    return config.total_steps or round(config.total_epochs * _images(config) / config.batch_size)


def _images(config):
    """Returns the number of training images of a config, or 10,000 if they cannot be counted."""
    fields = config.data.to_dict()
    if fields["train_split"] == "tune_train":  # the runs of a sweep are as long as the final one
        fields |= {"train_split": "train", "test_split": "test"}
    return _count(tuple(fields.items()))


@functools.lru_cache
def _count(fields):
    try:
        return count_training_images(dict(fields))
    except (ValueError, OSError, ImportError):  # training explains what is wrong
        return 10_000
