"""Tests of the estimates of a `Check` and of its report."""

import dataclasses
import re

import pytest

from keras_vit.tpu.program import Program
from keras_vit.tpu.report import report
from keras_vit.tpu.results import Check
from keras_vit.tpu.topologies import GIB, get_topology

TOO_LARGE = Program(False, "RESOURCE_EXHAUSTED: memory", out_of_memory=True)


def _make_check(train, evaluation=None, **changes):
    fields = {
        "topology": get_topology("v3:2x2"),
        "backend": "tensorflow",
        "batch_size": 64,
        "accumulate_steps": 1,
        "precision": "mixed_bfloat16",
        "train": train,
        "evaluation": evaluation or Program(True),
        "state_bytes": 1000,
        "all_reduce_bytes": 164 * 10**6,
        "model_flops": 0.0,
        "total_steps": 1000,
        "fitting_batch_per_device": 8,
    }
    return Check(**{**fields, **changes})


def test_estimate_is_roofline_plus_all_reduce():
    # A device of a v3 computes 61.5 TFLOP/s, reads 450 GB/s and sends 164 GB/s.
    compute = _make_check(Program(True, argument_bytes=1100, flops=61.5e12, bytes_accessed=45e9))
    assert (compute.compute_seconds, compute.bandwidth_seconds) == (1.0, 0.1)
    assert compute.all_reduce_seconds == pytest.approx(2 * 7 / 8 * 1e-3)
    assert compute.step_seconds_estimate == pytest.approx(1.00175)
    assert compute.images_per_second_estimate == pytest.approx(8 / 1.00175)
    assert compute.device_hours_estimate == pytest.approx(1000 * 1.00175 * 8 / 3600)
    reads_more = _make_check(Program(True, flops=61.5e11, bytes_accessed=450e9))
    assert reads_more.step_seconds_estimate == pytest.approx(1.00175)
    # The compiler may count a loop body only once.
    assert _make_check(Program(True, flops=1.0), model_flops=61.5e12).compute_seconds == 1.0
    one_device = _make_check(Program(True, flops=1.0), topology=get_topology("v5e:1x1"))
    assert one_device.all_reduce_seconds == 0


def test_flops_and_bytes_are_per_step():
    check = _make_check(
        Program(True, flops=2.0, bytes_accessed=4e9, steps=10, traffic=(("f32[4]", 10**9),)),
        backend="jax",
    )
    assert (check.flops, check.bytes_accessed) == (2.0, 4e8)
    assert "  f32[4]: 0.1" in report(check, arrays=1)


@pytest.mark.parametrize(("backend", "speed"), [("tensorflow", 2.0), ("jax", 8.0)])
def test_tensorflow_evaluates_micro_batches(backend, speed):
    evaluation = Program(True, flops=61.5e12)
    check = _make_check(evaluation, evaluation, accumulate_steps=4, backend=backend)
    assert check.evaluation_images_per_second_estimate == speed


def test_report_prints_compile_error():
    refused = Program(False, "UNIMPLEMENTED: an operation\nand why")
    check = _make_check(refused)
    assert not check.compiles
    assert not check.fits
    assert check.images_per_second_estimate == 0
    error = ["the training step does not compile: UNIMPLEMENTED: an operation", "and why"]
    assert report(check)[1:] == error
    assert "the evaluation step does not compile" in report(_make_check(TOO_LARGE, refused))[1]


def test_unknown_memory_is_not_that_of_the_other_step():
    check = _make_check(TOO_LARGE, Program(True, temporary_bytes=GIB))
    assert check.memory_bytes == 0
    assert "does not fit: needs more than 15.5 GiB" in report(check)[1]
    known = dataclasses.replace(TOO_LARGE, required_bytes=20 * GIB)
    assert dataclasses.replace(check, train=known).memory_bytes == 20 * GIB
    assert dataclasses.replace(check, train=Program(True)).memory_bytes == GIB


def test_report_prints_error_of_evaluation_that_does_not_fit():
    lines = report(_make_check(Program(True, flops=61.5e12), TOO_LARGE))
    assert lines[-1] == TOO_LARGE.error
    assert lines[2].endswith("evaluation step: does not fit")
    assert not any("evaluation 0" in line for line in lines)


def test_price_covers_all_devices():
    check = _make_check(Program(True, flops=61.5e12), all_reduce_bytes=0, total_steps=3600)
    assert check.device_hours_estimate == 8.0
    assert re.search("3,600 steps: 8 device-hours.*12.00 at 1.5 per", "\n".join(report(check, 1.5)))
    unknown = dataclasses.replace(check, total_steps=0)
    assert "is unknown: set data.num_examples" in "\n".join(report(unknown, 1.5))
