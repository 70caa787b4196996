"""Tests that the parameter counts of named sizes match the JAX reference, transformers or timm."""

import math

import keras
import pytest

import keras_vit
from keras_vit import families

pytestmark = pytest.mark.one_backend

# Parameters at 224 pixels with 1,000 classes, in the JAX reference or, for BiT, in big_vision.
WITH_HEAD = {
    "ViT_Ti16": 5_717_416,
    "ViT_S16": 22_050_664,
    "ViT_S32": 22_878_952,
    "ViT_B8": 86_576_872,
    "ViT_B16": 86_567_656,
    "ViT_B32": 88_224_232,
    "ViT_L16": 304_326_632,
    "ViT_L32": 306_535_400,
    "ViT_H14": 632_045_800,
    "R_ViT_Ti16": 6_337_704,
    "R26_ViT_S32": 36_431_912,
    "R26_ViT_B32": 101_383_976,
    "R50_ViT_B16": 98_659_112,
    "R50_ViT_L32": 328_994_856,
    "R50_ViT_B32": 110_945_832,
    "R50_ViT_L16": 316_483_624,
    "BiT_R50x1": 25_549_352,
    "BiT_R50x2": 97_988_712,
    "BiT_R50x3": 217_319_080,
    "BiT_R101x1": 44_541_480,
    "BiT_R101x3": 387_934_888,
    "BiT_R152x1": 60_185_128,
    "BiT_R152x2": 236_335_208,
    "BiT_R152x4": 936_533_224,
    "BiT_R200x3": 568_633_000,
}
# Parameters at the default image size without the head and the mask token, in transformers or timm.
WITHOUT_HEAD = {
    "DINOv2_S14": 21_628_800,
    "DINOv2_S14_reg": 21_630_336,
    "DINOv2_B14": 85_724_928,
    "DINOv2_B14_reg": 85_728_000,
    "DINOv2_L14": 303_227_904,
    "DINOv2_L14_reg": 303_232_000,
    "DINOv2_g14": 1_134_769_664,
    "DINOv2_g14_reg": 1_134_775_808,
    "DINOv3_S16": 21_596_160,
    "DINOv3_Splus16": 28_692_480,
    "DINOv3_B16": 85_659_648,
    "DINOv3_L16": 303_128_576,
    "DINOv3_Lplus16": 403_890_176,
    "DINOv3_Hplus16": 840_591_360,
    "DINOv3_7B16": 6_716_030_976,
    "MAE_B16": 85_798_656,
    "MAE_L16": 303_301_632,
    "MAE_H14": 630_764_800,
    "IJEPA_H14": 630_762_240,
    "IJEPA_H16": 630_915_840,
    "IJEPA_g16": 1_011_368_576,
    "DINO_S16": 21_665_664,
    "DINO_S8": 21_670_272,
    "DINO_B16": 85_798_656,
    "DINO_B8": 85_807_872,
    "SigLIP_B32": 94_540_800,
    "SigLIP_B16": 92_884_224,
    "SigLIP_L16": 315_894_784,
    "SigLIP_So400m14": 427_680_704,
    "SigLIP_So400m16": 427_818_944,
    "SigLIP_g_opt16": 1_163_076_096,
    "SigLIP2_NaFlex_B16": 92_930_304,
    "SigLIP2_NaFlex_So400m16": 427_888_064,
    "CLIP_B32": 87_456_000,
    "CLIP_B16": 85_799_424,
    "CLIP_L14": 303_179_776,
    "CLIP_H14": 630_766_080,
    "CLIP_g14": 1_011_203_840,
    "CLIP_bigG14": 1_842_777_344,
    "DeiT_Ti16_distilled": 5_524_800,
    "DeiT_S16_distilled": 21_666_432,
    "DeiT_B16_distilled": 85_800_192,
    "DeiT3_S16": 21_674_496,
    "DeiT3_M16": 38_336_512,
    "DeiT3_B16": 85_816_320,
    "DeiT3_L16": 303_349_760,
    "DeiT3_H14": 630_845_440,
    "EVA02_Ti14": 5_502_144,
    "EVA02_S14": 21_621_120,
    "EVA02_B14": 85_758_720,
    "EVA02_L14": 303_268_800,
    "FlexiViT_S": 21_665_280,
    "FlexiViT_B": 85_797_888,
    "FlexiViT_L": 303_300_608,
}
# Parameters of transformers' `DPTForDepthEstimation` and `DepthAnythingForDepthEstimation` at the
# sizes of the published models, without those that have no effect: the mask token, the first
# residual unit of the first fusion and, in DPT, the final normalization.
DENSE = {
    "DPT_L16": 343_030_465 - 1_180_160 - 2_048,
    "DepthAnything_S14": 24_785_089 - 73_856 - 384,
    "DepthAnything_B14": 97_470_785 - 295_168 - 768,
    "DepthAnything_L14": 335_315_649 - 1_180_160 - 1_024,
}
COUNTS = WITH_HEAD | WITHOUT_HEAD


@pytest.fixture
def count(monkeypatch):
    """Returns a function that counts the parameters of a model without allocating them."""
    sizes = []
    monkeypatch.setattr(
        keras.layers.Layer,
        "add_weight",
        lambda layer, shape=(), **_: sizes.append(math.prod(shape)),
    )

    def count(build, **arguments):
        sizes.clear()
        build(**arguments)
        return sum(sizes)

    return count


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_count_matches_reference_and_docstring(name, count):
    constructor = getattr(keras_vit, name)
    assert count(constructor, include_top=name in WITH_HEAD) == COUNTS[name]
    assert f"{COUNTS[name] / 1e6:.1f}M parameters" in constructor.__doc__


@pytest.mark.parametrize("name", DENSE)
def test_dense_parameter_count_matches_reference_and_docstring(name, count):
    constructor = getattr(keras_vit, name)
    side = 384 if name == "DPT_L16" else 518
    assert count(constructor, input_shape=(side, side, 3)) == DENSE[name]
    assert f"{count(constructor) / 1e6:.1f}M parameters" in constructor.__doc__


def test_parameter_count_of_bit_with_depth_26_matches_reference(count):
    assert count(keras_vit.BiTResNet, depth=26, include_top=False) == 13_938_496


def test_counting_fixture_matches_count_params(count, monkeypatch):
    counted = count(keras_vit.R_ViT_Ti16, classes=7)
    monkeypatch.undo()
    assert keras_vit.R_ViT_Ti16(classes=7).count_params() == counted


def test_every_constructor_has_a_count():
    assert set(families.CONSTRUCTORS) == COUNTS.keys() | DENSE.keys()
