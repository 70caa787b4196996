"""Recipes: the fields of a config, the papers' hyperparameter tables, and recipes of ours.

`defaults` returns all fields of a config. `pretraining`, `augreg` and `finetuning` return the
papers' changes to these defaults. `recipes.image_text` and `recipes.small_data` contain recipes of
ours.
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
