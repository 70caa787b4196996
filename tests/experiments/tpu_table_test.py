"""Tests of the table of maximum batch sizes on TPUs."""

import dataclasses
import importlib.util
import json
import types

import keras
import pytest
import tpu_table as table
from tpu_table import Row

from keras_vit.tpu.program import Program
from keras_vit.tpu.topologies import get_topology

from ..shared import ROOT

ROWS = table.empty_rows(["ViT-B/16", "ViT-H/14"], ["v3:2x2", "v5e:2x4"], [224, 384])
GIB = 2**30


def test_table_has_every_row_once_and_valid_image_sizes():
    assert len(ROWS) == len({row.key for row in ROWS}) == 2 * 2 * 2 * 2
    assert {row.image_size for row in ROWS if row.model == "ViT-H/14"} == {224, 378}
    models = ["ViT-B/32", "R50+ViT-B/16", "BiT-R50x1", "R50x1", "ViT-B/32"]
    rows = table.empty_rows(models, ["v3:2x2"], [250], ["inference"])
    assert [row.key[:3:2] for row in rows] == [
        ("ViT-B/32", 224),
        ("R50+ViT-B/16", 240),
        ("BiT-R50x1", 250),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["ViT-B/16"], ["v3:2x2"], [224], ["serving"]), "`modes` must be among training"),
        ((["ViT-B/16", "ViT-B/32"], ["v3:2x2"], [16]), "smaller than a patch of ViT-B/32"),
    ],
)
def test_rejects_invalid_rows(arguments, message):
    with pytest.raises(ValueError, match=message):
        table.empty_rows(*arguments)


def test_interrupted_table_computes_missing_rows(tmp_path, monkeypatch):
    path = tmp_path / "tpu.csv"
    computed = []

    def run_python(arguments, **environment):
        row = json.loads(arguments[-1].removeprefix("--row="))
        computed.append(Row(**row).key)
        if len(computed) == 6:
            raise KeyboardInterrupt
        if row["model"] == "ViT-H/14":
            return json.dumps(row | {"error": 'UNIMPLEMENTED: no\nand why, "quoted"'})
        return json.dumps(row | {"batch_per_device": 8, "images_per_second": 0.1 + 0.2})

    monkeypatch.setattr(table.files, "run_python", run_python)
    monkeypatch.setattr(table.compiler, "check_installed", lambda: None)
    with pytest.raises(KeyboardInterrupt):
        table.fill(path, ROWS, write=lambda line: None)
    assert len(table.read(path)) == 5
    lines = []
    rows = table.fill(path, ROWS, write=lines.append)
    assert lines[0] == "11 of 16 rows to compute"
    assert len(computed) == 17
    assert table.read(path) == rows
    assert [row.key for row in rows] == [row.key for row in ROWS]


class _Programs:
    """Fake compiler for programs that need 1 GiB plus `per_image` bytes for each image."""

    per_image = GIB // 10
    error = ""
    state_bytes = gradient_bytes = GIB

    def __init__(self, config, task, inputs, topology, total_steps):
        assert config.precision == "mixed_bfloat16"
        assert inputs.image_shape == (224, 224, 3)
        self.topology = topology
        inputs = keras.Input((2, 3))
        self.model = keras.Model(inputs, keras.layers.Dense(5)(inputs))

    def train(self, batch_size, accumulate_steps):
        memory = GIB + batch_size // self.topology.num_devices * self.per_image
        if self.error:
            return Program(False, self.error)
        if memory > self.topology.device.memory_bytes:
            return Program(False, "RESOURCE_EXHAUSTED", True, required_bytes=memory)
        return Program(True, temporary_bytes=memory, bytes_accessed=450e9)

    evaluation = train


@pytest.mark.parametrize("mode", table.MODES)
def test_row_has_largest_batch_and_its_speed(monkeypatch, mode):
    monkeypatch.setattr(table, "programs_class", lambda: _Programs)
    row = table.compute(Row("ViT-B/16", "v3:2x2", 224, mode))
    assert 130 <= row.batch_per_device <= 144
    assert not row.error
    seconds = 1.0
    if mode == "training":  # the gradients are summed
        seconds += 2 * 7 / 8 * GIB / get_topology("v3:2x2").device.interconnect
    assert row.images_per_second == pytest.approx(row.batch_per_device / seconds, rel=5e-3)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [("per_image", 20 * GIB, table.NOTHING_FITS), ("error", "no", "no")],
)
def test_row_has_error_if_nothing_fits_or_compiles(monkeypatch, name, value, error):
    monkeypatch.setattr(table, "programs_class", lambda: _Programs)
    monkeypatch.setattr(_Programs, name, value)
    row = Row("ViT-H/14", "v3:2x2", 224, "training")
    assert table.compute(row) == dataclasses.replace(row, error=error)


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="no libtpu: pip install -e '.[cpu,aot]'"
)
def test_fill_computes_a_row_with_libtpu(tmp_path):
    empty = Row("ViT-Ti/16", "v3:2x2", 16, "inference")
    (row,) = table.fill(tmp_path / "t.csv", [empty], lambda line: None)
    assert row.batch_per_device > 1000
    assert row.images_per_second > 1000
    assert not row.error


def test_default_models_are_those_of_the_committed_table(monkeypatch):
    defaults = {}
    names = ("DEFINE_string", "DEFINE_list")
    fakes = dict.fromkeys(names, lambda name, default, _: defaults.update({name: default}))
    monkeypatch.setattr(table, "flags", types.SimpleNamespace(**fakes))
    table.define_flags()
    rows = table.read(ROOT / "docs/results/tpu.csv")
    assert set(defaults["models"]) == {row.model for row in rows}


def test_committed_table_has_every_row():
    rows = table.read(ROOT / "docs/results/tpu.csv")
    models = list(dict.fromkeys(row.model for row in rows))
    assert len(models) == 25
    expected = table.empty_rows(models, ["v3:2x2", "v5e:2x4", "v6e:2x4"], [224, 384])
    assert sorted(row.key[:4] for row in rows) == sorted(row.key[:4] for row in expected)
    for row in rows:
        fits = row.batch_per_device and row.images_per_second
        assert row.error == ("" if fits else table.NOTHING_FITS)
