"""Tests of the number of training examples that `input_shapes` returns for the TPU check."""

import pytest
from ml_collections import ConfigDict

from keras_vit import data, recipes
from keras_vit.tpu.inputs import input_shapes


def _examples(**fields):
    config = recipes.defaults(batch_size=8, data=data.defaults(**fields))
    return input_shapes(ConfigDict(config)).num_examples


def test_example_count_of_partial_split_is_unknown():
    assert _examples(name="imagenet2012", image_size=224) == 1_281_167
    assert _examples(name="imagenet2012", image_size=224, train_split="train[:1000]") == 0


def test_example_count_of_digits():
    assert _examples(name="digits") == 1437
    assert _examples(name="digits", train_split="train[:100]") == 100
    with pytest.raises(ValueError, match="^The splits of digits are"):
        _examples(name="digits", train_split="train[:10%]")


def test_config_num_examples_takes_precedence():
    fields = {"image_size": 224, "train_split": "train[:10]+train[20:]", "num_examples": 7}
    assert _examples(name="imagenet2012", **fields) == 7
