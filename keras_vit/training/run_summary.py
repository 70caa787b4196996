"""What a run prints before it starts: the fields that differ from the defaults, the devices, and the cost."""

from keras_vit import cost, data, recipes, tasks
from keras_vit.training.progress import wrap


def run_summary(config, *, engine, inputs, total_steps):
    """The lines that a run with a built engine starts with, a list of texts."""
    model = recipes.model_fields(config.task, config.architecture) if config.task in tasks.TASKS else {}
    defaults = {**recipes.defaults(), "data": data.defaults(), "model": model}
    lines = ["config, where it differs from the defaults (config.json has every field):"]
    top = {name: value for name, value in config.items() if not hasattr(value, "items")}
    lines += _line("run", _changed(top, defaults))
    for name, value in config.items():
        if name not in top:
            lines += _line(name, _changed(value, defaults.get(name, {})))
    lines.append(inputs.summary())
    num_examples = inputs.train.num_examples
    epochs = total_steps * config.batch_size / num_examples
    lines.append(
        f"{engine.description}: {engine.num_devices} x {config.batch_size // engine.num_devices} images a step, "
        f"{config.precision}, {engine.model.count_params():,} parameters, {total_steps} steps on {num_examples:,} "
        f"images ({epochs:.4g} epochs)"
    )
    try:
        total = cost.exaflops(cost.multiply_accumulates(engine.model, table_6=True), total_steps * config.batch_size)
        lines.append(f"{cost.flops(engine.model) / 1e9:.4g} GFLOPs an image forward")
        lines.append(f"{total:.3g} exaFLOPs for the whole training, counted as in the paper's Table 6")
    except ValueError:
        pass  # the model has layers whose products are unknown
    return [wrap(line) for line in lines]


def _changed(fields, defaults):
    return {name: value for name, value in fields.items() if name not in defaults or value != defaults[name]}


def _line(group, fields):
    return [f"  {group}: " + " ".join(f"{name}={value!r}" for name, value in fields.items())] if fields else []
