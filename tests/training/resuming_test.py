"""Tests that a stopped and resumed run has exactly the results of an uninterrupted run, on
TensorFlow."""

import functools
import os
import shutil
import signal

import pytest

import keras_vit
from keras_vit import data, training
from keras_vit.training.checkpoint_manager import finished_steps

from ..shared import (
    GOLDEN,
    GOLDEN_SIZES,
    assert_same_arrays,
    assert_same_weights,
    read_arrays,
    start_workers,
    tables_of,
)
from . import small_run
from .resume_checks import (
    assert_resume_is_bit_exact,
    assert_sigterm_saves,
    assert_steps_per_call_change_nothing,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Returns `run(kind)`, which trains without interruption.

    `kind` is a key of `small_run.KINDS`. `run` returns the workdir, the `RunResult` and a copy of
    the workdir after step 5.
    """

    @functools.cache
    def run(kind):
        folder = tmp_path_factory.mktemp(kind)
        workdir = folder / "run"
        write = small_run.writer(workdir, "after step 5", folder / "copy")
        return workdir, small_run.start(kind, workdir, write), folder / "copy"

    return run


@pytest.mark.parametrize(
    ("kind", "moment", "step"),
    [
        ("alone", "saving", 4),
        pytest.param("alone", "step  7/11", 5, marks=pytest.mark.slow),
        pytest.param("mirrored", "after step 5", 5, marks=pytest.mark.slow),
    ],
)
def test_resume_after_sigkill_is_bit_exact(kind, moment, step, whole, scripts, tmp_path):
    died = scripts.run(small_run.__file__, kind, tmp_path, moment)
    assert died.returncode == -9, died.stderr
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) > step
    assert_resume_is_bit_exact(tmp_path, kind, step, whole(kind))


@pytest.mark.parametrize("kind", ["mirrored", "patch_sizes"])
def test_resume_is_bit_exact(kind, whole):
    _, _, copy = whole(kind)
    assert finished_steps(copy / "checkpoints") == [4, 5]
    assert_resume_is_bit_exact(copy, kind, 5, whole(kind))


def test_sigterm_saves_and_next_call_resumes(whole, tmp_path):
    assert_sigterm_saves(tmp_path, whole("alone"))


def test_steps_per_call_change_nothing(whole, tmp_path, monkeypatch):
    assert_steps_per_call_change_nothing(tmp_path, whole("alone"), monkeypatch)


def test_only_interrupted_evaluation_is_repeated(whole, tmp_path):
    """After SIGTERM, the current evaluation finishes and is not repeated."""
    calls = []

    def evaluate(model, inputs, engine):
        calls.append(len(calls))
        if calls[-1] == 0:
            raise KeyboardInterrupt
        if calls[-1] == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return {"score": 0.5}

    toy = small_run.toy_evaluator(evaluate)
    with pytest.raises(KeyboardInterrupt):
        small_run.start("alone", tmp_path, **toy)
    assert finished_steps(tmp_path / "checkpoints") == [4, 5]
    with pytest.raises(training.Preempted, match="stopped by SIGTERM after step 5 and saved"):
        small_run.start("alone", tmp_path, **toy)
    small_run.start("alone", tmp_path, **toy)
    assert len(calls) == 4  # the interrupted evaluation, steps 5 and 10, and the final evaluation
    expected = tables_of(whole("alone")[0])
    assert (tmp_path / "metrics.csv").read_text() == expected["metrics.csv"]
    rows = (tmp_path / "evaluations.csv").read_text().splitlines()
    # The expected rows have no column of the evaluator `toy`.
    assert [row.rpartition(",")[0] for row in rows] == expected["evaluations.csv"].splitlines()


def test_resume_needs_no_file_of_initial_weights(tmp_path):
    """The file determines the GELU, the epsilon and the normalization of the images."""
    weights = tmp_path / "hf_token.safetensors"
    changes = {
        "model": {name: size for name, size in GOLDEN_SIZES.items() if name != "classes"},
        "weights": str(weights),
        "data": data.defaults(name="digits", image_size=32),
        "batch_size": 8,
        "total_steps": 4,
        "checkpoint_every_steps": 2,
        "eval_every_steps": 0,
    }
    shutil.copy(GOLDEN / weights.name, weights)
    expected = small_run.start("alone", tmp_path / "whole", **changes).model
    run = tmp_path / "run"
    small_run.stop_before("step 3/4", run, **changes)
    weights.unlink()
    loaded = training.load_checkpoint(run)[0].model
    resumed = small_run.start("alone", run, **changes).model
    assert_same_weights(resumed, expected)
    for model in (loaded, resumed):
        block = model.get_layer("encoderblock_0")
        assert block.exact_gelu and block.epsilon == 1e-12
        assert keras_vit.preprocessing_of(model) == keras_vit.preprocessing_of(expected)


def _workers(scripts, workdir, moment="", copy=""):
    """Starts two workers and returns their `Script` objects.

    When process 0 prints a line that starts with `moment`, it copies the workdir to `copy` or, if
    `copy` is empty, kills itself.
    """
    return start_workers(scripts, small_run.__file__, "workers", workdir, moment, copy)


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_resume_of_two_workers_is_bit_exact(killed, scripts, tmp_path):
    moment = "step  7/11"
    ended = [
        process.wait()
        for process in _workers(scripts, tmp_path / "whole", moment, tmp_path / "stopped")
    ]
    assert "MultiWorkerMirroredStrategy: 2 x 160 images per step" in ended[0].stdout, ended
    if killed:
        shutil.rmtree(tmp_path / "stopped")
        processes = _workers(scripts, tmp_path / "stopped", moment)
        ended = [processes[0].wait()]
        os.kill(processes[1].pid, signal.SIGKILL)  # do not wait until process 1 times out
        ended.append(processes[1].wait())
        assert [process.returncode for process in ended] == [-9, -9], ended
    ended = [process.wait() for process in _workers(scripts, tmp_path / "stopped")]
    assert "resuming from step 5," in ended[0].stdout, ended
    assert tables_of(tmp_path / "stopped") == tables_of(tmp_path / "whole")
    assert_same_arrays(
        *(read_arrays(tmp_path / name / "weights.npz") for name in ("stopped", "whole"))
    )


def _start_with_early_stop(folder, write=print, **changes):
    """Trains until the score of an evaluator has been at most as good twice in a row."""
    scores = {2: 0.5, 4: 0.9, 6: 0.9, 8: 0.8, 10: 0.7}

    def evaluate(model, inputs, engine):
        return {"score": scores[max(finished_steps(folder / "checkpoints"))]}

    changes |= {
        **small_run.toy_evaluator(evaluate),
        "best_metric": "toy/score",
        "eval_every_steps": 2,
        "early_stop_evals": 2,
    }
    return small_run.start("alone", folder, write, **changes)


def test_early_stop_exports_best_and_resumes_bit_exactly(tmp_path):
    folder = tmp_path / "whole"
    lines = []
    copying = small_run.writer(folder, "step  7/11", tmp_path / "copy", write=lines.append)
    uninterrupted = _start_with_early_stop(folder, copying)
    # The loss breaks the tie of steps 4 and 6.
    step = uninterrupted.metrics["train/model_step"]
    assert step in (4, 6)
    assert f"using the best checkpoint by toy/score, of step {step}" in "".join(lines)
    assert max(finished_steps(folder / "checkpoints")) == step + 4
    assert len(tables_of(folder)["metrics.csv"].splitlines()) == 1 + step + 4
    result, _ = training.load_checkpoint(folder)
    assert_same_weights(result.model, uninterrupted.model)
    resumed = _start_with_early_stop(tmp_path / "copy")
    assert resumed.metrics["train/model_step"] == step
    assert tables_of(tmp_path / "copy") == tables_of(folder)
    assert_same_weights(resumed.model, uninterrupted.model)


def test_early_stop_can_export_the_last_model(tmp_path):
    folder = tmp_path / "last"
    last = _start_with_early_stop(folder, export_model="last")
    step = last.metrics["train/model_step"]
    assert step == max(finished_steps(folder / "checkpoints")) < small_run.STEPS
    (folder / "results.json").write_text("{}")  # as `keras-vit train` marks finished runs
    result, config = training.load_checkpoint(folder)
    assert_same_weights(result.model, last.model)
    assert config == training.read_config(folder) and config.strategy == "auto"
