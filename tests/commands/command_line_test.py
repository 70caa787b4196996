"""Tests of help, exit codes and error messages. User errors print a message; bugs print a
traceback."""

import subprocess
import sys

import pytest
from ml_collections import ConfigDict

import keras_vit_cli
from keras_vit.commands import command_line

SCRIPT = """
import errno, sys, types
import keras_vit.commands.command_line as command_line

def main():
    {statement}

module = types.SimpleNamespace(define_flags=lambda: None, main=main)
command_line._OURS = ("<string>",)
command_line.run(lambda: module, "test", [])
"""


def _run(*command):
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("statement", "code", "line"),
    [
        (
            "raise KeyboardInterrupt",
            130,
            "interrupted; files that were already saved are unchanged",
        ),
        (
            "raise OSError(errno.ENOSPC, 'No space left on device', 'export/1')",
            2,
            "error: the disk is full: [Errno 28] No space left on device: 'export/1'",
        ),
        (
            # the format of TensorFlow's errors
            "raise RuntimeError('export/1; No space left on device')",
            2,
            "error: the disk is full: export/1; No space left on device",
        ),
        ("int('a defect')", 2, "error: invalid literal for int() with base 10: 'a defect'"),
    ],
)
def test_expected_errors_print_one_line(statement, code, line):
    result = _run("-c", SCRIPT.format(statement=statement))
    assert result.returncode == code, result.stderr
    assert result.stderr.strip().splitlines()[-1] == line
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "statement",
    ["raise OSError(errno.EIO, 'a defect')", "import json; json.loads('a defect')"],
    ids=["EIO", "json"],
)
def test_bugs_print_a_traceback(statement):
    result = _run("-c", SCRIPT.format(statement=statement))
    assert result.returncode == 1, result.stderr
    assert "Traceback" in result.stderr


def test_stopped_run_prints_the_command_that_resumes_it():
    statement = (
        "error = OSError('stopped and saved'); error.resumable, error.exit_code = True, 75; "
        "raise error"
    )
    result = _run("-c", SCRIPT.format(statement=statement))
    assert result.returncode == 75
    assert result.stdout.startswith("stopped and saved:\n  ")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("given", "expected"), [({}, ["localhost"]), ({"TPU_WORKER_HOSTNAMES": "a,b"}, ["a,b"])]
)
def test_libtpu_is_quiet_without_a_tpu(given, expected, monkeypatch):
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")  # as JAX does
    monkeypatch.delenv("TPU_WORKER_HOSTNAMES", raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    statement = "import os; print(os.environ['TPU_WORKER_HOSTNAMES'])"
    assert _run("-c", SCRIPT.format(statement=statement)).stdout.split() == expected


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, (0, 75.0)),
        ({"total_steps": 20}, (20, 0.0)),
        ({"total_epochs": 3.0}, (0, 3.0)),
        ({"total_steps": 20, "total_epochs": 3.0}, (20, 3.0)),  # refused later
    ],
)
def test_length_flags_replace_each_other(overrides, expected):
    config = ConfigDict({"total_steps": 0, "total_epochs": 75.0, **overrides})
    command_line._set_length(config, overrides)
    assert (config.total_steps, config.total_epochs) == expected


def test_closed_pipe_exits_without_a_traceback():
    result = _run("-c", SCRIPT.format(statement="raise BrokenPipeError"))
    assert result.returncode == 141
    assert "Traceback" not in result.stderr


def test_lists_commands_without_importing_layers(capsys):
    keras_vit_cli.main([])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:-2]] == list(keras_vit_cli.COMMANDS)
    result = _run("-X", "importtime", "-m", "keras_vit_cli", "--help")
    assert result.returncode == 0
    assert "keras_vit.layers" not in result.stderr


def test_unknown_command_lists_the_commands(capsys):
    with pytest.raises(SystemExit, match="2"):
        keras_vit_cli.main(["trian"])
    assert capsys.readouterr().err.startswith("error: the command must be one of train, ")


def test_value_of_config_flag_may_be_a_separate_word(monkeypatch):
    given = []
    monkeypatch.setattr(command_line, "run", lambda load, name, arguments: given.extend(arguments))
    keras_vit_cli.main(["train", "--config", "digits", "--workdir=runs/a"])
    assert given == ["--config=digits", "--workdir=runs/a"]


def test_printed_command_selects_the_same_devices(monkeypatch):
    for name in command_line._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TPU_NAME", "my tpu")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setattr(sys, "argv", ["/bin/keras-vit", "train", "--workdir=a b"])
    assert (
        command_line.this_command()
        == "KERAS_BACKEND=jax 'TPU_NAME=my tpu' keras-vit train '--workdir=a b'"
    )


@pytest.mark.parametrize("name", keras_vit_cli.COMMANDS)
def test_each_command_prints_its_help(name, scripts):
    result = scripts.run("-m", "keras_vit", name, "--help")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"usage: keras-vit {name} ")
    assert result.stdout.count(f"keras-vit {name}") > 1
    assert ("  --model\n" in result.stdout) == (
        name in ("evaluate", "predict", "inspect", "demo", "export", "query", "search")
    )
