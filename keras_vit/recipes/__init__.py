"""Recipes: the fields of a config, and the papers' hyperparameter tables.

`defaults` returns all fields of a config. `pretraining`, `augreg` and `finetuning` return changes
to these defaults.
"""

from keras_vit.recipes.defaults import defaults, model_fields
from keras_vit.recipes.presets import augreg, finetuning, parse_config_arg, pretraining, rates
from keras_vit.recipes.tables import AUGREG, NUM_EXAMPLES, TABLE_3, TABLE_4

__all__ = [
    "AUGREG",
    "NUM_EXAMPLES",
    "TABLE_3",
    "TABLE_4",
    "augreg",
    "defaults",
    "finetuning",
    "model_fields",
    "parse_config_arg",
    "pretraining",
    "rates",
]
