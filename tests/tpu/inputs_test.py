"""The facts of a dataset that is not on this machine."""

import pytest
from ml_collections import ConfigDict

from keras_vit import data, recipes
from keras_vit.tpu.inputs import input_shapes


def _examples(**fields):
    return input_shapes(ConfigDict(recipes.defaults(batch_size=8, data=data.defaults(**fields)))).num_examples


def test_the_examples_of_a_part_of_a_split_are_unknown():
    assert _examples(name="imagenet2012", image_size=224) == 1_281_167
    assert _examples(name="imagenet2012", image_size=224, train_split="train[:1000]") == 0


def test_generated_datasets_are_asked():
    assert _examples(name="digits") == 1437
    assert _examples(name="digits", train_split="train[:100]") == 100
    with pytest.raises(ValueError, match="^The splits of digits are"):
        _examples(name="digits", train_split="train[:10%]")


def test_the_recipe_takes_precedence():
    assert _examples(name="imagenet2012", image_size=224, train_split="train[:10]+train[20:]", num_examples=7) == 7
