"""The main job as a user runs it: a command, its folder and its messages."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent.parent
# A run of seconds: a model that learns little.
TINY = [
    "--config.total_epochs=0",
    "--config.total_steps=60",
    "--config.log_every_steps=20",
    "--config.model.num_layers=1",
    "--config.model.hidden_size=16",
    "--config.model.num_heads=2",
    "--config.schedule.warmup_steps=5",
]


def _run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "experiments/run_tpu.py", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def _error(done):
    """The one line that a refused command ends with; what TensorFlow itself logs at its start comes before it."""
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2, done.stderr
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:]
    assert "Traceback" not in done.stderr
    return lines[-1]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run: its folder and what it printed."""
    workdir = tmp_path_factory.mktemp("run") / "digits"
    done = _run(f"--workdir={workdir}", *TINY)
    assert done.returncode == 0, done.stderr
    return workdir, done.stdout


def test_it_trains_evaluates_exports_and_asks(finished):
    workdir, output = finished
    for text in (
        "step 20/60  loss ",
        "step 60/60  loss ",
        " images/s  0:00 left",
        "% of 360 test images",
        f"exported to {workdir}/export/1",
        "image of ",
    ):
        assert text in output
    results = json.loads((workdir / "results.json").read_text())
    assert {"test/accuracy", "train/seconds", "train/images_per_second"} <= results.keys()
    assert all(isinstance(value, int | float) for value in results.values())
    assert 0 < results["test/accuracy"] < 1
    assert (workdir / "export" / "1" / "saved_model.pb").exists()


def test_the_answers_of_the_export_are_as_good_as_the_model(finished, tmp_path):
    from keras_vit import data

    workdir, _ = finished
    images, labels, _ = next(iter(data.eval_batches(data.load("digits")[1], batch_size=360)))
    np.save(tmp_path / "images.npy", images)
    command = [sys.executable, "experiments/predict_saved_model.py", f"{workdir}/export/1"]
    subprocess.run([*command, f"{tmp_path}/images.npy", f"{tmp_path}/answers.npy"], cwd=ROOT, check=True)
    probabilities = np.load(tmp_path / "answers.npy")
    np.testing.assert_allclose(probabilities.sum(-1), 1, atol=1e-5)
    accuracy = (probabilities.argmax(-1) == labels.numpy().argmax(-1)).mean()
    assert accuracy == pytest.approx(json.loads((workdir / "results.json").read_text())["test/accuracy"], abs=1e-6)


def test_the_picture_is_drawn_where_matplotlib_is(finished):
    workdir, output = finished
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        assert "predictions.png was not drawn: matplotlib is not installed" in output
        assert not list(workdir.glob("*.png"))
    else:
        for picture in ("predictions.png", "curve.png"):
            assert (workdir / picture).read_bytes().startswith(b"\x89PNG")


def test_the_same_command_again_says_that_it_is_done(finished):
    workdir, _ = finished
    before = {file: file.stat().st_mtime_ns for file in workdir.rglob("*") if file.name != "config.json"}
    done = _run(f"--workdir={workdir}", *TINY)
    assert done.returncode == 0
    assert done.stdout.startswith("This run is done: ")
    assert {file: file.stat().st_mtime_ns for file in before} == before


def test_a_run_that_lost_its_results_keeps_its_export(finished, tmp_path):
    workdir = tmp_path / "again"
    shutil.copytree(finished[0], workdir)
    (workdir / "results.json").unlink()
    graph = workdir / "export" / "1" / "saved_model.pb"
    written = graph.stat().st_mtime_ns
    done = _run(f"--workdir={workdir}", *TINY)
    assert done.returncode == 0, done.stderr
    assert "going on from step 60" in done.stdout
    assert "was exported before and stays as it is" in done.stdout
    assert graph.stat().st_mtime_ns == written
    ours, theirs = (json.loads((w / "results.json").read_text()) for w in (workdir, finished[0]))
    assert ours["test/accuracy"] == theirs["test/accuracy"]


def test_a_run_that_is_asked_to_end_saves_says_so_and_goes_on(finished, tmp_path):
    workdir = tmp_path / "stopped"
    command = [sys.executable, "experiments/run_tpu.py", f"--workdir={workdir}", *TINY]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        for line in process.stdout:
            if line.startswith("step 20/60"):
                process.send_signal(signal.SIGTERM)
                break
        output = process.stdout.read()
    assert process.returncode == 75
    assert "stopped by SIGTERM after step " in output
    assert not (workdir / "results.json").exists()
    done = _run(f"--workdir={workdir}", *TINY)
    assert done.returncode == 0, done.stderr
    assert "going on from step " in done.stdout
    assert (workdir / "metrics.csv").read_text() == (finished[0] / "metrics.csv").read_text()
    ours, theirs = (json.loads((w / "results.json").read_text()) for w in (workdir, finished[0]))
    assert ours["test/loss"] == theirs["test/loss"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.model.hiden_size=3"], 'the config has no such field: .*Did you mean "hidden_size"'),
        (["--config.batch_sise=3"], "the config has no such field: .*batch_size"),
        (["--config.batch_size=0.5"], "flag --config.batch_size=0.5: invalid literal for int"),
        (["--config=experiments/configs/nothing.py"], "the config cannot be loaded: .*nothing.py"),
        (["--wrkdir=3"], "Unknown command line flag 'wrkdir'. Did you mean: workdir"),
        (["digits"], "only flags are understood. Received: digits"),
        (["--config.data.name=mnist"], "known by name are: digits.*Received: name='mnist'"),
        (["--config.model.num_heads=5"], "`num_heads` must divide `hidden_size`. Received: num_heads=5"),
        (["--config.strategy=tpu"], "There is no TPU: .*Received: strategy='tpu'"),
        (["--config.tpu_address=grpc://localhost:1"], "No TPU answers there .*Received: tpu_address="),
        (["--config.strategy=gpus"], "`strategy` must be one of .*Received: strategy='gpus'"),
        (["--config.total_steps=5"], "One of `total_steps` and `total_epochs`.*Received: total_steps=5, total_epochs="),
        (["--config.precision=float8"], "`precision` must be one of .*Received: precision='float8'"),
    ],
)
def test_bad_input_ends_in_one_line(arguments, message, tmp_path):
    import re

    error = _error(_run(f"--workdir={tmp_path}/run", *arguments))
    assert re.search(message, error), error
    assert not (tmp_path / "run" / "results.json").exists()


def test_a_workdir_of_another_config_or_that_cannot_be_written_is_refused(finished, tmp_path):
    assert "seed was 0 and is 1. Choose another workdir" in _error(
        _run(f"--workdir={finished[0]}", *TINY, "--config.seed=1")
    )
    (tmp_path / "file").write_text("")
    assert "must be a folder that can be written" in _error(_run(f"--workdir={tmp_path}/file/run"))


def test_the_help_names_both_flags():
    done = _run("--help")
    assert "--config" in done.stdout and "--workdir" in done.stdout and "Trains a Vision Transformer" in done.stdout


@pytest.mark.slow
def test_after_a_good_run_of_two_workers_nobody_is_said_to_have_crashed(tmp_path):
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            ports.append(free.getsockname()[1])
    workers = []
    for index in range(2):
        task = {"cluster": {"worker": [f"localhost:{p}" for p in ports]}, "task": {"type": "worker", "index": index}}
        command = [sys.executable, "experiments/run_tpu.py", f"--workdir={tmp_path / 'run'}", *TINY]
        environment = {**os.environ, "TF_CONFIG": json.dumps(task)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        workers.append(subprocess.Popen(command, cwd=ROOT, env=environment, **pipes))
    outputs = [worker.communicate()[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    assert (tmp_path / "run" / "results.json").exists()
    assert not any(word in output for output in outputs for word in ("crash", "UNAVAILABLE", "Traceback")), outputs
