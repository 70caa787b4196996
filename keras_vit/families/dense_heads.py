"""The heads of dense prediction by name, and the fields of `config.model` for tasks with such a
head.

They are here because recipes, which cannot import tasks, need them, too.
"""

from typing import Any

from keras_vit.models import DensePredictionTransformer, LinearSegmenter

TASKS = ("segmentation", "depth")
"""The tasks whose models have these heads."""

HEADS: dict[str, tuple[type, tuple[str, ...]]] = {
    "linear": (LinearSegmenter, ("levels", "head_dropout")),
    "dpt": (
        DensePredictionTransformer,
        ("levels", "head_dropout", "level_channels", "features", "max_depth"),
    ),
}
"""Maps the value of `config.model.head` to a model and the fields that it takes."""

FIELDS: dict[str, Any] = {
    "head": "linear",
    "frozen": True,
    "levels": (),
    "head_dropout": 0.0,  # the default of `DensePredictionTransformer` is 0.1
    "level_channels": (96, 192, 384, 768),
    "features": 256,
    "max_depth": 0.0,
}
"""The fields of `config.model` of dense tasks, in addition to those of the architecture."""
