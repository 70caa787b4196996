"""Tests of help, exit codes and error messages. User errors print a message; bugs print a
traceback."""

import errno
import json
import os
import subprocess
import sys

import pytest
from ml_collections import ConfigDict

import keras_vit_cli
from keras_vit.commands import command_line
from keras_vit.training.diagnosis import Diverged

CLOSED_PIPE = """
from keras_vit.commands import command_line

def load():
    raise BrokenPipeError

command_line.run(load, "test", [])
"""


@pytest.fixture
def run(monkeypatch):
    """Returns a function that runs a command whose import calls `load`."""
    monkeypatch.setattr(command_line, "_OURS", (__file__,))
    # Without a TPU, JAX has set this variable, and the command would set others for this process.
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY", raising=False)
    return lambda load: command_line.run(load, "test", [])


def _raise(error):
    raise error


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "interrupted; files that were already saved are unchanged"),
        (OSError(errno.ENOSPC, "full", "a"), 2, "error: the disk is full: [Errno 28] full: 'a'"),
        # TensorFlow's errors have this wording.
        (
            RuntimeError("No space left on device"),
            2,
            "error: the disk is full: No space left on device",
        ),
        (ValueError("bad input"), 2, "error: bad input"),
        (Diverged("the loss is NaN"), 3, "error: the loss is NaN"),  # `sweep` expects the code
    ],
    ids=["interrupt", "full disk", "full disk of TensorFlow", "bad input", "diverged run"],
)
def test_expected_error_prints_one_line(error, code, line, run, capsys):
    with pytest.raises(SystemExit) as ended:
        run(lambda: _raise(error))
    assert ended.value.code == code
    assert capsys.readouterr().err == f"{line}\n"


def test_other_errors_are_bugs(run):
    with pytest.raises(OSError, match="a defect"):
        run(lambda: _raise(OSError(errno.EIO, "a defect")))


def test_errors_of_other_packages_are_bugs(run):
    with pytest.raises(json.JSONDecodeError):
        run(lambda: json.loads("a defect"))


def test_stopped_run_prints_the_command_that_resumes_it(run, capsys):
    error = OSError("stopped and saved")
    error.resumable = True
    error.exit_code = 75
    with pytest.raises(SystemExit, match="75"):
        run(lambda: _raise(error))
    assert capsys.readouterr().out.startswith("stopped and saved:\n  ")


def test_closed_pipe_exits_without_a_traceback(scripts, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(CLOSED_PIPE)
    result = scripts.run(program)
    assert result.returncode == 141
    assert "Traceback" not in result.stderr


def test_libtpu_is_quiet_without_a_tpu(run, monkeypatch):
    # JAX sets the first variable if the machine has no TPU.
    given = {"TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "mine"}
    monkeypatch.setattr(os, "environ", given.copy())
    with pytest.raises(SystemExit):
        run(lambda: _raise(ValueError()))
    assert os.environ == {**given, "TPU_WORKER_HOSTNAMES": "localhost"}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"total_steps": 20}, (20, 0.0)),
        ({"total_epochs": 3.0}, (0, 3.0)),
        ({"total_steps": 20, "total_epochs": 3.0}, (20, 3.0)),  # refused later
    ],
)
def test_length_flags_replace_each_other(overrides, expected):
    config = ConfigDict({"total_steps": 0, "total_epochs": 75.0, **overrides})
    command_line._set_length(config, overrides)
    assert (config.total_steps, config.total_epochs) == expected


def test_lists_commands_without_importing_layers():
    command = [sys.executable, "-X", "importtime", "-m", "keras_vit_cli", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[2:-2]] == list(keras_vit_cli.COMMANDS)
    assert "keras_vit.layers" not in done.stderr


def test_unknown_command_lists_the_commands(capsys):
    with pytest.raises(SystemExit, match="2"):
        keras_vit_cli.main(["trian"])
    assert capsys.readouterr().err.startswith("error: the command must be one of train, ")


def test_folder_must_exist_or_be_creatable(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("new", "new/deeper", str(tmp_path / "new"), str(tmp_path)):
        command_line.check_folder(path)
    (tmp_path / "file").touch()
    for path in ("file", "file/deeper"):
        with pytest.raises(ValueError, match=f"--output must be a folder.*output='{path}'"):
            command_line.check_folder(path)


def test_value_of_config_flag_may_be_a_separate_word(monkeypatch):
    given = []
    monkeypatch.setattr(command_line, "run", lambda load, name, arguments: given.extend(arguments))
    keras_vit_cli.main(["train", "--config", "digits", "--workdir=runs/a"])
    assert given == ["--config=digits", "--workdir=runs/a"]


def test_printed_command_selects_the_same_devices(monkeypatch):
    monkeypatch.setattr(os, "environ", {"TPU_NAME": "my tpu", "KERAS_BACKEND": "jax", "HOME": "/"})
    monkeypatch.setattr(sys, "argv", ["/bin/keras-vit", "train", "--workdir=a b"])
    assert (
        command_line.this_command()
        == "KERAS_BACKEND=jax 'TPU_NAME=my tpu' keras-vit train '--workdir=a b'"
    )


@pytest.mark.parametrize("name", keras_vit_cli.COMMANDS)
def test_each_command_prints_its_help(name, remove_flags, monkeypatch, capsys):
    monkeypatch.setattr(os, "environ", {**os.environ})
    keras_vit_cli.main([name, "--help"])
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: keras-vit {name} ")
    assert printed.count(f"keras-vit {name}") > 1
