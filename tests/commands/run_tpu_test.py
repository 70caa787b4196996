"""Tests of the training script: what its runs write and print, and how they resume."""

import importlib.util
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from keras_vit import data, export
from keras_vit.models.any_model import weights_digest

from ..data.helpers import write_records
from ..shared import ROOT, SHORT_RUN, start_workers
from .conftest import error_line, random_pixels

TINY = (*SHORT_RUN, "--config.total_steps=60")
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


@pytest.fixture(scope="module")
def start(scripts):
    """Returns a function that starts a short run in a workdir, and returns its result."""

    def start_run(workdir, *flags):
        command = ("experiments/run_tpu.py", f"--workdir={workdir}", *TINY, *flags)
        return scripts.run(*command, cwd=ROOT)

    return start_run


@pytest.fixture(scope="module")
def run(start):
    """Returns a function that trains a short run in a workdir, and returns its output."""

    def train(workdir, *flags):
        done = start(workdir, *flags)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return train


def _results(workdir):
    return json.loads((workdir / "results.json").read_text())


@pytest.fixture(scope="module")
def finished(run, tmp_path_factory):
    """Returns the workdir and the output of a finished run."""
    workdir = tmp_path_factory.mktemp("run") / "digits"
    return workdir, run(workdir)


@pytest.fixture
def copied(finished, tmp_path):
    """Returns a copy of the finished run without its results."""
    workdir = tmp_path / "copied"
    shutil.copytree(finished[0], workdir, ignore=shutil.ignore_patterns("results.json"))
    return workdir


def test_run_prints_its_steps_and_its_results(finished):
    workdir, output = finished
    for text in (
        "training began after ",
        "step 20/60  loss ",
        "step 60/60  loss ",
        " images/s  0:00 left",
        "% on 360 test images",
        f"exported to {workdir}/export/1",
        "image of ",
    ):
        assert text in output
    lines = output.replace(str(workdir), "runs/digits").splitlines()
    assert max(map(len, lines)) <= 100
    results = _results(workdir)
    assert {"test/accuracy", "train/seconds", "train/images_per_second"} <= results.keys()
    assert all(isinstance(value, int | float) for value in results.values())


def test_export_has_the_accuracy_of_the_results(finished):
    workdir, _ = finished
    images, labels, _ = next(iter(data.eval_batches(data.load("digits")[1], batch_size=360)))
    signature = tf.saved_model.load(f"{workdir}/export/1").signatures["tensor"]
    probabilities = signature(images=images)["probabilities"].numpy()
    accuracy = (probabilities.argmax(-1) == labels.numpy().argmax(-1)).mean()
    assert accuracy == pytest.approx(_results(workdir)["test/accuracy"], abs=1e-6)


@pytest.mark.parametrize("name", ["predictions", "curve"])
def test_figures_are_drawn_or_need_matplotlib(name, finished):
    workdir, output = finished
    path = workdir / f"{name}.png"
    assert path.exists() == HAS_MATPLOTLIB
    assert (f"{path} was not drawn: matplotlib is not installed" in output) != HAS_MATPLOTLIB


def test_finished_run_is_reported_as_done(finished, run):
    workdir, _ = finished
    written = {file: file.stat().st_mtime_ns for file in workdir.rglob("*")}
    del written[workdir / "config.json"]
    assert run(workdir).startswith("This run is done: ")
    assert {file: file.stat().st_mtime_ns for file in written} == written


def test_run_without_results_keeps_its_export(finished, copied, run):
    graph = copied / "export/1/saved_model.pb"
    written = graph.stat().st_mtime_ns
    output = run(copied)
    assert "resuming from step 60" in output
    assert "already contains this model and is not changed" in output
    assert graph.stat().st_mtime_ns == written
    assert _results(copied)["test/accuracy"] == _results(finished[0])["test/accuracy"]


def test_extended_run_exports_its_new_model(copied, run):
    # The weights of export 1 are not read again.
    shutil.rmtree(copied / "export/1/variables")
    output = run(copied, "--config.total_steps=80", "--change")
    assert f"exported to {copied}/export/2" in output
    card = export.load_card(copied / "export/2")
    assert card["metrics"]["test/accuracy"] == _results(copied)["test/accuracy"]
    assert card["training"]["total_steps"] == 80
    digest = weights_digest(export.load(copied / "export/2"))
    assert card["weights_sha256"] == digest
    assert digest != export.load_card(copied / "export/1")["weights_sha256"]


def test_figure_that_cannot_be_drawn_does_not_end_the_run(copied, run):
    picture = copied / "predictions.png"
    picture.unlink(missing_ok=True)
    picture.mkdir()
    assert f"{picture} was not drawn: " in run(copied)
    assert (copied / "results.json").exists()


def test_diverged_run_writes_results_but_no_export(run, tmp_path):
    diverges = ["--config.schedule.base=1e30", "--config.clip_norm=0", "--config.skip_nonfinite"]
    output = run(tmp_path / "run", *diverges)
    assert "the model is not exported, because its weights or its test loss" in output
    assert (tmp_path / "run/results.json").exists()
    assert not (tmp_path / "run/export").exists()


def _write_split(path, count, channels):
    """Writes a TFRecord file of random images with 8 classes."""
    images = [image.tobytes() for image in random_pixels(count, 8, 8, channels)]
    write_records(path, images, [i % 8 for i in range(count)])


@pytest.mark.parametrize("channels", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_trains_on_images_with_2_or_6_channels(channels, run, tmp_path):
    _write_split(tmp_path / "train.tfrecord", 128, channels)
    _write_split(tmp_path / "test.tfrecord", 70, channels)
    fields = {
        "name": "tfrecords",
        "path": tmp_path,
        "train_split": "train.tfrecord",
        "test_split": "test.tfrecord",
        "classes": 8,
        "image_dtype": "uint8",
        "channels": channels,
        "image_shape": (8, 8, channels),
        "train_crop": "none",
        "eval_crop": "none",
        "flip": "off",
        "shift": 0,
    }
    flags = [f"--config.data.{name}={value}" for name, value in fields.items()]
    output = run(tmp_path / "run", *flags, "--config.batch_size=64")
    assert ("the export will have only the signature `tensor`" in output) == (channels == 6)
    assert _results(tmp_path / "run")["test/examples"] == 70
    assert (f"drew {tmp_path}/run/predictions.png" in output) == HAS_MATPLOTLIB


def test_stopped_run_saves_and_resumes(scripts, tmp_path):
    workdir = tmp_path / "stopped"
    # 500 steps last long enough for the signal to arrive before the last step.
    steps = "--config.total_steps=500"
    command = [sys.executable, "experiments/run_tpu.py", f"--workdir={workdir}", *TINY, steps]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        for line in process.stdout:
            if line.startswith("step  20/500"):
                process.send_signal(signal.SIGINT)
                break
        output = process.stdout.read()
    assert process.returncode == 75
    assert "stopped by SIGINT after step " in output
    assert not (workdir / "results.json").exists()
    # The last line is the command that resumes the run: `VARIABLE=VALUE... python ARGUMENTS`.
    command = shlex.split(output.splitlines()[-1])
    arguments = command[command.index(Path(sys.executable).name) + 1 :]
    done = scripts.run(*arguments, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "resuming from step " in done.stdout
    # No step is missing or repeated. The tests in tests/training check the values.
    _, *lines = (workdir / "metrics.csv").read_text().splitlines()
    assert [int(line.split(",")[0]) for line in lines] == list(range(1, 501))
    assert (workdir / "results.json").exists()


def test_workdir_of_another_config_is_refused(finished, start):
    line = error_line(start(finished[0], "--config.seed=1"))
    assert "seed was 0 and is 1. Choose another workdir" in line


def test_workdir_must_be_a_writable_folder(start, tmp_path):
    (tmp_path / "file").touch()
    assert "must be a writable folder" in error_line(start(tmp_path / "file/run"))


@pytest.mark.slow
def test_two_workers_finish_cleanly(scripts, tmp_path):
    script = ROOT / "experiments" / "run_tpu.py"
    workers = start_workers(scripts, script, f"--workdir={tmp_path / 'run'}", *TINY)
    outputs = [worker.wait() for worker in workers]
    assert [output.returncode for output in outputs] == [0, 0], outputs
    assert (tmp_path / "run" / "results.json").exists()
    for output in outputs:
        assert not re.search("crash|UNAVAILABLE|Traceback", output.stdout + output.stderr)
