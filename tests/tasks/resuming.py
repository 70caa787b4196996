"""A check of runs that stop and resume."""

from ..shared import assert_same_weights, tables_of
from ..training import small_run


def train_and_resume(folder, moment, train):
    """Trains, resumes a copy of the run, compares both bit for bit, and returns the log lines of
    the resumed run and the two results.

    Args:
        folder: folder for the workdirs `whole` and `stopped`.
        moment: start of the log line at which the workdir is copied.
        train: function that trains with `(workdir, write)` and returns the `RunResult`.
    """
    whole_dir = folder / "whole"
    stopped_dir = folder / "stopped"
    whole = train(whole_dir, small_run.writer(whole_dir, moment, stopped_dir, print))
    lines = []
    resumed = train(stopped_dir, lines.append)
    assert any(line.startswith("resuming from step") for line in lines)
    assert_same_weights(resumed.model, whole.model)
    assert tables_of(stopped_dir) == tables_of(whole_dir)
    return lines, resumed, whole
