"""Builds and starts the C++ server in `rest_server/`, which serves part of TensorFlow Serving's
REST API.

    python tests/serving/rest_server.py --model_base_path=runs/digits/export --model_name=digits

The server serves the highest version in the folder. The build needs only g++ and the installed
TensorFlow. The program is cached in `~/.cache/keras_vit` (or `$XDG_CACHE_HOME/keras_vit`), and
built again if TensorFlow, g++ or the sources change.
"""

import argparse
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
    """Builds the server unless it is cached, and returns the path of the program.

    Raises:
        ValueError: if g++ or TensorFlow is not installed, or if the build fails.
    """
    compiler, tensorflow = _requirements()
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
                raise ValueError(
                    f"the server could not be built: {' '.join(done.stderr.split())[:500]}"
                )
    return program


def _requirements():
    """Returns the path of g++ and the folder of TensorFlow."""
    compiler = shutil.which("g++")
    spec = importlib.util.find_spec("tensorflow")
    if compiler is None:
        raise ValueError(
            "building the server needs g++, which is not installed (Debian: apt-get install g++)"
        )
    if spec is None:
        raise ValueError(
            "building the server needs TensorFlow, which is not installed: pip install "
            '"keras_vit[cpu]"'
        )
    return compiler, spec.submodule_search_locations[0]


def _fingerprint(compiler, flags):
    """Returns a hash of everything that changes the program."""
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, check=True
    ).stdout
    sources = sorted(SOURCES.glob("*.h")) + sorted(SOURCES.glob("*.cc"))
    parts = [_tensorflow_version(), version, *flags, *(path.read_text() for path in sources)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _tensorflow_version():
    """Returns the name and version of the package that contains TensorFlow."""
    for name in importlib.metadata.packages_distributions()["tensorflow"]:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{name} {importlib.metadata.version(name)}"
    return ""


def _command(program, flags):
    return [str(program), *(f"--{name}={value}" for name, value in flags.items())]


class RestServer:
    """Context manager that runs a server.

    Args:
        model_base_path: folder that contains one subfolder per version of the model.
        model_name: name of the model in URLs.
        **flags: other flags of the server: `rest_api_port`, `rest_api_num_threads`,
            `max_request_megabytes`, `request_seconds`. The default port is any free port of
            localhost.

    Attributes:
        port: port of the server.
        url: URL of the model, without a verb.
        warm_up_requests: number of warm-up requests before the server accepted connections.
        pid: process id of the server.

    Raises:
        ValueError: if the server cannot be built or does not start.
    """

    def __init__(self, model_base_path, model_name="model", **flags):
        self.flags = {
            "model_base_path": model_base_path,
            "model_name": model_name,
            "rest_api_port": 0,
            **flags,
        }

    def __enter__(self):
        command = _command(build(), self.flags)
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment
        )
        first_line = self._process.stdout.readline()
        if not first_line:
            self._process.wait()
            self._log.seek(0)
            last_error = self._log.read().strip().rpartition("\n")[2]
            self.__exit__()
            raise ValueError(f"the server did not start: {last_error or 'it printed nothing'}")
        started = re.search(r"(\d+) warm-up requests, port (\d+)", first_line)
        self.pid = self._process.pid
        self.warm_up_requests = int(started[1])
        self.port = int(started[2])
        self.url = f"http://localhost:{self.port}/v1/models/{self.flags['model_name']}"
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()

    @property
    def is_running(self):
        """True while the process runs."""
        return self._process.poll() is None

    def memory(self):
        """Returns the resident memory of the process in bytes."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model_base_path", required=True, help="folder with a subfolder for each model version"
    )
    parser.add_argument("--model_name", default="model", help="name of the model in URLs")
    parser.add_argument("--rest_api_port", type=int, default=8501, help="0 for any free port")
    parser.add_argument(
        "--rest_api_num_threads", type=int, default=32, help="maximum number of concurrent requests"
    )
    parser.add_argument(
        "--max_request_megabytes",
        type=int,
        default=64,
        help=(
            "maximum size of a body in MiB; all concurrent bodies together may be four times "
            "this size"
        ),
    )
    parser.add_argument(
        "--request_seconds",
        type=int,
        default=60,
        help="time limit in seconds for receiving a request",
    )
    arguments = parser.parse_args()
    try:
        program = build()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    os.execv(program, _command(program, vars(arguments)))


if __name__ == "__main__":
    main()
