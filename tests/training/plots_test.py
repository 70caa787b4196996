"""Tests of the plots of a run's metrics."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from keras_vit.training import plots


@pytest.mark.parametrize("rows", [0, 1, 500])  # 500 rows also have a moving average
def test_training_curve_is_a_png(rows, tmp_path):
    columns = {name: np.arange(rows) for name in ("step", "loss", "accuracy")}
    evaluations = {name: columns[name][::100] for name in ("step", "accuracy")}
    plots.training_curve(tmp_path / "curve.png", columns, evaluations)
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("bad", "expected"), [([0, 0], ["loss"]), ([0, 1], ["loss", "bad examples"])]
)
def test_training_curve_shows_bad_examples_only_if_any(bad, expected, tmp_path, monkeypatch):
    titles = []

    class Recorder(plots.figure_class()):
        def savefig(self, *args, **kwargs):
            titles.extend(axes.get_title() for axes in self.axes if axes.get_title())

    monkeypatch.setattr(plots, "figure_class", lambda: Recorder)
    columns = {"step": [1, 2], "loss": [2.0, 1.0], "bad_examples": bad}
    plots.training_curve(tmp_path / "curve.png", columns)
    assert titles == expected
