"""Tests of the number of training examples that `input_shapes` returns for the TPU check."""

import pytest
from ml_collections import ConfigDict

from keras_vit import data, recipes
from keras_vit.tpu.inputs import input_shapes

IMAGENET = {"name": "imagenet2012", "image_size": 224}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (IMAGENET, 1_281_167),
        ({**IMAGENET, "train_split": "train[:1000]"}, 0),  # unknown
        ({**IMAGENET, "train_split": "train[:10]+train[20:]", "num_examples": 7}, 7),
        ({"name": "digits"}, 1437),
        ({"name": "digits", "train_split": "train[:100]"}, 100),
    ],
)
def test_number_of_training_examples(fields, expected):
    config = recipes.defaults(batch_size=8, data=data.defaults(**fields))
    assert input_shapes(ConfigDict(config)).num_examples == expected
