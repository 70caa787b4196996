"""Tests of the training script: command line, workdir and messages."""

import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from ..shared import ROOT, SHORT_RUN, worker_tasks

TINY = (*SHORT_RUN, "--config.total_steps=60")


@pytest.fixture
def run(scripts):
    return lambda *arguments: scripts.run("experiments/run_tpu.py", *arguments, cwd=ROOT)


def _error(done):
    """Returns the error line of a failed command, which must be the only line on standard error."""
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Returns the workdir and the output of a finished run."""
    workdir = tmp_path_factory.mktemp("run") / "digits"
    command = [sys.executable, "experiments/run_tpu.py", f"--workdir={workdir}", *TINY]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return workdir, done.stdout


def test_run_trains_evaluates_exports_and_predicts(finished):
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
    assert (
        max(len(line.replace(str(workdir), "runs/digits")) for line in output.splitlines()) <= 100
    )
    results = json.loads((workdir / "results.json").read_text())
    assert {"test/accuracy", "train/seconds", "train/images_per_second"} <= results.keys()
    assert all(isinstance(value, int | float) for value in results.values())
    assert 0 < results["test/accuracy"] < 1
    assert (workdir / "export" / "1" / "saved_model.pb").exists()


def test_export_accuracy_matches_the_results(finished):
    import tensorflow as tf

    from keras_vit import data

    workdir, _ = finished
    images, labels, _ = next(iter(data.eval_batches(data.load("digits")[1], batch_size=360)))
    signature = tf.saved_model.load(f"{workdir}/export/1").signatures["tensor"]
    probabilities = signature(images=images)["probabilities"].numpy()
    np.testing.assert_allclose(probabilities.sum(-1), 1, atol=1e-5)
    accuracy = (probabilities.argmax(-1) == labels.numpy().argmax(-1)).mean()
    assert accuracy == pytest.approx(
        json.loads((workdir / "results.json").read_text())["test/accuracy"], abs=1e-6
    )


def test_figures_require_matplotlib(finished):
    workdir, output = finished
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        assert "predictions.png was not drawn: matplotlib is not installed" in output
        assert not list(workdir.glob("*.png"))
    else:
        for picture in ("predictions.png", "curve.png"):
            assert (workdir / picture).read_bytes().startswith(b"\x89PNG")


def test_finished_run_is_reported_as_done(finished, run):
    workdir, _ = finished
    before = {
        file: file.stat().st_mtime_ns for file in workdir.rglob("*") if file.name != "config.json"
    }
    done = run(f"--workdir={workdir}", *TINY)
    assert done.returncode == 0
    assert done.stdout.startswith("This run is done: ")
    assert {file: file.stat().st_mtime_ns for file in before} == before


def test_run_without_results_keeps_its_export(finished, run, tmp_path):
    workdir = tmp_path / "again"
    shutil.copytree(finished[0], workdir)
    (workdir / "results.json").unlink()
    graph = workdir / "export" / "1" / "saved_model.pb"
    written = graph.stat().st_mtime_ns
    done = run(f"--workdir={workdir}", *TINY)
    assert done.returncode == 0, done.stderr
    assert "resuming from step 60" in done.stdout
    assert "already contains this model and is not changed" in done.stdout
    assert graph.stat().st_mtime_ns == written
    ours, theirs = (json.loads((w / "results.json").read_text()) for w in (workdir, finished[0]))
    assert ours["test/accuracy"] == theirs["test/accuracy"]


@pytest.fixture(scope="module")
def extended(finished, scripts, tmp_path_factory):
    """Extends a run that stopped after its export. Returns the workdir and the output.

    A folder named predictions.png prevents drawing the figure.
    """
    workdir = tmp_path_factory.mktemp("run") / "extended"
    shutil.copytree(finished[0], workdir)
    (workdir / "results.json").unlink()
    # The weights of export 1 are not read again.
    shutil.rmtree(workdir / "export" / "1" / "variables")
    (workdir / "predictions.png").unlink(missing_ok=True)
    (workdir / "predictions.png").mkdir()
    flags = (f"--workdir={workdir}", *TINY, "--config.total_steps=80", "--change")
    done = scripts.run("experiments/run_tpu.py", *flags, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return workdir, done.stdout


def test_extended_run_exports_its_new_model(extended):
    from keras_vit import export
    from keras_vit.models.any_model import weights_digest

    workdir, output = extended
    assert f"exported to {workdir}/export/2" in output
    card, before = (export.load_card(workdir / "export" / number) for number in "21")
    results = json.loads((workdir / "results.json").read_text())
    assert card["metrics"]["test/accuracy"] == results["test/accuracy"]
    assert card["training"]["total_steps"] == 80
    digest = weights_digest(export.load(workdir / "export" / "2"))
    assert card["weights_sha256"] == digest != before["weights_sha256"]


def test_figure_that_cannot_be_drawn_is_reported(extended):
    workdir, output = extended
    assert "predictions.png was not drawn: " in output
    assert (workdir / "results.json").exists()


def test_diverged_run_writes_results_but_no_export(run, tmp_path):
    diverges = ["--config.schedule.base=1e30", "--config.clip_norm=0", "--config.skip_nonfinite"]
    done = run(f"--workdir={tmp_path}/run", *TINY, *diverges)
    assert done.returncode == 0, done.stderr
    assert (
        "the model is not exported, because its weights or its test loss are not finite"
        in done.stdout
    )
    assert (tmp_path / "run" / "results.json").exists()
    assert not (tmp_path / "run" / "export").exists()


@pytest.mark.parametrize("channels", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_trains_on_images_with_2_or_6_channels(channels, run, tmp_path):
    random = np.random.default_rng(0)
    for split, count in (("train", 128), ("test", 70)):
        with tf.io.TFRecordWriter(f"{tmp_path}/{split}.tfrecord") as file:
            for i in range(count):
                example = tf.train.Example()
                image = random.integers(0, 256, (8, 8, channels), "uint8")
                example.features.feature["image/encoded"].bytes_list.value.append(image.tobytes())
                example.features.feature["image/class/label"].int64_list.value.append(i % 8)
                file.write(example.SerializeToString())
    splits = [f"--config.data.{split}_split={split}.tfrecord" for split in ("train", "test")]
    fields = {
        "name": "tfrecords",
        "path": tmp_path,
        "classes": 8,
        "image_dtype": "uint8",
        "channels": channels,
    }
    fields |= {
        "image_shape": (8, 8, channels),
        "train_crop": "none",
        "eval_crop": "none",
        "flip": "off",
        "shift": 0,
    }
    flags = [f"--config.data.{name}={value}" for name, value in fields.items()]
    done = run(f"--workdir={tmp_path}/run", *TINY, *splits, *flags, "--config.batch_size=64")
    assert done.returncode == 0, done.stderr
    assert ("the export will have only the signature `tensor`" in done.stdout) == (channels == 6)
    assert json.loads((tmp_path / "run" / "results.json").read_text())["test/examples"] == 70
    assert f"drew {tmp_path}/run/predictions.png" in done.stdout or not importlib.util.find_spec(
        "matplotlib"
    )


@pytest.mark.parametrize(
    ("evals", "message"),
    [
        (("fewshot:digitz",), "fewshot:digitz cannot load its dataset"),
        (("real:real.json@nowhere",), "nowhere"),
        (("top1", "knn:folder@nowhere"), "knn:folder@nowhere cannot load its dataset"),
        (("imagenet_v2:cifar100@nowhere",), "imagenet_v2:cifar100@nowhere cannot load its dataset"),
    ],
)
def test_evaluators_are_checked_before_the_first_step(evals, message, run, tmp_path):
    done = run(f"--workdir={tmp_path}/run", *TINY, f"--config.evals={evals}")
    assert message in _error(done)
    assert "step" not in done.stdout
    assert not list(tmp_path.iterdir())


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
    printed = output.splitlines()[-1].strip()
    words = shlex.split(printed)
    done = scripts.run(*words[words.index(Path(sys.executable).name) + 1 :], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "resuming from step " in done.stdout
    # No step is missing or repeated; tests/training checks the values.
    lines = (workdir / "metrics.csv").read_text().splitlines()[1:]
    assert [int(line.split(",")[0]) for line in lines] == list(range(1, 501))
    assert (workdir / "results.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--config.model.hiden_size=3"],
            'the config has no such field: .*Did you mean "hidden_size"',
        ),
        pytest.param(
            ["--config.batch_sise=3"],
            "the config has no such field: .*batch_size",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["--config.batch_size=0.5"],
            "flag --config.batch_size=0.5: invalid literal for int",
            marks=pytest.mark.slow,
        ),
        (["--config=experiments/configs/nothing.py"], "--config must be a file or one of digits"),
        (
            ["--config=digit"],
            r"--config must be a file or one of digits, .*digit",
        ),
        pytest.param(
            ["--wrkdir=3"],
            "Unknown command line flag 'wrkdir'. Did you mean: workdir",
            marks=pytest.mark.slow,
        ),
        (["digits"], "this command takes only flags. Received: digits"),
        pytest.param(
            ["--config.data.name=mnist"],
            "must be one of digits.*Received: name='mnist'",
            marks=pytest.mark.slow,
        ),
        (
            ["--config.model.num_heads=5"],
            "`num_heads` must divide `hidden_size`. Received: num_heads=5",
        ),
        (["--config.strategy=tpu"], "No TPU was found: .*Received: strategy='tpu'"),
        pytest.param(
            ["--config.strategy=gpus"],
            "`strategy` must be one of .*Received: strategy='gpus'",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["--config.total_steps=5", "--config.total_epochs=3"],
            "One of `total_steps` and `total_epochs`.*Received: total_steps=5, total_epochs=",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["--config.precision=float8"],
            "`precision` must be one of .*Received: precision='float8'",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_bad_input_ends_in_one_line(arguments, message, run, tmp_path):
    import re

    error = _error(run(f"--workdir={tmp_path}/run", *arguments))
    assert re.search(message, error), error
    assert not list(tmp_path.iterdir())


def test_rejects_unusable_workdir(finished, run, tmp_path):
    assert "seed was 0 and is 1. Choose another workdir" in _error(
        run(f"--workdir={finished[0]}", *TINY, "--config.seed=1")
    )
    (tmp_path / "file").write_text("")
    assert "must be a writable folder" in _error(run(f"--workdir={tmp_path}/file/run"))


def test_help_lists_config_and_workdir_flags(run):
    done = run("--help")
    assert "--config" in done.stdout
    assert "--workdir" in done.stdout
    assert "Trains a model" in done.stdout


@pytest.mark.slow
def test_two_workers_finish_cleanly(tmp_path):
    workers = []
    for task in worker_tasks():
        command = [sys.executable, "experiments/run_tpu.py", f"--workdir={tmp_path / 'run'}", *TINY]
        environment = {**os.environ, "TF_CONFIG": task}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        workers.append(subprocess.Popen(command, cwd=ROOT, env=environment, **pipes))
    outputs = [worker.communicate()[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    assert (tmp_path / "run" / "results.json").exists()
    assert not any(
        word in output for output in outputs for word in ("crash", "UNAVAILABLE", "Traceback")
    ), outputs
