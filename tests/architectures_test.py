"""The sizes are written once: constructors, published weights and recipes agree with them."""

import pytest

import keras_vit
from keras_vit import architectures, cost, recipes
from keras_vit.checkpoints.published import PUBLISHED
from keras_vit.models import variants

NAMES = [*architectures.VISION_TRANSFORMERS, *architectures.BIT_RESNETS]


def _constructor(name):
    """`ViT-B/16` is built by `ViT_B16`, `R50+ViT-B/16` by `R50_ViT_B16`, `BiT-R50x1` by `BiT_R50x1`."""
    return name.replace("/", "").replace("-", "_").replace("+", "_")


def test_every_size_has_a_constructor_and_no_other_has(monkeypatch):
    monkeypatch.setattr(variants, "VisionTransformer", lambda **arguments: arguments)
    monkeypatch.setattr(variants, "BiTResNet", lambda **arguments: arguments)
    functions = {
        name for name, value in vars(variants).items() if getattr(value, "__module__", "") == variants.__name__
    }
    assert functions == {_constructor(name) for name in NAMES}
    for name in NAMES:
        arguments = getattr(variants, _constructor(name))()
        assert arguments.pop("name") == _constructor(name).lower()
        assert arguments == {**architectures.VISION_TRANSFORMERS, **architectures.BIT_RESNETS}[name]
        assert _constructor(name) in keras_vit.__all__


def test_every_published_file_is_of_a_size_and_only_some_sizes_are_not_published():
    published = {row.model for row in PUBLISHED}
    assert published <= set(NAMES)
    assert set(NAMES) - published == {"R50+ViT-B/32", "R50+ViT-L/16", "BiT-R50x2", "BiT-R152x1", "BiT-R200x3"}


def test_every_model_of_table_3_is_a_size():
    for row in recipes.TABLE_3:
        for name in row.models:
            assert name in NAMES or "*" in name
    bit = {name for row in recipes.TABLE_3 for name in row.models if architectures.is_bit(name)}
    assert bit == {"BiT-R50x1", "BiT-R50x2", "BiT-R101x1", "BiT-R152x1", "BiT-R152x2"}


def test_a_size_is_found_by_its_numbers():
    for name, size in architectures.VISION_TRANSFORMERS.items():
        numbers = {key: size.get(key) for key in ("patch_size", "num_layers", "hidden_size", "resnet_blocks")}
        assert architectures.find_vision_transformer(**numbers) == name
        assert architectures.NUM_HEADS[size["hidden_size"]] == size["num_heads"]
    assert architectures.find_vision_transformer(patch_size=16, num_layers=13, hidden_size=768) is None


def test_a_resnet_is_called_by_both_of_its_names():
    assert architectures.canonical_name("R152x4") == architectures.canonical_name("BiT-R152x4") == "BiT-R152x4"
    assert architectures.canonical_name("ViT-B/16") == "ViT-B/16" and architectures.canonical_name("R9x9") == "R9x9"
    assert architectures.is_bit("R50x1") and not architectures.is_bit("R50+ViT-B/16")
    assert architectures.file_name("R50+ViT-B/16") == "R50+ViT-B_16"


@pytest.mark.parametrize("name", NAMES)
def test_a_config_of_a_size_builds_that_size(name):
    config = recipes.defaults(**architectures.model_config(name))
    model = {key: value for key, value in config["model"].items() if key != "input_shape"}
    assert None not in model.values()
    if architectures.is_bit(name):
        assert config["task"] == "resnet_classification"
        build, size = keras_vit.BiTResNet, architectures.BIT_RESNETS[name]
    else:
        assert config["task"] == "classification"
        build, size = keras_vit.VisionTransformer, architectures.VISION_TRANSFORMERS[name]
    found, expected = (cost.build_abstract(build, **{"classes": 7, **arguments}) for arguments in (model, size))
    assert found.count_params() == expected.count_params()


def test_a_config_has_what_is_changed():
    config = architectures.model_config("R50+ViT-B/16", input_shape=(384, 256, 3), pre_logits=True, dropout=0.1)
    model = config["model"]
    assert model["resnet_blocks"] == (3, 4, 9) and model["stem"] == "resnet" and model["dropout"] == 0.1
    assert model["representation_size"] == 768 and model["input_shape"] == (384, 256, 3)
    with pytest.raises(ValueError, match="The sizes known by name are ViT-Ti/16, .* Received: name='ViT-B/15'"):
        architectures.model_config("ViT-B/15")
    with pytest.raises(ValueError, match="A BiT ResNet has no `pre_logits`. Received: .*'BiT-R50x1'"):
        architectures.model_config("R50x1", pre_logits=True)
