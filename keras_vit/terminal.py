"""Prints lines of text, and draws progress bars below them.

tqdm draws the bars on standard error, if standard error is a terminal and the command has called
`show_bars`.
"""

import contextlib
import sys

_bars_shown = False


def show_bars():
    """Turns on progress bars for this process if standard error is a terminal."""
    global _bars_shown
    _bars_shown = sys.stderr is not None and sys.stderr.isatty()


def write(text, file=None):
    """Prints text to `file` (by default standard output), flushed and above any progress bars."""
    file = file or sys.stdout
    if not _bars_shown:
        print(text, flush=True, file=file)
        return
    from tqdm import tqdm

    tqdm.write(str(text), file=file)
    file.flush()


def first_line(error):
    """Returns the first line of a text or an exception's message, cut to 200 characters; the name
    of its type if it is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]


@contextlib.contextmanager
def progress_bar(name, total, unit, done=0, delay=0.5):
    """Yields `update(done)`, which sets the number of finished `unit`s.

    If progress bars are on, a bar appears after `delay` seconds.
    """
    if not _bars_shown:
        yield lambda done: None
        return
    from tqdm import tqdm

    bar = tqdm(
        total=total,
        initial=done,
        desc=name,
        unit=f" {unit}",
        delay=delay,
        leave=False,
        dynamic_ncols=True,
        bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt}{unit} [{elapsed}<{remaining}]",
    )
    with bar:
        yield lambda done: bar.update(done - bar.n)


def track(items, name, unit, total=None):
    """Iterates over items and updates a `progress_bar`; `total` is by default their length."""
    with progress_bar(name, len(items) if total is None else total, unit) as update:
        for done, item in enumerate(items, start=1):
            yield item
            update(done)
