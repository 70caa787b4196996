"""Handles flags, error messages, exit codes and signals for all commands."""

import errno
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import traceback
from pathlib import Path

from absl import flags, logging
from ml_collections import config_flags

from keras_vit import files, terminal

CONFIGS = Path(__file__).parents[1] / "configs"
# Exceptions raised by code in these folders have messages that are written for users.
_OURS = (str(CONFIGS.parent), os.path.dirname(os.path.abspath(sys.argv[0])))
# Environment variables that select the devices; the printed command repeats them.
_VARIABLES = (
    "KERAS_BACKEND",
    "JAX_PLATFORMS",
    "CUDA_VISIBLE_DEVICES",
    "TPU_NAME",
    "TPU_LOAD_LIBRARY",
)
_arguments: list[str] = []  # arguments of the command, with config names replaced by paths


def run(load, name, arguments):
    """Runs a command and converts expected failures to a one-line message and an exit code.

    The exit code is 2 for bad input or a full disk, 3 if training diverges, 75 if training was
    stopped and saved, 130 for a `KeyboardInterrupt`, and 141 if standard output is closed. For exit
    code 75, the command that resumes training is printed. A `ValueError`, `ImportError`,
    `ConnectionError` or `ChildProcessError` raised by this project counts as bad input. Other
    exceptions are bugs: Python prints a traceback and exits with 1.

    `load()` imports and returns the module of the command. The module defines `define_flags()`,
    `main()`, and optionally `POSITIONAL`, the names of its positional arguments.
    """
    _arguments[:] = map(_expand_config, arguments)
    # JAX has set the first variable if the machine has no TPU. Then the others keep libtpu from
    # printing errors.
    if os.environ.get("TPU_SKIP_MDS_QUERY") == "1":
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v3-8")
    try:
        _run_module(load(), name, arguments)
    except BrokenPipeError:  # standard output was closed, for example by `| head`
        # The flush at exit must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except (ValueError, ImportError, ChildProcessError, ConnectionError) as error:
        if not traceback.extract_tb(error.__traceback__)[-1].filename.startswith(_OURS):
            raise
        _end(error, getattr(error, "exit_code", 2))
    except KeyboardInterrupt:
        print("interrupted; files that were already saved are unchanged", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        if getattr(error, "resumable", False):
            print(f"{error}:\n  {this_command()}")
            sys.exit(error.exit_code)
        is_full_disk = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if not is_full_disk and "No space left on device" not in str(error):  # TensorFlow's wording
            raise
        _end(f"the disk is full: {_text(error)}")


def _run_module(module, name, arguments):
    """Runs the module of a command, or prints its help."""
    known = set(flags.FLAGS)
    module.define_flags()
    if {"--help", "-h"} & set(arguments):
        _print_help(module, name, [flags.FLAGS[flag] for flag in flags.FLAGS if flag not in known])
        return
    positional = _parse(name, getattr(module, "POSITIONAL", ()))
    logging.use_absl_handler()
    # Omit the line that TensorFlow logs for every checkpoint.
    logging.set_verbosity(logging.WARNING)
    # Flush after each line, even if the output is a file. Escape characters that the output's
    # encoding lacks.
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    terminal.show_bars()
    module.main(*positional)


def _parse(name, positional):
    """Parses the flags and returns the positional arguments."""
    try:
        _, *values = flags.FLAGS([name, *_arguments])
        if "config" in flags.FLAGS:
            _set_length(flags.FLAGS.config, config_flags.get_override_values(flags.FLAGS["config"]))
            # Errors in a config are raised only when its fields are read.
            flags.FLAGS.config.to_dict()
    except flags.Error as error:
        # absl's error contains the whole traceback of an error in a config file. Print only its
        # last line if the user caused the error.
        kind, _, text = str(error).strip().splitlines()[-1].partition(": ")
        if text.startswith("get_config()"):
            _end(f"the config file does not fit the text after the colon of --config: {text}")
        _end(text if kind == "ValueError" else error)
    except (AttributeError, KeyError) as error:  # ml_collections raises these for unknown fields
        _end(f"the config has no such field: {_text(error)}")
    except OSError as error:
        _end(f"--config must be a file or one of {_config_names()}: {_text(error)}")
    expected = " and ".join(positional)
    too_many = len(values) > len(positional) and not expected.endswith("...")
    if len(values) < len(positional) or too_many:
        wanted = f"{expected} are expected" if expected else "this command takes only flags"
        _end(f"{wanted}. Received: {' '.join(values)}")
    return values


def _set_length(config, overrides):
    """Lets `total_steps` or `total_epochs` of the command line replace the other field of the
    config file."""
    fields = ["total_steps", "total_epochs"]
    for given, other in zip(fields, reversed(fields)):
        if overrides.get(given) and other not in overrides:
            config[other] = 0


def _print_help(module, name, defined):
    usage = " ".join([name, *getattr(module, "POSITIONAL", ())])
    print(f"usage: keras-vit {usage} [--flag=value ...]\n\n{module.__doc__.strip()}\n")
    for flag in defined:
        value = (flag.default_as_str or "").replace(f"{CONFIGS}/", "")
        default = "" if flag.default in (None, "", []) else f" (default: {value})"
        text = textwrap.indent(textwrap.fill(f"{flag.help}{default}", 90), " " * 6)
        print(f"  --{flag.name}\n{text}")


def define_config():
    """Defines the flag `--config` and, through it, an override flag for every field."""
    text = (
        f"Path of a config file, or a built-in config: {_config_names()}. --config.FIELD=VALUE "
        "overrides a field."
    )
    try:
        config_flags.DEFINE_config_file(
            "config", str(CONFIGS / "digits.py"), text, sys_argv=_arguments
        )
    except AttributeError as error:  # overrides are checked against the default config immediately
        _end(f"the config has no such field: {_text(error)}")


def _config_names():
    return ", ".join(sorted(path.stem for path in CONFIGS.glob("*.py")))


def _expand_config(argument):
    """Replaces the name in `--config=NAME:REQUEST` with the path of the built-in config file."""
    flag, _, value = argument.partition("=")
    name, colon, request = value.partition(":")
    if flag not in ("--config", "-config") or not (CONFIGS / f"{name}.py").exists():
        return argument
    return f"{flag}={CONFIGS / name}.py{colon}{request}"


def check_output(path, takes_folder=False):
    """Raises a `ValueError` if the folder of `--output` is missing or, if it is local, not
    writable, or if `--output` is a folder instead of a file; accepts ""."""
    if not path:
        return
    if not _is_writable_folder(os.path.dirname(path) or "."):
        raise ValueError(
            f"The folder of --output must exist and be writable. Received: output={path!r}"
        )
    if not takes_folder and files.is_dir(path):
        raise ValueError(f"--output must be a file, not a folder. Received: output={path!r}")


def check_folder(path):
    """Raises a `ValueError` unless the folder `--output` is remote, exists or can be created."""
    if files.is_remote(path):
        return
    existing = path
    while existing and not files.exists(existing):
        existing = os.path.dirname(existing)
    if not _is_writable_folder(existing or "."):
        raise ValueError(
            "--output must be a folder that is writable or can be created. Received: "
            f"output={path!r}"
        )


def _is_writable_folder(path):
    return files.is_dir(path) and (files.is_remote(path) or os.access(path, os.W_OK))


def check_picture(path):
    """Raises a `ValueError` unless matplotlib can write a picture to `--output`."""
    from keras_vit.plots import figure_class  # for the two commands that draw

    check_output(path)
    endings = figure_class()().canvas.get_supported_filetypes()
    if Path(path).suffix.lower().removeprefix(".") not in endings:
        raise ValueError(
            f"--output must be an image file, such as .png or .pdf. Received: output={path!r}"
        )


def run_name():
    """Returns a name for a run from `--config`, such as `digits` or `finetune-ViT-B_16-cifar10`."""
    path, _, request = config_flags.get_config_filename(flags.FLAGS["config"]).partition(":")
    parts = [Path(path).stem, *request.replace("/", "_").split(",")]
    return "-".join(filter(None, parts))


def this_command():
    """Returns the shell command that started this process; in a child of `run_children`, the
    command of its parent."""
    if "KERAS_VIT_COMMAND" in os.environ:
        return os.environ["KERAS_VIT_COMMAND"]
    variables = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    script, *arguments = sys.argv
    python = Path(sys.executable).name
    if script.endswith(os.path.join("keras_vit", "__main__.py")):
        program = [python, "-m", "keras_vit"]
    elif script.endswith(".py"):
        program = [python, script]
    else:
        program = [Path(script).name]
    return shlex.join([*variables, *program, *arguments])


def run_children(commands):
    """Runs commands in parallel processes and forwards SIGTERM, SIGHUP and SIGINT to them as
    SIGTERM.

    Ctrl-C in a terminal already sends SIGINT to the children. An additional SIGTERM is harmless,
    but a second SIGINT would end them before they save. Returns the exit codes and the names of the
    received signals.
    """
    from keras_vit.training import preemption  # importing takes seconds

    received = []
    children = []

    def stop(number, _):
        received.append(signal.Signals(number).name)
        for child in children:
            child.terminate()

    environment = {**os.environ, "KERAS_VIT_COMMAND": this_command()}
    with preemption.handlers(stop):
        for command in commands:
            children.append(subprocess.Popen(command, env=environment))
            if received:  # a signal arrived while the child was starting
                children[-1].terminate()
        codes = [child.wait() for child in children]
    return codes, received


def _text(error):
    """Returns the message of an error in one line."""
    text = str(error)
    if text[:1] in ("'", '"') and text.endswith(text[0]):  # the `repr` of a `KeyError`'s message
        text = text[1:-1].replace("\\'", "'").replace("\\n", " ")
    return " ".join(text.split())


def _end(message, code=2):
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)
