"""TensorFlow without the lines that it greets with, whoever imports it after this module.

TensorFlow writes them straight to file descriptor 2, before its own filter, TF_CPP_MIN_LOG_LEVEL, is in force. So while
TensorFlow is imported, that descriptor leads to a child process, this file, which drops the lines that it knows and
passes on all others at once. A child, because the import holds the interpreter: a thread would lose the last words of a
process that TensorFlow aborts.
"""

import contextlib
import importlib.abc
import importlib.machinery
import os
import re
import subprocess
import sys

# Informative lines of these source files, and the line with which absl explains where it logs to.
BANNER = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR\s*$"
    rb"|I0000 .*\b(port|cpu_feature_guard|cuda_\w+|cudart_stub)\.cc:\d+\] "
    rb"|To enable the following instructions: .* rebuild TensorFlow with the appropriate compiler flags\.\s*$"
)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds TensorFlow where Python would, and gives it a loader that filters."""

    def find_spec(self, name, path=None, target=None):
        if name != "tensorflow":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            load = spec.loader.exec_module

            def load_filtered(module):
                with filtered_stderr():
                    load(module)

            spec.loader.exec_module = load_filtered
        return spec


@contextlib.contextmanager
def filtered_stderr():
    """While it is open, file descriptor 2 goes through the filter, if there is one and a process can be started."""
    try:
        stderr = os.dup(2)
    except OSError:  # closed
        yield
        return
    try:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=stderr,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in a terminal is not for the filter
        )
    except OSError:
        os.close(stderr)
        yield
        return
    try:
        os.dup2(child.stdin.fileno(), 2)
        child.stdin.close()
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        with contextlib.suppress(subprocess.TimeoutExpired):  # should a process started meanwhile hold it open
            child.wait(timeout=5)


def copy_filtered(source, target):
    """Copies the lines of one binary file to another as they come, but for those of the banner."""
    for line in iter(source.readline, b""):
        if not BANNER.match(line):
            target.write(line)
            target.flush()


if __name__ == "__main__":
    copy_filtered(sys.stdin.buffer, sys.stdout.buffer)
elif "tensorflow" not in sys.modules:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # what TensorFlow says later, here and in child processes
    sys.meta_path.insert(0, _Finder())
