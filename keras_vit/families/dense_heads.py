"""The heads of dense prediction by name, and their fields in the config of a task."""

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
    "head_dropout": 0.0,
    "level_channels": (96, 192, 384, 768),
    "features": 256,
    "max_depth": 0.0,
}
"""The fields of `config.model` of dense tasks, in addition to those of the architecture."""
