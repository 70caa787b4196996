"""Child processes that answer requests, and helpers to measure them in turns.

Each library, format or variant runs in its own process, so that its peak memory, its settings and
its imports are its own. This file needs only the standard library, because the Python that runs
timm imports it too.
"""

import json
import os
import resource
import subprocess
import sys
import time


class Worker:
    """A child process that runs this script with `--worker=NAME` and answers through `serve`.

    Attributes:
        facts: what the process says about itself when it is ready.

    Raises:
        RuntimeError: the process ended before it answered, here or in `query`.
    """

    def __init__(self, name, command=None, **environment):
        self._name = name
        self._process = subprocess.Popen(
            command or [sys.executable, *sys.argv, f"--worker={name}"],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.facts = self._answer()

    def query(self, *request):
        """Sends a request and waits for its answer; both are values for JSON."""
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._answer()

    def close(self):
        self._process.stdin.close()
        self._process.wait()

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of {self._name} ended; see its output above")
        return json.loads(line)


def is_out_of_memory(error):
    """Returns whether an error of PyTorch, JAX or keras_vit says that the memory is too small."""
    return "out of memory" in str(error).lower()


def serve(load):
    """Answers the requests of a `Worker` in its child process, until the `Worker` closes.

    `load()` returns the facts and a function `answer(*request)`.
    """
    answers = sys.stdout
    sys.stdout = sys.stderr  # keeps the libraries' output out of the answers
    facts, answer = load()
    print(json.dumps(facts), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line))), file=answers, flush=True)


def in_turns(functions, rounds):
    """Calls every function once in each round; returns `{name: [result of each round]}`."""
    results = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            results[name].append(function())
    return results


def seconds(function, *arguments):
    """Returns the time that a call takes."""
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def peak_bytes():
    """Returns the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
