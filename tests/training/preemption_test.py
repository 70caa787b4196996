"""Tests of the signals that stop a run or an export."""

import os
import signal

import pytest

from keras_vit.training.preemption import Preempted, catch_stop_signals, raise_on_stop_signals


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_signal_is_recorded_and_handler_restored(name):
    number = getattr(signal, name)
    handler = signal.default_int_handler  # explicit, because `nohup` makes processes ignore SIGHUP
    before = signal.signal(number, handler)
    try:
        with catch_stop_signals() as request:
            assert not request.signal
            os.kill(os.getpid(), number)
            assert request.signal == name
        assert signal.getsignal(number) == handler
    finally:
        signal.signal(number, before)


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


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_signal_during_export_raises_preempted(name):
    number = getattr(signal, name)
    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(Preempted, match=f"{name} during the export"), raise_on_stop_signals("the export"):
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) == signal.default_int_handler
    finally:
        signal.signal(number, before)
