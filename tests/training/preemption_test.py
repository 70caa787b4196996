"""Tests of the signals that stop a run or an export."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keras_vit.training.preemption import Preempted, catch_stop_signals, raise_on_stop_signals


def _wait_for(condition):
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_signal_is_recorded_and_handler_restored(name):
    number = getattr(signal, name)
    before = signal.getsignal(number)
    with catch_stop_signals() as request:
        assert not request.signal
        os.kill(os.getpid(), number)
        assert request.signal == name
    assert signal.getsignal(number) == before


def test_sigint_after_first_signal_interrupts():
    with pytest.raises(KeyboardInterrupt), catch_stop_signals() as request:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # a preempted machine may repeat the signal
        assert request.signal == "SIGTERM"
        os.kill(os.getpid(), signal.SIGINT)


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    try:
        with catch_stop_signals() as request:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not request.signal
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signal_is_announced_at_once(capfd):
    with catch_stop_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        _wait_for(lambda: "SIGTERM: saving after the current steps" in capfd.readouterr().err)


def test_only_first_signal_during_export_raises():
    with (
        pytest.raises(Preempted, match="SIGINT during the export"),
        raise_on_stop_signals("the export"),
    ):
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # `keras-vit sweep` forwards Ctrl-C as SIGTERM


SLOW = """
import sys
from keras import ops
from keras_vit import tasks
import small_run

class Slow(tasks.Classification):
    def losses_and_metrics(self, model, batch, training=False):
        losses, metrics = super().losses_and_metrics(model, batch, training)
        matrix = ops.full((1024, 1024), 1 / 1024)
        number = ops.fori_loop(0, 600, lambda i, x: ops.matmul(x, matrix), matrix)[0, 0]
        return losses + 1e-9 * ops.stop_gradient(number), metrics

changes = {"accumulate_steps": 1, "total_steps": 99}
small_run.start("alone", sys.argv[1], custom_task=Slow(small_run.config_of(**changes)), **changes)
"""


@pytest.mark.slow  # a step must take longer than the second after which the process is ended
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_second_ctrl_c_ends_a_long_call(backend, tmp_path):
    pytest.importorskip(backend)
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    log = tmp_path / "log"
    run = tmp_path / "run"
    command = [sys.executable, "-c", SLOW, run]
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        _wait_for(lambda: "training began" in log.read_text() or process.poll())
        time.sleep(0.5)  # until the second step runs
        process.send_signal(signal.SIGINT)
        _wait_for(lambda: "SIGINT: saving after the current steps" in log.read_text())
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130, log.read_text()
    finally:
        process.kill()
    # The call did not end: only the first step was recorded.
    assert (run / "metrics.csv").read_text().count("\n") == 2
    assert "interrupted; files that were already saved are unchanged" in log.read_text()
    assert not list(run.rglob("*part*")) and not (run / "checkpoints").exists()
