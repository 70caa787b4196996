"""Formats a `Check` as text."""

from keras_vit.terminal import first_line
from keras_vit.tpu.search import MOST_IMAGES


def report(check, price=0.0, arrays=0):
    """Returns the lines of a report with the HBM traffic of up to `arrays` arrays; `price` is per
    device-hour."""
    topology = check.topology
    lines = [
        f"{topology.name}: {topology.num_devices} x {topology.device.kind}, "
        f"{check.batch_size_per_device} images each (batch {check.batch_size}), {check.backend}"
    ]
    if not check.compiles:
        step = "training" if check.error == check.train.error else "evaluation"
        text = f"the {step} step does not compile: {first_line(check.error)}"
        return [*lines, text, *check.error.strip().splitlines()[1:20]]
    lines.append(_verdict(check))
    if check.train.compiles:
        lines += _memory(check) + _time(check, price)
        lines += ["HBM traffic of a training step, GB:"] if arrays else []
        traffic = check.train.traffic[:arrays]
        lines += [f"  {name}: {size / check.train.steps / 1e9:.3g}" for name, size in traffic]
    if check.error:
        lines += check.error.strip().splitlines()[:3]
    return lines


def _verdict(check):
    limit = format_bytes(check.memory_limit_bytes)
    fitting = check.fitting_batch_per_device
    if check.fits:
        verdict = f"compiles and fits: {format_bytes(check.memory_bytes)} of {limit} per device"
        if fitting > check.batch_size_per_device:
            verdict += f"; up to {fitting} images per device fit"
        return verdict + ("; larger batches were not tried" if fitting >= MOST_IMAGES else "")
    needed = f"{format_bytes(check.memory_bytes)} of" if check.memory_bytes else "more than"
    verdict = f"does not fit: needs {needed} {limit} per device"
    if not fitting:
        parts = check.accumulate_steps
        least = "1 image fits" if parts == 1 else f"{parts} images fit"
        return f"{verdict}; not even {least} on a device"
    batch_size = fitting * check.topology.num_devices
    return f"{verdict}; {fitting} images per device fit (batch_size={batch_size})"


def _memory(check):
    program = check.train
    parts = {
        "weights, optimizer and EMA": check.state_bytes,
        "batch and padding": max(program.argument_bytes - check.state_bytes, 0),
        "activations, gradients and outputs": program.temporary_bytes,
        "program": program.program_bytes,
    }
    text = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items())
    evaluation = check.evaluation
    size = format_bytes(evaluation.memory_bytes) if evaluation.compiles else "does not fit"
    return [f"training step: {text}; evaluation step: {size}"]


def _time(check, price):
    device = check.topology.device
    bound = "compute" if check.compute_seconds >= check.bandwidth_seconds else "bandwidth"
    lines = [
        f"{check.train.flops / 1e12:.4g} TFLOPs per step (counted by the compiler) or "
        f"{check.model_flops / 1e12:.4g} (summed over the layers); "
        f"{check.bytes_accessed / 1e9:.4g} GB of HBM traffic",
        f"roofline estimate (not measured): {check.compute_seconds * 1e3:.4g} ms for the larger of "
        f"these FLOP counts at the published {device.peak_flops / 1e12:.4g} TFLOP/s, "
        f"{check.bandwidth_seconds * 1e3:.4g} ms for the traffic at {device.bandwidth / 1e9:.4g} "
        f"GB/s; bound by {bound}",
        f"all-reduce of gradients: {check.all_reduce_bytes / 1e9:.4g} GB, "
        f"{check.all_reduce_seconds * 1e3:.3g} ms at {device.interconnect / 1e9:.4g} GB/s, assumed "
        "not to overlap",
        f"{check.step_seconds_estimate * 1e3:.4g} ms per step, "
        f"{check.images_per_second_estimate:.4g} images/s per device, "
        f"{check.images_per_second_estimate * check.topology.num_devices:.4g} in total",
    ]
    if check.evaluation.compiles:
        speed = check.evaluation_images_per_second_estimate
        lines[-1] += f"; evaluation {speed:.4g} images/s per device"
    if check.precision == "float32":
        lines.append(
            "float32 activations need twice as much memory and traffic as with "
            "precision='mixed_bfloat16'"
        )
    hours = check.device_hours_estimate
    if not hours:
        return [*lines, "the number of steps is unknown: set data.num_examples or total_steps"]
    cost = f"; {price * hours:,.2f} at {price:g} per device-hour" if price else ""
    lines.append(
        f"{check.total_steps:,} steps: {hours:.4g} device-hours, excluding evaluation and input "
        f"stalls{cost}"
    )
    return lines


def format_bytes(number):
    for unit in ("B", "KiB", "MiB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1024
    return f"{number:.3g} GiB"
