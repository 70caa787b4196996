"""What a run says before it starts: what it was asked for, on which devices, and what it will cost."""

from keras_vit import cost


def introduction(config, *, strategy, total_steps, num_examples, parameters):
    """The lines that a run starts with.

    Args:
        config: the recipe.
        strategy: the devices.
        total_steps: of the whole run.
        num_examples: of the training split.
        parameters: of the model.

    Returns:
        A list of lines.
    """
    fields = {name: value for name, value in config.items() if not hasattr(value, "items")}
    lines = ["config: " + _words(fields)]
    lines += [f"  {name}: {_words(value)}" for name, value in config.items() if name not in fields]
    replicas = strategy.num_replicas_in_sync
    epochs = total_steps * config.batch_size / num_examples
    lines.append(
        f"{_name(strategy)}: {replicas} x {config.batch_size // replicas} images a step, "
        f"{config.precision}, {parameters:,} parameters, {total_steps} steps on {num_examples:,} images "
        f"({epochs:.4g} epochs)"
    )
    forward = cost.multiply_accumulates(**config.model)
    total = cost.exaflops(forward, total_steps * config.batch_size)
    lines.append(f"{2 * forward / 1e9:.4g} GFLOPs an image forward, {total:.3g} exaFLOPs for the whole training")
    return lines


def _words(fields):
    return " ".join(f"{name}={value!r}" for name, value in fields.items())


def _name(strategy):
    """TensorFlow's public name of it."""
    name = type(strategy).__name__
    return {"CollectiveAllReduceStrategy": "MultiWorkerMirroredStrategy"}.get(name, name.lstrip("_"))
