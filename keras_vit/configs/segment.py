"""Trains a head for semantic segmentation, or for depth, on a pretrained Vision Transformer.

    keras-vit train --config=segment:DINOv2-S/14,folder --config.data.path=scenes
    keras-vit train --config=segment:DINOv2-S/14,scenes,head=dpt,resolution=448
    keras-vit train --config=segment:DINOv2-B/14,depth,task=depth --config.data.path=rooms

A folder has the subfolders `images` and `masks`, with files of the same stems, and a text file
`classes.txt` with the names of the classes. The recipe is ours: it trains only the head, "linear"
or "dpt"; --config.model.frozen=False trains everything, with a lower learning rate.
"""

from ml_collections import ConfigDict

from keras_vit import data, families, recipes
from keras_vit.checkpoints import published
from keras_vit.data.loading import name_and_path
from keras_vit.layers.resnet_stem import stem_stride_of

# The metric that selects the best checkpoint of each task.
_BEST = {"segmentation": "mean_iou", "depth": "abs_rel_error"}


def get_config(request=""):
    model, dataset, choices = recipes.parse_config_arg(
        request, "DINOv2-S/14,folder", known=("head", "resolution", "task")
    )
    task = choices.get("task", "segmentation")
    if task not in _BEST:
        raise ValueError(f"`task` must be one of {', '.join(_BEST)}. Received: task={task!r}")
    head = choices.get("head", "dpt" if task == "depth" else "linear")
    architecture = families.model_config(model, head=head, head_dropout=0.1)
    arguments = architecture["model"]
    stride = arguments.get("patch_size", 16) * stem_stride_of(arguments.get("resnet_blocks"))
    resolution = choices.get("resolution", 28 * stride)
    if not isinstance(resolution, int):
        raise ValueError(
            f"`resolution` must be a whole number of pixels. Received: resolution={resolution!r}"
        )
    name, path = name_and_path(dataset)
    if name in ("folder", "list"):  # of images with masks or depths, not with classes
        name = "depth" if task == "depth" else "masks"
    return ConfigDict(
        recipes.defaults(
            recipe=f"{task} with {model} on {dataset}: ours, not the paper's",
            task=task,
            best_metric=_BEST[task],
            batch_size=16,
            total_steps=2000,
            eval_every_steps=500,
            log_every_steps=20,
            clip_norm=1.0,
            weights=published.collection_of(families.canonical_name(model), "augreg"),
            **architecture,
            data=data.defaults(
                name=name,
                path=path,
                image_size=resolution,
                train_crop="inception",
                eval_crop="resize",
                flip="on",
            ),
            optimizer={"name": "adamw", "weight_decay": 1e-3, "decay_mask": "kernels"},
            schedule={"decay": "cosine", "base": 1e-3, "warmup_steps": 100},
        )
    )
