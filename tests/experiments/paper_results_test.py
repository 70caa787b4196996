"""Tests that the tables copied from the paper agree with their own averages, with each other and
with the cost formula."""

import numpy as np
import paper_results as results
import pytest
from vtab import GROUPS

from keras_vit import cost, data, families, recipes


def test_averages_match_rows():
    for row in results.TABLE_7.values():
        assert len(row) == len(results.TABLE_7_COLUMNS)
        assert np.mean(row[:-1]) == pytest.approx(row[-1], abs=0.0051)
    assert len(results.TABLE_9) == sum(map(len, GROUPS.values())) == 19
    assert np.mean(results.TABLE_9) == pytest.approx(72.7, abs=0.051)  # also in Table 2


def test_datasets_have_all_tasks_of_vtab():
    tasks = {f"vtab/{task}" for tasks in GROUPS.values() for task in tasks}
    assert tasks == {name for name in data.DATASETS if name.startswith("vtab/")}


def test_tables_agree():
    table_6 = {(row.model, row.epochs): row for row in results.TABLE_6}
    for model in ("R50x1", "R152x2"):
        row = table_6[model, 7]
        expected = (row.imagenet, row.cifar10, row.cifar100, row.pets, row.flowers)
        assert results.TABLE_7[model, "Adam"][:-1] == expected
    assert len(results.TABLE_6) == 18
    assert len(results.TABLE_8) == 8


def test_exaflops_match_formula():
    for row in results.TABLE_6:
        name = families.canonical_name(row.model)
        model = cost.build_abstract(
            families.find_family(name).constructor, **families.sizes()[name]
        )
        forward = cost.multiply_accumulates(model, table_6=True)
        # 859 is an error in the paper. For the same model and twice the epochs, the table has 1668,
        # which is twice 834.
        expected = 834 if row.exaflops == 859 else row.exaflops
        images = row.epochs * recipes.NUM_EXAMPLES["jft300m"]
        # The largest difference, 2 %, is that of ViT-B/32: 55 in the paper, 56.1 by the formula.
        assert cost.exaflops(forward, images) == pytest.approx(expected, rel=0.021), row
