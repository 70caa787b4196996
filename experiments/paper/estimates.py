"""Estimates the cost of a study: runs, images, exaFLOPs and the time on this machine."""

import time

import keras
from keras import ops
from ml_collections import ConfigDict
from scales import Scale
from study import Study

from keras_vit import cost, families, recipes, tasks
from keras_vit.tpu.inputs import InputShapes

# Training speed as a fraction of the speed of a large matrix product; small models are slower.
_EFFICIENCY = 0.25
_SECONDS_PER_RUN = 20  # for compiling, evaluating and saving

_MULTIPLY_ACCUMULATES: dict[str, int] = {}  # cache, by the key of `exaflops_of`


def images_of(run):
    """Returns the number of images that a run trains on, counting repetitions; 0 if it does not
    train."""
    steps = run.config.get("total_steps", 0)
    if steps:
        return steps * run.config["batch_size"]
    if not run.config.get("total_epochs"):
        return 0
    name = run.config["data"]["name"]  # JFT-300M is `tfrecords` in a config
    return round(
        run.config["total_epochs"]
        * recipes.NUM_EXAMPLES["jft300m" if name == "tfrecords" else name]
    )


def exaflops_of(run):
    """Returns the training cost of a run in 1e18 FLOPs."""
    if not images_of(run):
        return 0.0
    fields = run.config["data"]
    side = fields["image_size"]
    image_shape = (side, side, fields["channels"]) if side else tuple(fields["image_shape"])
    key = str(
        (run.config.get("task"), run.config.get("architecture"), run.config["model"], image_shape)
    )
    if key not in _MULTIPLY_ACCUMULATES:
        task = tasks.get(ConfigDict(recipes.defaults(**run.config)))
        model = cost.build_abstract(task.build_model, InputShapes(image_shape, 2))  # classes
        _MULTIPLY_ACCUMULATES[key] = cost.multiply_accumulates(model, table_6=True)
    return cost.exaflops(_MULTIPLY_ACCUMULATES[key], images_of(run))


def estimate(study: Study, scale: Scale, flops_per_second: float) -> dict[str, float]:
    """Returns the `runs`, `images`, `exaflops` and `hours` of a study.

    Args:
        study, scale: the study and its scale, which determine its runs.
        flops_per_second: speed of this machine, from `measure_flops`.
    """
    runs = study.runs(scale)
    exaflops = sum(map(exaflops_of, runs))
    return {
        "runs": len(runs),
        "images": sum(map(images_of, runs)),
        "exaflops": exaflops,
        "hours": (exaflops * 1e18 / (_EFFICIENCY * flops_per_second) + _SECONDS_PER_RUN * len(runs))
        / 3600,
    }


def measure_flops(size: int = 1024, seconds: float = 0.3) -> float:
    """Measures the FLOPs per second of float32 matrix products on the device of Keras' backend."""
    matrix = keras.random.normal((size, size), seed=0)

    def product():
        return ops.convert_to_numpy(ops.matmul(matrix, matrix)[:1, :1])

    product()  # warms up
    count = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        product()
        count += 1
    return 2 * size**3 * count / (time.perf_counter() - start)


def model_name(run):
    """Returns a short description of the model of a run."""
    model = run.config["model"]
    if "depth" in model:
        factor = model.get("width_factor", 1) * model.get("width", 64) / 64
        return f"BiT-R{model['depth']}x{factor:g}"
    keys = ("patch_size", "num_layers", "hidden_size", "resnet_blocks")
    name = families.find_size({key: model.get(key) or None for key in keys})
    return (
        name
        or f"{model['num_layers']} layers of width {model['hidden_size']}, "
        f"patches of {model['patch_size']}"
    )
