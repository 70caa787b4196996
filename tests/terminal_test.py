"""Tests of progress bars on a terminal, and of plain lines elsewhere."""

import io
import sys

import pytest

from keras_vit import terminal


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def show_bars_on(monkeypatch):
    """Returns a function that replaces `sys.stderr` until the end of the test, and calls
    `show_bars`."""
    monkeypatch.setattr(terminal, "_bars_shown", False)

    def show_bars_on(file):
        monkeypatch.setattr(sys, "stderr", file)
        terminal.show_bars()

    return show_bars_on


def _train():
    """Writes a line below which a bar is drawn, if bars are on."""
    with terminal.progress_bar("training", 200, "steps", done=50, delay=0) as update:
        update(150)
        terminal.write("step 150")


def test_bar_is_drawn_below_lines_and_erased(show_bars_on, capsys):
    show_bars_on(Terminal())
    _train()
    drawn = sys.stderr.getvalue()
    assert "training:  25%" in drawn and "50/200 steps" in drawn and "150/200 steps" in drawn
    assert drawn.endswith("\r")  # the bar is erased at the end
    assert capsys.readouterr().out == "step 150\n"


def test_short_loops_have_no_bar(show_bars_on):
    show_bars_on(Terminal())
    assert list(terminal.track([1, 2, 3], "reading", "arrays")) == [1, 2, 3]
    assert "reading" not in sys.stderr.getvalue()


def test_prints_only_lines_if_stderr_is_a_file(show_bars_on, capsys):
    show_bars_on(io.StringIO())
    _train()
    assert not sys.stderr.getvalue() and capsys.readouterr().out == "step 150\n"


def test_stderr_may_be_closed(show_bars_on):
    show_bars_on(None)
    assert list(terminal.track([1], "reading", "arrays")) == [1]
