"""The table of largest batches: resumed cell by cell, and read back."""

import dataclasses
import re
from pathlib import Path

import pytest

from keras_vit import families
from keras_vit.tpu import table
from keras_vit.tpu.plots import batch_by_image_size
from keras_vit.tpu.table import Row

CELLS = table.cells(["ViT-B/16", "ViT-H/14"], ["v3:2x2", "v5e:2x4"], [224, 384])


def _compute(row):
    error = 'UNIMPLEMENTED: no\nand why, "quoted"' if row.topology == "v5e:2x4" and row.model == "ViT-H/14" else ""
    batch = 0 if error else row.image_size
    return dataclasses.replace(row, batch_per_device=batch, images_per_second=0.1 + 0.2, error=error)


def test_a_table_has_every_cell_once_and_sizes_that_patches_fill():
    assert len(CELLS) == len({row.cell for row in CELLS}) == 2 * 2 * 2 * 2
    assert {row.image_size for row in CELLS if row.model == "ViT-H/14"} == {224, 378}
    models = ["ViT-B/32", "R50+ViT-B/16", "BiT-R50x1", "R50x1", "ViT-B/32"]
    cells = table.cells(models, ["v3:2x2"], [250], ["inference"])
    assert [row.cell[::2] for row in cells] == [("ViT-B/32", 224), ("R50+ViT-B/16", 240), ("BiT-R50x1", 250)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["ViT-X/9"], ["v3:2x2"], [224]), "known by name are"),
        ((["ViT-B/16"], ["v9:2x2"], [224]), "`topology` must be"),
        ((["ViT-B/16"], ["v3:2x2"], [224], ["serving"]), "`modes` must be of training, inference"),
        ((["ViT-B/16", "ViT-B/32"], ["v3:2x2"], [16]), "smaller than a patch of ViT-B/32. Received: image_size=16"),
        ((["ViT-B/16"], ["v3:2x2"], []), r"needs a model, a slice.*image_sizes=\[\]"),
    ],
)
def test_what_is_not_known_is_refused_before_the_first_cell(arguments, message):
    with pytest.raises(ValueError, match=message):
        table.cells(*arguments)


def test_a_table_that_was_stopped_goes_on_with_what_is_missing(tmp_path, monkeypatch):
    path, computed = tmp_path / "tpu.csv", []

    def compute(row):
        if len(computed) == 5:
            raise KeyboardInterrupt
        computed.append(row.cell)
        return _compute(row)

    monkeypatch.setattr(table, "compute_in_child", compute)
    with pytest.raises(KeyboardInterrupt):
        table.fill(path, CELLS, write=lambda line: None)
    assert len(table.read(path)) == 5
    monkeypatch.setattr(table, "compute_in_child", lambda row: (computed.append(row.cell), _compute(row))[1])
    lines = []
    rows = table.fill(path, CELLS, write=lines.append)
    assert lines[0] == "11 of 16 cells to compute" and len(computed) == len(set(computed)) == 16
    assert table.read(path) == rows == [_compute(row) for row in CELLS]
    assert table.fill(path, CELLS, write=lines.append) == rows and len(computed) == 16


def test_what_another_process_has_added_is_kept_and_not_computed_again(tmp_path, monkeypatch):
    path, computed = tmp_path / "tpu.csv", []

    def compute(row):
        if not computed:  # meanwhile another process computes the same cell and the last one
            table._write(path, [_compute(CELLS[0]), _compute(CELLS[-1])])
        computed.append(row.cell)
        return dataclasses.replace(row, batch_per_device=3)

    monkeypatch.setattr(table, "compute_in_child", compute)
    rows = table.fill(path, CELLS, write=lambda line: None)
    assert computed == [row.cell for row in CELLS[:-1]]
    assert rows == table.read(path) and rows[:2] == [_compute(CELLS[0]), _compute(CELLS[-1])]
    assert sorted(row.cell for row in rows) == sorted(row.cell for row in CELLS)


def test_a_table_of_another_backend_is_not_extended(tmp_path, monkeypatch):
    path = tmp_path / "tpu.csv"
    monkeypatch.setattr(table, "compute_in_child", _compute)
    table.fill(path, CELLS[:1], write=lambda line: None)
    monkeypatch.setattr(table.keras.backend, "backend", lambda: "another")
    with pytest.raises(ValueError, match="a file of its own. Received: .* of (tensorflow|jax), backend=another"):
        table.fill(path, CELLS, write=lambda line: None)


def test_a_cell_begins_with_the_batch_of_another_slice_in_proportion_to_the_memory(tmp_path, monkeypatch):
    first = {}

    def compute(row):
        first[row.cell] = row.batch_per_device
        return dataclasses.replace(row, batch_per_device=1000)

    monkeypatch.setattr(table, "compute_in_child", compute)
    table.fill(tmp_path / "tpu.csv", table.cells(["ViT-B/16"], ["v3:2x2", "v6e:2x4"], [224, 384]), lambda line: None)
    assert {cell[1:]: batch for cell, batch in first.items() if batch} == {
        ("v6e:2x4", size, mode): 2018 for size in (224, 384) for mode in table.MODES
    }


def test_a_row_is_computed_in_a_process_of_its_own(tpu_compiler):
    row = table.compute_in_child(Row("ViT-Ti/16", "v3:2x2", 16, "inference"))
    assert row.cell == ("ViT-Ti/16", "v3:2x2", 16, "inference") and not row.error
    assert row.batch_per_device > 1000 and row.images_per_second > 1000


def test_a_row_that_is_not_computed_is_named(tmp_path, tpu_compiler):
    row = Row("ViT-X/1", "v3:2x2", 16, "inference")
    with pytest.raises(ChildProcessError, match="ViT-X/1 on v3:2x2, 16 pixels, inference was not computed: .*ViT-X/1"):
        table.fill(tmp_path / "tpu.csv", [row], write=lambda line: None)


def test_a_file_that_is_no_table_is_refused(tmp_path):
    path = tmp_path / "tpu.csv"
    path.write_text("step,loss\n1,2\n")
    with pytest.raises(ValueError, match=r"The columns of the table must be model, topology.*step"):
        table.fill(path, CELLS, write=print)
    path.write_text(
        ",".join(field.name for field in dataclasses.fields(Row)) + "\nViT-B/16,v3:2x2,many,training,1,1,\n"
    )
    with pytest.raises(ValueError, match="Line 2 of the table is damaged"):
        table.read(path)


def test_the_markdown_has_a_line_for_each_model_and_size():
    lines = table.markdown([_compute(row) for row in CELLS]).splitlines()
    assert lines[0] == "| model | pixels | v3:2x2 training | v3:2x2 inference | v5e:2x4 training | v5e:2x4 inference |"
    assert {len(re.findall(r"\|", line)) for line in lines} == {7}
    assert "| ViT-B/16 | 384 | 384, 0.3/s | 384, 0.3/s | 384, 0.3/s | 384, 0.3/s |" in lines
    assert "| ViT-H/14 | 378 | 378, 0.3/s | 378, 0.3/s | does not compile | does not compile |" in lines


def test_the_markdown_has_thousands_and_columns_by_slice():
    large = dataclasses.replace(_compute(CELLS[0]), batch_per_device=12345, images_per_second=67890.1)
    inference = dataclasses.replace(_compute(CELLS[1]), topology="v5e:2x4")
    lines = table.markdown([inference, large, dataclasses.replace(large, topology="v5e:2x4")]).splitlines()
    assert lines[0] == "| model | pixels | v5e:2x4 training | v5e:2x4 inference | v3:2x2 training |"
    assert lines[2] == "| ViT-B/16 | 224 | 12,345, 67,890/s | 224, 0.3/s | 12,345, 67,890/s |"


def test_the_markdown_says_what_does_not_fit():
    small = dataclasses.replace(CELLS[1], error=table.NOTHING_FITS)
    lines = table.markdown([_compute(CELLS[0]), small]).splitlines()
    assert lines[2:] == ["| ViT-B/16 | 224 | 224, 0.3/s | not one image fits |"]


def test_the_docs_show_the_table_that_is_committed():
    docs = Path(__file__).parents[2] / "docs"
    rows = table.read(docs / "results" / "tpu.csv")
    assert table.markdown(rows) in (docs / "tpu_check.md").read_text(encoding="utf-8")
    models = [*families.sizes()]
    cells = table.cells(models, ["v3:2x2", "v5e:2x4", "v6e:2x4"], [224, 384])
    assert sorted(row.cell for row in rows) == sorted(row.cell for row in cells)
    for row in rows:
        assert row.error == ("" if row.batch_per_device and row.images_per_second else table.NOTHING_FITS)


def test_the_picture_has_a_line_for_each_model_that_fits(tmp_path):
    pytest.importorskip("matplotlib")
    batch_by_image_size(str(tmp_path / "tpu.svg"), [_compute(row) for row in CELLS])
    assert (tmp_path / "tpu.svg").stat().st_size > 5000
    with pytest.raises(ValueError, match="no row of inference"):
        batch_by_image_size(str(tmp_path / "none.png"), [row for row in CELLS if row.mode == "training"])
