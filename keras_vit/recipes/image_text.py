"""Recipes for image-text training: from scratch, with a locked image tower, or from a published
pair."""

from typing import Any

from keras_vit import families
from keras_vit.recipes.defaults import with_defaults

_SIZE = ("hidden_size", "num_layers", "mlp_dim", "num_heads")


def image_text(recipe: str, **changes: Any) -> dict[str, Any]:
    """Returns a recipe for image-text training, as changes for `defaults`.

    The learning rate and the weight decay are those of SigLIP. The other values are ours.

    Args:
        recipe: one line that names the source of the values.
        **changes: fields that extend or override the recipe.

    Reference: Zhai et al., 2023, "Sigmoid Loss for Language Image Pre-Training".
    """
    return {
        "recipe": recipe,
        "task": "image_text",
        "loss": "sigmoid",
        "batch_size": 1024,
        "total_epochs": 10.0,
        "clip_norm": 1.0,
        "optimizer": {
            "name": "adamw",
            "weight_decay": 1e-4,
            "decay_mask": "kernels",
            # The layer of the scale and the bias, which would decay with `decay_mask="all"`.
            "no_decay": "similarity",
        },
        "schedule": {"decay": "cosine", "base": 1e-3, "warmup_steps": 1000},
        **changes,
    }


def towers(model: str, locked: bool = False) -> dict[str, Any]:
    """Returns the fields `architecture` and `model` of a config: an image tower of a named size,
    and a text tower of the same size. The initial scale and bias are those of SigLIP.

    Args:
        model: name of a size, such as "ViT-S/16" or "SigLIP-B/16".
        locked: whether the image tower is not trained.

    Raises:
        ValueError: the name is unknown, or the model is not a Vision Transformer.
    """
    fields = families.model_config(model)
    arguments = fields["model"]
    size = {name: arguments[name] for name in _SIZE if name in arguments}
    if len(size) < len(_SIZE):
        raise ValueError(
            "`model` must be a Vision Transformer, because the text tower gets the same size. "
            f"Received: model={model!r}"
        )
    if not locked:  # a locked tower keeps the pooling of its weights
        arguments = {"classifier": "map", **arguments}  # as in SigLIP
    return {
        "architecture": fields["architecture"],
        "model": {
            **with_defaults(families.model_fields(fields["architecture"]), arguments),
            "text": {**size, "vocabulary_size": 0, "dropout": 0.0},
            "scale": 10.0,
            "bias": -10.0,
            "locked": locked,
        },
    }
