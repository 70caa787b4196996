"""Tests of the error messages of the training script."""

import re

import pytest

from ..shared import ROOT, SHORT_RUN
from .conftest import error_line


@pytest.fixture
def run(scripts, tmp_path):
    """Returns a function that runs the script with the workdir `run` in the temporary folder."""
    workdir = f"--workdir={tmp_path / 'run'}"
    script = "experiments/run_tpu.py"
    return lambda *arguments: scripts.run(script, workdir, *arguments, cwd=ROOT)


@pytest.mark.parametrize(
    ("evals", "message"),
    [
        (("real:real.json@nowhere",), "nowhere"),
        (("top1", "knn:folder@nowhere"), "knn:folder@nowhere cannot load its dataset"),
    ],
)
def test_evaluators_are_checked_before_the_first_step(evals, message, run, tmp_path):
    done = run(*SHORT_RUN, "--config.total_steps=60", f"--config.evals={evals}")
    assert message in error_line(done)
    assert "step" not in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.model.hiden_size=3"], 'no such field: .*Did you mean "hidden_size"'),
        (["--config=digit"], "--config must be a file or one of digits, .*digit"),
        (["--config=digits:pets"], "does not fit the text after the colon of --config"),
        (["digits"], "this command takes only flags. Received: digits"),
        (["--config.model.num_heads=5"], "must divide `hidden_size`. Received: num_heads=5"),
        (["--config.strategy=tpu"], "No TPU was found: .*Received: strategy='tpu'"),
        # Raised by absl, by ml_collections and by the names of the datasets.
        pytest.param(["--wrkdir=3"], "Did you mean: workdir", marks=pytest.mark.slow),
        pytest.param(["--config.batch_size=0.5"], "invalid literal", marks=pytest.mark.slow),
        pytest.param(["--config.data.name=mnist"], "one of digits", marks=pytest.mark.slow),
    ],
)
def test_bad_input_ends_in_one_line(arguments, message, run, tmp_path):
    done = run(*arguments)
    assert re.search(message, error_line(done))
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
