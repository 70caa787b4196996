"""What to train with, as data: the fields of a config, and the tables of the papers. Imports nothing.

`defaults` gives every field of a config; the recipes are changes to it.
"""

from keras_vit.recipes.fields import defaults

__all__ = ["defaults"]
