"""Runs Python scripts in separate processes without importing TensorFlow each time.

The processes are forks of a server that has already imported TensorFlow and Keras. A test that
checks what the imports print must start Python itself.
"""

import json
import os
import runpy
import subprocess
import sys
import types
from pathlib import Path

OUTPUTS = ("stdout", "stderr")


class ScriptServer:
    """Starts scripts in forks of one Python process.

    Args:
        folder: existing folder for the stdout and stderr of the scripts.
    """

    def __init__(self, folder):
        self._folder = Path(folder)
        self._number = 0
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def start(self, *command, cwd=".", env=None):
        """Starts a script and returns a `Script`.

        Args:
            *command: `path, *arguments` or `"-m", module, *arguments`, as after `python`.
            cwd: working directory of the script.
            env: environment variables, by default those of this process.
        """
        self._number += 1
        output_files = [str(self._folder / f"{self._number}.{name}") for name in OUTPUTS]
        environment = dict(os.environ if env is None else env)
        arguments = [str(argument) for argument in command]
        cwd = str(Path(cwd).absolute())
        pid = self.send("start", arguments, cwd, environment, output_files)
        return Script(self, pid, output_files)

    def run(self, *command, **options):
        """Runs a script to completion. Takes the arguments of `start` and returns a result like
        `subprocess.run`."""
        return self.start(*command, **options).wait()

    def send(self, *request):
        """Sends a request to the server process and returns its answer."""
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self):
        self._process.communicate()


class Script:
    """A started script. `wait` returns the `returncode`, `stdout` and `stderr` of the script."""

    def __init__(self, server, pid, output_files):
        self._server = server
        self.pid = pid
        self._output_files = output_files

    def wait(self):
        returncode = self._server.send("wait", self.pid)
        stdout, stderr = (Path(path).read_text(errors="replace") for path in self._output_files)
        return types.SimpleNamespace(returncode=returncode, stdout=stdout, stderr=stderr)


def _serve():
    """Answers requests until stdin ends. In a fork, returns the request to run a script."""
    for line in sys.stdin:
        kind, *request = json.loads(line)
        if kind == "wait":
            answer = os.waitstatus_to_exitcode(os.waitpid(request[0], 0)[1])
        else:
            answer = os.fork()
            if not answer:
                return request
        print(answer, flush=True)
    return None


def _become(command, cwd, environment, output_files):
    """Runs a script in this process, as `python *command` would."""
    sys.stdin = open(os.devnull)  # noqa: SIM115 stays open until the process ends
    # File descriptor 1 is stdout, and 2 is stderr.
    for descriptor, path in enumerate(output_files, start=1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    if command[0] == "-m":
        sys.argv = command[1:]
        sys.path[0] = cwd
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = command
    sys.path[0] = os.path.dirname(os.path.abspath(command[0]))
    runpy.run_path(os.path.abspath(command[0]), run_name="__main__")


if __name__ == "__main__":
    import keras  # noqa: F401
    import ml_collections  # noqa: F401
    import tensorflow  # noqa: F401

    request = _serve()
    if request:
        _become(*request)
