"""The README says what is so."""

import re
from pathlib import Path

import pytest

import keras_vit
from keras_vit.models import variants

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_table_of_models_has_every_size_and_its_parameters():
    from keras_vit.layers.resnet_stem import stem_output_channels, stem_output_side

    rows = re.findall(r"^\| `(\w*ViT_\w+)` \| (.*) \|$", README, re.MULTILINE)
    names = {name for name, value in vars(variants).items() if callable(value) and "ViT_" in name}
    assert {name for name, _ in rows} == names
    for name, row in rows:
        patch, d, layers, m, _, stem, count = (cell.strip() for cell in row.split("|"))
        patch, d, layers, m = int(patch), int(d), int(layers), int(m)
        side, channels, parameters = 224, 3, 0
        if stem:
            blocks = () if stem == "root only" else tuple(map(int, stem.strip("()").split(",")))
            side, channels = stem_output_side(224, blocks), stem_output_channels(blocks)
            parameters = {(): 9_536, (2, 2, 2, 2): 13_946_176, (3, 4, 9): 11_894_848, (3, 4, 6, 3): 23_508_032}[blocks]
        tokens = (side // patch) ** 2 + 1
        parameters += patch**2 * channels * d + d + d + tokens * d + layers * (4 * d * d + 2 * d * m + 9 * d + m)
        parameters += 2 * d + 1000 * d + 1000
        assert count == f"{parameters:,}", name


def test_what_the_readme_calls_exists():
    for name in set(re.findall(r"keras_vit\.(\w+)", README)):
        assert hasattr(keras_vit, name), name
    for path in set(re.findall(r"`((?:keras_vit|experiments|tests)/[\w/.]+)`", README)):
        assert (Path(__file__).parent.parent / path).exists(), path


@pytest.mark.filterwarnings("ignore:The structure of `inputs`")
def test_the_example_of_ones_own_model_runs():
    code = re.search(r"### A model of one's own\n\n```python\n(.*?)```", README, re.DOTALL).group(1)
    names = {}
    exec(code, names)
    assert names["model"].output_shape == (None, 10)
