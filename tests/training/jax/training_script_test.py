"""On JAX, the training script trains, exports a SavedModel and predicts. Bad input is a one-line
error."""

import json
import re

import pytest

from ...shared import ROOT, SHORT_RUN

TINY = (*SHORT_RUN, "--config.total_steps=40")


@pytest.fixture
def run(scripts):
    """Returns a function that runs experiments/run_tpu.py with its arguments."""
    return lambda *arguments: scripts.run("experiments/run_tpu.py", *arguments, cwd=ROOT)


def test_script_trains_evaluates_exports_and_predicts(run, tmp_path):
    done = run(f"--workdir={tmp_path}/run", *TINY)
    assert done.returncode == 0, done.stderr
    for text in (
        "JAX on 4 x cpu, weights and optimizer replicated: 4 x 16 images per step",
        "step 40/40  loss ",
        f"exported to {tmp_path}/run/export/1",
        "image of ",
    ):
        assert text in done.stdout
    assert (tmp_path / "run" / "export" / "1" / "saved_model.pb").exists()
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert 0 < results["test/accuracy"] < 1
    assert "jax" in json.loads((tmp_path / "run" / "command.json").read_text())["versions"]


@pytest.mark.slow
def test_bad_input_is_a_one_line_error(run, tmp_path):
    done = run(f"--workdir={tmp_path}/run", *TINY, "--config.shard=parameters")
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert re.search(
        "`shard` must be '' for this model.*Received: shard='parameters', devices=4", last
    ), last
