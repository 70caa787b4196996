"""Tests that the recipes match the tables of the papers."""

import pytest

from keras_vit import data, families, recipes
from keras_vit.data.randaugment import LEVELS
from keras_vit.models.validation import patch_grid

# Independent copies of Tables 3 and 4 of the paper. The columns of Table 3 are models, dataset,
# epochs, learning rate, decay, weight decay and dropout; its last row names three examples for
# ViT-*. Table 4 has the number of steps and the learning rates for each dataset, with vtab/dtd as
# an example for VTAB. The number of warm-up steps between them is that of vit_jax.
TABLE_3 = """
ViT-B/16,ViT-B/32          jft300m       7      8e-4  linear  0.1   0.0
ViT-L/32                   jft300m       7      6e-4  linear  0.1   0.0
ViT-L/16                   jft300m       7/14   4e-4  linear  0.1   0.0
ViT-H/14                   jft300m       14     3e-4  linear  0.1   0.0
R50x1,R50x2                jft300m       7      1e-3  linear  0.1   0.0
R101x1                     jft300m       7      8e-4  linear  0.1   0.0
R152x1,R152x2              jft300m       7      6e-4  linear  0.1   0.0
R50+ViT-B/16,R50+ViT-B/32  jft300m       7      8e-4  linear  0.1   0.0
R50+ViT-L/32               jft300m       7      2e-4  linear  0.1   0.0
R50+ViT-L/16               jft300m       7/14   4e-4  linear  0.1   0.0
ViT-B/16,ViT-B/32          imagenet21k   90     1e-3  linear  0.03  0.1
ViT-L/16,ViT-L/32          imagenet21k   30/90  1e-3  linear  0.03  0.1
ViT-S/16,ViT-B/16,ViT-H/14 imagenet2012  300    3e-3  cosine  0.3   0.1
"""
TABLE_4 = {
    "imagenet2012": (20_000, 500, (0.003, 0.01, 0.03, 0.06)),
    "cifar100": (10_000, 500, (0.001, 0.003, 0.01, 0.03)),
    "cifar10": (10_000, 500, (0.001, 0.003, 0.01, 0.03)),
    "pets": (500, 100, (0.001, 0.003, 0.01, 0.03)),
    "flowers": (500, 100, (0.001, 0.003, 0.01, 0.03)),
    "vtab/dtd": (2_500, 500, (0.01,)),
}
# Without BiT ResNets, which have no patches, and NaFlex models, which take any size.
SIZES_WITH_RESOLUTION = {
    name: size
    for name, size in families.sizes().items()
    if not name.startswith("BiT-") and not size.get("max_patches")
}


def _table_3():
    for line in TABLE_3.strip().splitlines():
        models, dataset, epochs, base, decay, weight_decay, dropout = line.split()
        for model in models.split(","):
            for chosen in epochs.split("/"):
                choices = {"epochs": int(chosen)} if "/" in epochs else {}
                expected = (float(chosen), float(base), decay, float(weight_decay), float(dropout))
                yield pytest.param(
                    model, dataset, choices, expected, id=f"{model},{dataset},{chosen}"
                )


def test_tables_have_no_other_rows():
    assert len(recipes.TABLE_3) == len(TABLE_3.strip().splitlines())
    assert len(recipes.TABLE_4) == len(TABLE_4)


def test_datasets_of_table_4_are_known():
    names = [name for row in recipes.TABLE_4 for name in row.datasets if "*" not in name]
    assert set(names) <= set(data.DATASETS)


@pytest.mark.parametrize(("model", "dataset", "choices", "expected"), list(_table_3()))
def test_pretraining_matches_table_3(model, dataset, choices, expected):
    config = recipes.pretraining(model, dataset, **choices)
    epochs, base, decay, weight_decay, dropout = expected
    assert config["total_epochs"] == epochs
    assert config["schedule"] == {"decay": decay, "base": base, "warmup_steps": 10_000}
    assert config["optimizer"] == {"name": "adamw", "weight_decay": weight_decay}
    assert config["model"].get("dropout", 0.0) == dropout
    is_imagenet = dataset == "imagenet2012"
    assert config["model"]["head_bias"] == (-6.9 if is_imagenet else -10.0)
    assert config["clip_norm"] == (1.0 if is_imagenet else 0.0)
    assert (config["batch_size"], config["loss"]) == (4096, "sigmoid")


@pytest.mark.parametrize("dataset", TABLE_4)
def test_finetuning_matches_table_4(dataset):
    config = recipes.finetuning("ViT-B/16", dataset)
    steps, warmup_steps, rates = TABLE_4[dataset]
    assert (config["total_steps"], recipes.rates(dataset)) == (steps, rates)
    assert (config["batch_size"], config["clip_norm"], config["ema_decay"]) == (512, 1.0, 0.0)
    assert config["optimizer"] == {"name": "sgd", "momentum_dtype": "bfloat16"}
    base = 0.03 if 0.03 in rates else 0.01
    expected = {"decay": "cosine", "base": base, "warmup_steps": warmup_steps}
    assert config["schedule"] == expected
    assert (config["data"]["image_size"], config["data"]["resize_size"]) == (384, 448)
    assert config["data"]["exif"] == "off"  # a bool would refuse --config.data.exif=on


@pytest.mark.parametrize(
    ("model", "resolution", "dataset", "decay"),
    [
        ("ViT-L/16", 512, "imagenet2012", 0.9999),
        ("ViT-H/14", 518, "imagenet2012", 0.9999),
        ("ViT-L/16", 512, "pets", 0.0),
    ],
)
def test_only_imagenet_has_ema_at_large_size(model, resolution, dataset, decay):
    config = recipes.finetuning(model, dataset, resolution=resolution)
    assert (config["ema_decay"], config["data"]["image_size"]) == (decay, resolution)


@pytest.mark.parametrize("name", SIZES_WITH_RESOLUTION)
@pytest.mark.parametrize("is_large", [False, True])
def test_finetuning_resolution_fits_patch_size(name, is_large):
    size = SIZES_WITH_RESOLUTION[name]
    choices = {"resolution": 518 if size["patch_size"] == 14 else 512} if is_large else {}
    side = recipes.finetuning(name, "cifar10", **choices)["data"]["image_size"]
    assert min(patch_grid((side, side), size["patch_size"], size.get("resnet_blocks"))) > 1


def test_bit_resnet_has_two_names_and_no_dropout():
    for name in ("R50x1", "BiT-R50x1"):
        config = recipes.pretraining(name, "jft300m")
        assert "BiT-R50x1 on jft300m" in config["recipe"]
        assert (config["model"], config["schedule"]["base"]) == ({"head_bias": -10.0}, 1e-3)
    assert recipes.finetuning("R50x1", "cifar10")["model"] == {}


def test_augreg_choices_set_config_fields():
    choices = {"augreg": "medium2", "dropout": 0.1, "weight_decay": 0.03, "epochs": 30}
    config = recipes.augreg("ViT-S/16", "imagenet21k", **choices)
    assert config["total_epochs"] == 30.0 and isinstance(config["total_epochs"], float)
    assert (config["data"]["augreg"], config["optimizer"]["weight_decay"]) == ("medium2", 0.03)
    assert config["data"]["randaugment_form"] == "original"
    assert config["model"]["dropout"] == config["model"]["stochastic_depth"] == 0.1
    schedule = config["schedule"]
    assert (schedule["base"], schedule["decay"], config["clip_norm"]) == (1e-3, "cosine", 1.0)
    assert all(row.augreg == tuple(LEVELS) for row in recipes.AUGREG)


@pytest.mark.parametrize(
    ("preset", "model", "dataset", "choices", "message"),
    [
        ("pretraining", "ViT-L/16", "imagenet21k", {}, "epochs from 30.0, 90.0"),
        ("pretraining", "ViT-L/16", "jft300m", {"epochs": 8}, "epochs from 7.0, 14.0"),
        ("pretraining", "ViT-B/16", "jft300m", {"epochs": 7}, "no choices. Received: .*'epochs'"),
        ("pretraining", "ViT-H/14", "imagenet21k", {}, "rows for jft300m, imagenet2012"),
        ("pretraining", "ViT-B/16", "jft300m", {"model": 7}, "no choices. Received: .*'model'"),
        ("pretraining", "DeiT", "imagenet21k", {}, "no row for this model"),
        ("augreg", "R50x1", "imagenet2012", {}, "hybrid for AugReg. .*model='R50x1'"),
        ("finetuning", "ViT-B/16", "mnist", {}, "Table 4 has rows for .*dataset='mnist'"),
        ("finetuning", "ViT-H/14", "pets", {"resolution": 512}, "resolution=378 or 518"),
        ("finetuning", "ViT-B/16", "pets", {"dataset": 1}, "only resolution.*'dataset': 1"),
        ("finetuning", "ViT-B/16", "pets", {"rate": 0.1}, "only resolution.*'rate': 0.1"),
    ],
)
def test_rejects_choices_that_are_not_in_the_tables(preset, model, dataset, choices, message):
    with pytest.raises(ValueError, match=message):
        getattr(recipes, preset)(model, dataset, **choices)


def test_parse_config_arg():
    assert recipes.parse_config_arg("ViT-B/16,vtab/dtd") == ("ViT-B/16", "vtab/dtd", {})
    choices = {"epochs": 30, "dropout": 0.1, "augreg": "light1", "rate": 1e-3}
    text = "a,b,epochs=30,dropout=0.1,augreg=light1,rate=1e-3"
    assert recipes.parse_config_arg(text) == ("a", "b", choices)
    for text in ("ViT-B/16", ",b", "a,b,c"):
        with pytest.raises(ValueError, match=f"ViT-B/16,cifar10. Received: '{text}'"):
            recipes.parse_config_arg(text)
