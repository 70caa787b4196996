"""Builds and starts the C++ server in `rest_server/`, which serves part of TensorFlow Serving's
REST API.

The build needs only g++ and the installed TensorFlow. The program is cached in `~/.cache/keras_vit`
(or `$XDG_CACHE_HOME/keras_vit`), and built again if TensorFlow, g++ or the sources change.
"""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from keras_vit import files

SOURCES = Path(__file__).parent / "rest_server"


def build():
    """Builds the server unless it is cached, and returns the path of the program."""
    compiler = shutil.which("g++")
    tensorflow = importlib.util.find_spec("tensorflow").submodule_search_locations[0]
    # -w turns off the warnings about TensorFlow's headers. --no-as-needed links the libraries that
    # register the kernels, although the program does not name them.
    flags = [
        "-std=c++17",
        "-O2",
        "-w",
        f"-I{tensorflow}/include",
        str(SOURCES / "rest_server.cc"),
        f"-L{tensorflow}",
        "-Wl,--no-as-needed",
        "-l:libtensorflow_cc.so.2",
        "-l:libtensorflow_framework.so.2",
        f"-Wl,-rpath,{tensorflow}",
        "-pthread",
    ]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "keras_vit"
    program = cache / f"rest_server-{_fingerprint(compiler, flags)}"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        print(f"building {program}", file=sys.stderr)
        with files.atomic_path(program) as part:
            done = subprocess.run([compiler, *flags, "-o", part], capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"the server could not be built:\n{done.stderr}")
    return program


def _fingerprint(compiler, flags):
    """Returns a hash of everything that changes the program."""
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, check=True
    ).stdout
    sources = sorted(SOURCES.glob("*.h")) + sorted(SOURCES.glob("*.cc"))
    parts = [_tensorflow_version(), version, *flags, *(path.read_text() for path in sources)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _tensorflow_version():
    """Returns the name and version of the package that contains TensorFlow, or "" if it was not
    installed as a package."""
    for name in importlib.metadata.packages_distributions()["tensorflow"]:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{name} {importlib.metadata.version(name)}"
    return ""


class RestServer:
    """Context manager that runs a server.

    Args:
        folder: folder that contains one subfolder per version of the model.
        model_name: name of the model in URLs.

    Attributes:
        port: port of the server, a free port of localhost.
        warm_up_requests: number of warm-up requests before the server accepted connections.
    """

    def __init__(self, folder, model_name):
        self.folder = folder
        self.model_name = model_name

    def __enter__(self):
        command = [
            build(),
            f"--model_base_path={self.folder}",
            f"--model_name={self.model_name}",
            "--rest_api_port=0",
        ]
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment
        )
        first_line = self._process.stdout.readline()
        started = re.search(r"(\d+) warm-up requests, port (\d+)", first_line)
        if not started:
            # After an error in `__enter__`, `with` does not call `__exit__`.
            self._process.terminate()
            self._process.wait()
            self._log.seek(0)
            errors = self._log.read()
            self.__exit__()
            raise RuntimeError(f"the server did not start: {first_line}{errors}")
        self.warm_up_requests = int(started[1])
        self.port = int(started[2])
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()
