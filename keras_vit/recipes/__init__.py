"""What to train with, as data: the fields of a config, and the tables of the papers. Imports nothing of ours.

`defaults` gives every field of a config; the others give what a recipe changes in it.
"""

from keras_vit.recipes.asking import augreg, finetuning, pretraining, rates, read_request
from keras_vit.recipes.fields import defaults
from keras_vit.recipes.tables import AUGREG, TABLE_3, TABLE_4

__all__ = [
    "AUGREG",
    "TABLE_3",
    "TABLE_4",
    "augreg",
    "defaults",
    "finetuning",
    "pretraining",
    "rates",
    "read_request",
]
