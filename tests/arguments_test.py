"""Tests of suggestions for misspelled names."""

import pytest

from keras_vit import arguments


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("CIFAR-10", " Did you mean cifar10?"), ("qqq", "")],
)
def test_suggests_similar_name(name, suggestion):
    assert arguments.did_you_mean(name, ["digits", "cifar10", "cifar100"]) == suggestion
