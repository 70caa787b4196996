import numpy as np
import pytest

pytest.importorskip("matplotlib")

from keras_vit.training import plots


def _columns(rows):
    steps = np.arange(1, rows + 1)
    random = np.random.default_rng(0).standard_normal(rows)
    return {
        "step": steps,
        "loss": 2 * np.exp(-steps / rows * 3) + 0.1 * random,
        "accuracy": 1 - np.exp(-steps / rows * 3),
        "learning_rate": 0.03 * 0.5 * (1 + np.cos(np.pi * steps / rows)),
        "grad_norm": 1 + 0.2 * random**2,
        "skipped": np.zeros(rows),
    }


@pytest.mark.parametrize("rows", [0, 1, 500])
def test_training_curve_is_a_png(rows, tmp_path):
    columns = _columns(rows)
    evaluations = {"step": columns["step"][::100], "accuracy": columns["accuracy"][::100]}
    plots.training_curve(tmp_path / "curve.png", columns, evaluations)
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_training_curve_shows_bad_examples_only_if_any(tmp_path, monkeypatch):
    titles = []

    class Recorder(plots.figure_class()):
        def savefig(self, *args, **kwargs):
            titles.append([axes.get_title() for axes in self.axes if axes.get_title()])

    monkeypatch.setattr(plots, "figure_class", lambda: Recorder)
    for bad in ([0, 0], [0, 1]):
        columns = {"step": [1, 2], "loss": [2.0, 1.0], "bad_examples": bad}
        plots.training_curve(tmp_path / "curve.png", columns)
    assert titles == [["loss"], ["loss", "bad examples"]]
