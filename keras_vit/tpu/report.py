"""A `Check` in words."""

from keras_vit.tpu.program import first_line
from keras_vit.tpu.search import MOST_IMAGES


def report(check, price=0.0, arrays=0):
    """The lines of a report.

    Args:
        check: a `Check`.
        price: of a device for an hour, in any currency; 0 for no price.
        arrays: how many of those that the training step moves most are listed.

    Returns:
        A list of lines.
    """
    topology, size = check.topology, check.batch_size_per_device
    lines = [
        f"{topology.name}: {topology.num_devices} x {topology.device.kind}, {size} images each "
        f"(batch {check.batch_size}), {check.backend}"
    ]
    if not check.compiles:
        step = "training" if check.error == check.train.error else "evaluation"
        text = f"the {step} step does not compile: {first_line(check.error)}"
        return [*lines, text, *check.error.strip().splitlines()[1:20]]
    if check.host_operations:
        lines.append(f"does not run without the host: {', '.join(check.host_operations)}")
    lines.append(_verdict(check))
    if check.train.compiles:
        lines += _memory(check) + _time(check, price) + _collectives(check) + _traffic(check, arrays)
    elif check.error:
        lines += check.error.strip().splitlines()[:3]
    for change in check.changes:
        images = change.fitting_batch_per_device
        result = f"up to {images} images a device were seen to fit" if images else f"{size} images a device do not fit"
        lines.append(f"with {change.text}: {result}")
    return lines


def _verdict(check):
    limit = check.memory_limit_bytes
    if check.fits:
        verdict = f"compiles and fits: {format_bytes(check.memory_bytes)} of {format_bytes(limit)} a device"
        if check.fitting_batch_per_device > check.batch_size_per_device:
            verdict += f"; up to {check.fitting_batch_per_device} images a device fit"
        if check.fitting_batch_per_device >= MOST_IMAGES:
            verdict += ", and more were not tried"
        return verdict
    needed = f"{format_bytes(check.memory_bytes)}" if check.memory_bytes else "more"
    verdict = f"does not fit: {needed} are needed of a device's {format_bytes(limit)}"
    if not check.fitting_batch_per_device:
        least = "1 image fits" if check.accumulate_steps == 1 else f"{check.accumulate_steps} images fit"
        return f"{verdict}; not even {least} on a device"
    batch = check.fitting_batch_per_device * check.topology.num_devices
    return f"{verdict}; {check.fitting_batch_per_device} images a device fit (batch_size={batch})"


def _memory(check):
    parts = {
        "weights, optimizer and averages": check.state_bytes,
        "batch": check.batch_bytes,
        "activations, gradients and outputs": check.train.temporary_bytes,
        "program": check.train.program_bytes,
    }
    text = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items())
    return [f"training step: {text}; evaluation step: {format_bytes(check.evaluation.memory_bytes)}"]


def _time(check, price):
    device = check.topology.device
    products = f"{check.product_flops / 1e12:.4g} of them in products, " if check.product_flops else ""
    divided = ""
    if check.weights_are_divided:
        divided = f"; weights are divided, and what the program exchanges takes {check.exchange_seconds * 1e3:.3g} ms"
    lines = [
        f"{check.flops / 1e12:.4g} TFLOPs a step by the compiler, {products}{check.model_flops / 1e12:.4g} by formula; "
        f"{check.bytes_accessed / 1e9:.4g} GB moved",
        f"estimate (a roofline; not measured): {check.compute_seconds * 1e3:.4g} ms for the larger of these FLOP "
        f"counts at the published {device.peak_flops / 1e12:.4g} TFLOP/s, {check.bandwidth_seconds * 1e3:.4g} ms for "
        f"the bytes at {device.bandwidth / 1e9:.4g} GB/s; {check.bound} bounds it",
        f"sum of the gradients: {check.all_reduce_bytes / 1e9:.4g} GB, {check.all_reduce_seconds * 1e3:.3g} ms at "
        f"{device.interconnect / 1e9:.4g} GB/s{divided}, taken to come after the rest",
        f"{check.step_seconds_estimate * 1e3:.4g} ms a step, {check.images_per_second_estimate:.4g} images/s a device, "
        f"{check.images_per_second_estimate * check.topology.num_devices:.4g} in all; evaluation "
        f"{check.evaluation_images_per_second_estimate:.4g} images/s a device",
    ]
    if check.precision == "float32":
        lines.append(
            "float32 activations take and move twice the bytes of precision='mixed_bfloat16'; a TPU multiplies in "
            "bfloat16 either way"
        )
    hours = check.device_hours_estimate
    if hours:
        line = f"{check.total_steps:,} steps: {hours:.4g} device-hours, without evaluation and waiting for input"
        lines.append(f"{line}; {price * hours:,.2f} at {price:g} an hour and device" if price else line)
    else:
        lines.append("how many steps the recipe has is not known here: set data.num_examples or total_steps")
    return lines


def _collectives(check):
    if check.backend != "jax":
        return []  # the program of a replica has none
    steps = check.train.steps
    texts = [
        f"{count / steps:g} x {opcode}, {size / steps / 1e9:.4g} GB" for opcode, count, size in check.train.collectives
    ]
    return [f"what the devices exchange in a training step: {'; '.join(texts) or 'nothing'}"]


def _traffic(check, arrays):
    lines = ["what a training step moves between a device and its memory, GB read and written:"] if arrays else []
    for name, reads, writes in check.train.traffic[:arrays]:
        reads, writes = (size / check.train.steps / 1e9 for size in (reads, writes))
        lines.append(f"  {name}: {reads:.3g}, {writes:.3g}")
    return lines


def format_bytes(number):
    """A size in the unit that suits it, of 1,024."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1024
    return f"{number:.3g} GiB"
