"""What TensorFlow greets with is not seen, and everything else is, whatever becomes of the process."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parent.parent.parent / "experiments" / "banner_filter.py"
BANNER = (
    b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
    b"I0000 00:00:1795328522.214265   12577 port.cc:153] oneDNN custom operations are on. You may see slightly ...\n"
    b"I0000 00:00:1795328727.471588   20595 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use ...\n"
    b"To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the appropriate "
    b"compiler flags.\n"
)
WORDS = (
    b"E0000 00:00:1795328522.214265   12577 port.cc:153] an error\n"
    b"I0000 00:00:1795328522.214265   12577 pjrt_client.cc:153] of another file\n"
    b"a line about cpu_feature_guard.cc:227] and oneDNN\n"
    b"WARNING: something else\n\n"
    b"\xff and no end of the line"
)
# Stands for TensorFlow: it speaks straight to file descriptor 2 while it is imported, and may end the process.
PACKAGE = """
import os
os.write(2, {text!r})
{last}
"""


@pytest.fixture(scope="module")
def banner_filter():
    import importlib.util

    spec = importlib.util.spec_from_file_location("banner_filter", FILE)
    module = importlib.util.module_from_spec(spec)
    before = list(sys.meta_path), dict(os.environ)
    spec.loader.exec_module(module)
    sys.meta_path[:] = before[0]
    os.environ.clear()
    os.environ.update(before[1])
    return module


def test_only_lines_of_the_banner_are_dropped(banner_filter):
    target = io.BytesIO()
    banner_filter.copy_filtered(io.BytesIO(BANNER + WORDS[:90] + WORDS[90:] + b"\n" + BANNER + b"end"), target)
    assert target.getvalue() == WORDS + b"\nend"


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ("", 0),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("os.abort()", -signal.SIGABRT),
        ("raise KeyboardInterrupt", -signal.SIGINT),
    ],
)
def test_the_last_words_of_a_process_are_seen(last, code, tmp_path):
    (tmp_path / "tensorflow.py").write_text(PACKAGE.format(text=BANNER + WORDS, last=last))
    script = "import banner_filter, os; import tensorflow; os.write(2, b'later: I0000 port.cc:1] x'); print('done')"
    environment = {**os.environ, "PYTHONPATH": f"{FILE.parent}{os.pathsep}{tmp_path}"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, env=environment, check=False)
    assert done.returncode == code
    assert done.stderr.startswith(WORDS) and BANNER[:20] not in done.stderr
    if not code:  # file descriptor 2 is what it was: nothing is filtered any more
        assert done.stderr == WORDS + b"later: I0000 port.cc:1] x" and done.stdout == b"done\n"


def test_a_closed_standard_error_is_no_obstacle(tmp_path):
    (tmp_path / "tensorflow.py").write_text("")
    script = "import banner_filter; import tensorflow; print('done')"
    environment = {**os.environ, "PYTHONPATH": f"{FILE.parent}{os.pathsep}{tmp_path}"}
    done = subprocess.run(f'"{sys.executable}" -c "{script}" 2>&-', shell=True, capture_output=True, env=environment)
    assert done.stdout == b"done\n"
