"""Tests that the parameter counts of named sizes match the JAX reference, transformers or timm."""

import functools
import math

import keras
import pytest

import keras_vit
from keras_vit import families

pytestmark = pytest.mark.one_backend

# The columns contain the parameter counts for:
# 1. 224 pixels without a head
# 2. 224 pixels and 1000 classes
# 3. 224 pixels and 21843 classes
# 4. 224 pixels, 1000 classes and `pre_logits`
# 5. 224 pixels, 21843 classes and `pre_logits`
# 6. 384 pixels (378 for patches of 14) and 1000 classes
COUNTS = {
    "ViT_Ti16": (5_524_416, 5_717_416, 9_740_115, 5_754_472, 9_777_171, 5_790_376),
    "ViT_S16": (21_665_664, 22_050_664, 30_075_219, 22_198_504, 30_223_059, 22_196_584),
    "ViT_S32": (22_493_952, 22_878_952, 30_903_507, 23_026_792, 31_051_347, 22_915_432),
    "ViT_B8": (85_807_872, 86_576_872, 102_605_139, 87_167_464, 103_195_731, 87_744_232),
    "ViT_B16": (85_798_656, 86_567_656, 102_595_923, 87_158_248, 103_186_515, 86_859_496),
    "ViT_B32": (87_455_232, 88_224_232, 104_252_499, 88_814_824, 104_843_091, 88_297_192),
    "ViT_L16": (303_301_632, 304_326_632, 325_690_707, 305_376_232, 326_740_307, 304_715_752),
    "ViT_L32": (305_510_400, 306_535_400, 327_899_475, 307_585_000, 328_949_075, 306_632_680),
    "ViT_H14": (630_764_800, 632_045_800, 658_745_683, 633_685_480, 660_385_363, 632_651_240),
    "R_ViT_Ti16": (6_144_704, 6_337_704, 10_360_403, 6_374_760, 10_397_459, 6_355_944),
    "R26_ViT_S32": (36_046_912, 36_431_912, 44_456_467, 36_579_752, 44_604_307, 36_468_392),
    "R26_ViT_B32": (100_614_976, 101_383_976, 117_412_243, 101_974_568, 118_002_835, 101_456_936),
    "R50_ViT_B16": (97_890_112, 98_659_112, 114_687_379, 99_249_704, 115_277_971, 98_950_952),
    "R50_ViT_L32": (327_969_856, 328_994_856, 350_358_931, 330_044_456, 351_408_531, 329_092_136),
    "R50_ViT_B32": (110_176_832, 110_945_832, 126_974_099, None, 127_564_691, None),
    "R50_ViT_L16": (315_458_624, 316_483_624, 337_847_699, None, 338_897_299, None),
}
# The same counts with global average pooling instead of a class token.
GAP_COUNTS = {
    "ViT_S16": (21_664_896, 22_049_896, 30_074_451, 22_197_736, 30_222_291, 22_195_816),
    "ViT_S32": (22_493_184, 22_878_184, 30_902_739, 23_026_024, 31_050_579, 22_914_664),
    "ViT_B16": (85_797_120, 86_566_120, 102_594_387, 87_156_712, 103_184_979, 86_857_960),
    "ViT_B32": (87_453_696, 88_222_696, 104_250_963, 88_813_288, 104_841_555, 88_295_656),
}
# Sizes without a constructor. Each entry is (patch size, hidden size, layers, MLP dimension, heads,
# counts).
OTHER = {
    "M/16": (16, 512, 12, 2048, 8, (38_324_736, 38_837_736, 49_530_195, None, 49_792_851)),
    "So400m/14": (
        14,
        1152,
        27,
        4304,
        16,
        (412_444_656, 413_597_656, 437_629_635, None, 438_957_891),
    ),
    "g/14": (
        14,
        1408,
        40,
        6144,
        16,
        (1_011_202_432, 1_012_611_432, 1_041_979_219, None, 1_043_963_091),
    ),
    "G/14": (
        14,
        1664,
        48,
        8192,
        16,
        (1_842_775_680, 1_844_440_680, 1_879_144_275, None, 1_881_914_835),
    ),
    "e/14": (
        14,
        1792,
        56,
        15360,
        16,
        (3_805_421_312, 3_807_214_312, 3_844_585_811, None, 3_847_798_867),
    ),
}

# Parameter counts of other families in transformers or timm, at the default image size. They do not
# include the head or the mask token.
FAMILIES = {
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
DENSE_SHAPES = {name: (384, 384, 3) if name == "DPT_L16" else (518, 518, 3) for name in DENSE}


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


def _columns(count, build, hidden_size, size_384):
    """Yields the parameter counts in the column order of `COUNTS`."""
    yield count(build, include_top=False)
    for representation_size in (0, hidden_size):
        for classes in (1000, 21843):
            yield count(build, classes=classes, representation_size=representation_size)
    yield count(build, input_shape=(size_384, size_384, 3))


def _check(counted, expected):
    for ours, reference in zip(counted, expected, strict=False):
        assert reference in (None, ours)


@pytest.mark.parametrize("name", COUNTS)
def test_named_size_matches_reference_parameter_counts(name, count):
    hidden_size = {"Ti": 192, "S": 384, "B": 768, "L": 1024, "H": 1280}[
        name.split("ViT_")[1].rstrip("0123456789")
    ]
    # 384 is not a multiple of 14. The reference drops the last 6 pixels, so 378 pixels give the
    # same 27x27 grid.
    side = 378 if name.endswith("14") else 384
    _check(_columns(count, getattr(keras_vit, name), hidden_size, side), COUNTS[name])


@pytest.mark.parametrize("name", GAP_COUNTS)
def test_gap_sizes_match_reference_parameter_counts(name, count):
    build = functools.partial(getattr(keras_vit, name), classifier="gap")
    _check(_columns(count, build, {"S": 384, "B": 768}[name[4]], 384), GAP_COUNTS[name])


@pytest.mark.full
@pytest.mark.parametrize("name", OTHER)
def test_other_sizes_match_reference_parameter_counts(name, count):
    patch, hidden, layers, mlp, heads, expected = OTHER[name]
    build = functools.partial(
        keras_vit.VisionTransformer,
        patch_size=patch,
        hidden_size=hidden,
        num_layers=layers,
        mlp_dim=mlp,
        num_heads=heads,
    )
    _check(_columns(count, build, hidden, 378 if patch == 14 else 384), expected)


def test_counting_fixture_matches_count_params(count, monkeypatch):
    counted = count(keras_vit.R_ViT_Ti16, classes=7)
    monkeypatch.undo()
    assert keras_vit.R_ViT_Ti16(classes=7).count_params() == counted


def test_constructors_except_bit_have_reference_counts():
    assert {
        name for name in families.CONSTRUCTORS if not name.startswith("BiT")
    } == COUNTS.keys() | FAMILIES.keys() | DENSE.keys()


@pytest.mark.parametrize("name", DENSE)
def test_dense_model_matches_reference_parameter_count(name, count):
    assert count(getattr(keras_vit, name), input_shape=DENSE_SHAPES[name]) == DENSE[name]


@pytest.mark.parametrize("name", DENSE)
def test_docstring_of_dense_model_states_the_parameter_count(name, count):
    number = count(getattr(keras_vit, name))
    assert f"{number / 1e6:.1f}M parameters" in getattr(keras_vit, name).__doc__


@pytest.mark.parametrize("name", FAMILIES)
def test_family_size_matches_reference_parameter_count(name, count):
    assert count(getattr(keras_vit, name), include_top=False) == FAMILIES[name]
    assert f"{FAMILIES[name] / 1e6:.1f}M parameters" in getattr(keras_vit, name).__doc__


@pytest.mark.parametrize("name", COUNTS)
def test_docstring_states_the_parameter_count(name):
    assert f"{COUNTS[name][1] / 1e6:.1f}M parameters" in getattr(keras_vit, name).__doc__
