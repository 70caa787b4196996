"""Tests that the copied tables of the paper agree with their averages, each other and the cost
formula."""

import numpy as np
import paper_results as results
import pytest
from vtab_tasks import TASKS

import keras_vit
from keras_vit import cost, families


def test_averages_match_rows():
    for row in results.TABLE_7.values():
        assert len(row) == len(results.TABLE_7_COLUMNS)
        assert np.mean(row[:-1]) == pytest.approx(row[-1], abs=0.0051)
    for name, row in results.TABLE_9.items():
        assert len(row) == len(TASKS) + 1
        assert np.mean(row[:-1]) == pytest.approx(row[-1], abs=0.051)
        # Table 2 has the same mean, rounded differently.
        assert results.TABLE_2[name][6] == pytest.approx(row[-1], abs=0.051)


def test_tables_agree():
    table_6 = {(row.model, row.epochs): row for row in results.TABLE_6}
    fields = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100", "ImageNet": "imagenet"}
    fields |= {"ReaL": "real", "Flowers": "flowers", "Pets": "pets"}
    for (pretraining, dataset), row in results.TABLE_5.items():
        assert len(row) == len(results.TABLE_5_COLUMNS)
        if pretraining == "JFT":
            # The last value, ViT-H/14, is skipped because Tables 5 and 6 disagree on it.
            models = (("ViT-B/16", 7), ("ViT-B/32", 7), ("ViT-L/16", 14), ("ViT-L/32", 7))
            for model, value in zip(models, row):
                assert value == getattr(table_6[model], fields[dataset]), (model, dataset)
    for model in ("R50x1", "R152x2"):
        row = table_6[model, 7]
        expected = (row.imagenet, row.cifar10, row.cifar100, row.pets, row.flowers)
        assert results.TABLE_7[model, "Adam"][:-1] == expected
    assert len(results.TABLE_5) == 18
    assert len(results.TABLE_6) == 18
    assert len(results.TABLE_8) == 8
    assert all(len(row) == len(results.TABLE_2_COLUMNS) for row in results.TABLE_2.values())


def test_exaflops_match_formula():
    for row in results.TABLE_6:
        name = families.canonical_name(row.model)
        if name == "BiT-R200x3":
            model = cost.build_abstract(keras_vit.BiTResNet, depth=200, width_factor=3)
        else:
            model = cost.build_abstract(
                families.find_family(name).constructor, **families.sizes()[name]
            )
        forward = cost.multiply_accumulates(model, table_6=True)
        # 859 is an error in the paper. For the same model and twice the epochs, the table has 1668,
        # which is twice 834.
        expected = 834 if row.exaflops == 859 else row.exaflops
        assert cost.exaflops(forward, row.epochs * 303e6) == pytest.approx(expected, rel=0.021), row
