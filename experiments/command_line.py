"""What every command here does with its flags and with bad input."""

import errno
import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import banner_filter  # noqa: F401 before whatever imports TensorFlow
from absl import app, flags, logging
from ml_collections import config_flags

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
START = time.monotonic()  # when the command was given, but for the start of Python

# Where the errors come from that are meant for the user. Found without importing, which would take seconds.
_OURS = (str(Path(__file__).parent), *importlib.util.find_spec("keras_vit").submodule_search_locations)


def _excepthook(kind, error, trace):
    """One line for a Ctrl-C before a command begins, while it imports for seconds."""
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _excepthook


def define_config(default):
    """Defines the flag `--config`, a file in `experiments/configs/`, of which any field can be overridden."""
    try:
        return config_flags.DEFINE_config_file(
            "config", str(default), "What to do. Any field can be overridden: --config.seed=1."
        )
    except AttributeError as error:  # overrides are looked up in the default at once
        _end(f"the config has no such field: {_text(error)}")


def run_name():
    """What the config is called: `digits`, or `finetune-ViT-B_16-cifar10` of one that was asked for something."""
    page, _, request = config_flags.get_config_filename(flags.FLAGS["config"]).partition(":")
    words = [Path(page).stem, *request.replace("/", "_").split(",")]
    return "-".join(word for word in words if word)


def run(main):
    """Parses the flags and runs `main`; bad input and a full disk end in one line on standard error and exit code 2,
    training that diverges in one line and 3, Ctrl-C in one line and 130.

    A `ValueError`, `ImportError` or `ConnectionError` that this project raises is bad input, and a `ChildProcessError`
    says which process failed. Every other exception is a defect and keeps its traceback.
    """
    app.run(lambda argv: _guarded(main, argv), flags_parser=_parse)


def _parse(argv):
    try:
        rest = flags.FLAGS(argv)
        if "config" in flags.FLAGS:
            flags.FLAGS.config.to_dict()  # a file that could not be loaded says so only when it is used
        return rest
    except flags.Error as error:
        _end(_refused_request(error) or error)
    except (AttributeError, KeyError) as error:
        # How ml_collections refuses a field that the config does not have.
        _end(f"the config has no such field: {_text(error)}")
    except OSError as error:
        _end(f"the config cannot be loaded: {_text(error)}")


def _guarded(main, argv):
    if len(argv) > 1:
        _end(f"only flags are understood. Received: {' '.join(argv[1:])}")
    logging.set_verbosity(logging.WARNING)  # TensorFlow tells of every checkpoint it writes
    # Lines appear at once, in a file too, and names that are not UTF-8 can be printed.
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    terminal = sys.modules.get("keras_vit.terminal")  # not there where a command uses nothing of keras_vit
    if terminal:
        terminal.show_bars()
    try:
        main(argv)
    except (ValueError, ImportError, ChildProcessError, ConnectionError) as error:
        if not traceback.extract_tb(error.__traceback__)[-1].filename.startswith(_OURS):
            raise
        _end(error, getattr(error, "exit_code", 2))
    except KeyboardInterrupt:
        print("interrupted; what was saved before is as it was", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        if not _is_full_disk(error):
            raise
        _end(f"the disk is full: {_text(error)}")


def this_command():
    """The command to repeat, for a shell: this process's, or that of the command that started it."""
    if "KERAS_VIT_COMMAND" in os.environ:
        return os.environ["KERAS_VIT_COMMAND"]
    backend = [f"KERAS_BACKEND={os.environ['KERAS_BACKEND']}"] if "KERAS_BACKEND" in os.environ else []
    return shlex.join([*backend, Path(sys.executable).name, *sys.argv])


def run_children(commands):
    """Runs commands at once, each in a process of its own, and passes SIGTERM, SIGHUP and SIGINT on to them as SIGTERM.

    Ctrl-C in a terminal reaches them too; then SIGTERM changes nothing, and a second SIGINT would end them unsaved.

    Returns:
        `(codes, received)`: the exit code of each, and the names of the signals that came.
    """
    received, children = [], []

    def stop(number, _):
        received.append(signal.Signals(number).name)
        for child in children:
            child.terminate()

    signals = [number for number in _STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]  # as under nohup
    before = {number: signal.signal(number, stop) for number in signals}
    environment = {**os.environ, "KERAS_VIT_COMMAND": this_command()}
    try:
        for command in commands:
            children.append(subprocess.Popen(command, env=environment))
            if received:  # while it was started
                children[-1].terminate()
        codes = [child.wait() for child in children]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return codes, received


def _is_full_disk(error):
    """Whether a file could not be written for want of room, by an exception of Python, or of TensorFlow."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or (
        "No space left on device" in str(error)
    )


def _refused_request(error):
    """The message of a `ValueError` that a config page raised; absl puts its whole traceback into the flag's error."""
    last = str(error).strip().splitlines()[-1]
    return last.removeprefix("ValueError: ") if last.startswith("ValueError: ") else ""


def _text(error):
    return " ".join(str(error).strip("\"'").replace("\\'", "'").replace("\\n", " ").split())


def _end(message, code=2):
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)
