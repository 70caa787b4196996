"""Tests of progress bars on a terminal, and of plain lines elsewhere."""

import io
import sys

import pytest

from keras_vit import terminal


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def set_stderr(monkeypatch):
    """Returns a function that replaces `sys.stderr` until the end of the test."""

    def set_file(file):
        monkeypatch.setattr(sys, "stderr", file)
        return file

    monkeypatch.setattr(terminal, "_bars_shown", False)
    return set_file


def test_bar_is_drawn_below_lines_and_erased(set_stderr, capsys):
    stderr = set_stderr(Terminal())
    terminal.show_bars()
    with terminal.progress_bar("training", 200, "steps", done=50, delay=0) as update:
        update(150)
        terminal.write("step 150")  # prints the line and redraws the bar
    drawn = stderr.getvalue()
    assert "training:  25%" in drawn and "50/200 steps" in drawn and "150/200 steps" in drawn
    assert drawn.endswith("\r")  # the bar is erased at the end
    assert capsys.readouterr().out == "step 150\n"


def test_short_loops_have_no_bar(set_stderr):
    stderr = set_stderr(Terminal())
    terminal.show_bars()
    assert list(terminal.track([1, 2, 3], "reading", "arrays")) == [1, 2, 3]
    assert "reading" not in stderr.getvalue()


def test_prints_only_lines_without_terminal(set_stderr, capsys):
    stderr = set_stderr(Terminal())
    # Bars are off by default.
    with terminal.progress_bar("training", 200, "steps", delay=0) as update:
        update(150)
    assert not stderr.getvalue()
    set_stderr(io.StringIO())  # stderr is a file
    terminal.show_bars()
    with terminal.progress_bar("training", 200, "steps", delay=0) as update:
        update(150)
        terminal.write("step 150")
    assert not sys.stderr.getvalue() and capsys.readouterr().out == "step 150\n"
    set_stderr(None)  # stderr is closed
    terminal.show_bars()
    assert list(terminal.track([1], "reading", "arrays")) == [1]
