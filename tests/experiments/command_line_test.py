"""How a command ends: one line and an exit code for what a user can mend, a traceback for a defect."""

import subprocess
import sys
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parent.parent.parent / "experiments"
SCRIPT = """
import errno, sys
sys.path.insert(0, {folder!r})
import command_line

def main(_):
    {statement}

command_line.run(main)
"""


@pytest.mark.parametrize(
    ("statement", "code", "line"),
    [
        ("raise KeyboardInterrupt", 130, "interrupted; what was saved before is as it was"),
        (
            "raise OSError(errno.ENOSPC, 'No space left on device', 'export/1')",
            2,
            "error: the disk is full: [Errno 28] No space left on device: 'export/1",
        ),
        (
            "raise RuntimeError('export/1; No space left on device')",  # as TensorFlow's errors are
            2,
            "error: the disk is full: export/1; No space left on device",
        ),
        ("raise OSError(errno.EIO, 'a defect')", 1, None),
        ("raise ValueError('a defect')", 1, None),
    ],
)
def test_every_end_is_one_line_or_a_traceback(statement, code, line):
    script = SCRIPT.format(folder=str(EXPERIMENTS), statement=statement)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stderr
    if line is None:
        assert "Traceback" in ended.stderr
    else:
        assert ended.stderr.strip().splitlines() == [line]
