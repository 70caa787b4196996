"""What a study costs before it starts: images, exaFLOPs, and a guess of its time on this machine."""

import time

import keras
from keras import ops

from keras_vit import architectures, cost

# Examples by the name of a dataset, for runs that are counted in epochs; JFT-300M is `tfrecords` in a config.
_EXAMPLES = {"imagenet2012": 1_281_167, "imagenet21k": 14_197_122, "tfrecords": 303_000_000}
# The share of a large product's speed that training reaches; small models reach less.
_EFFICIENCY = 0.25
_SECONDS_A_RUN = 20  # of compiling, evaluating and saving


def images_of(run):
    """How many images a run trains on, each as often as it is seen."""
    steps = run.config.get("total_steps", 0)
    if steps:
        return steps * run.config["batch_size"]
    return round(run.config["total_epochs"] * _EXAMPLES[run.config["data"]["name"]])


def exaflops_of(run):
    """What the training of a run costs, in 1e18 FLOPs."""
    fields, model = run.config["data"], dict(run.config["model"])
    side = fields.get("image_size") or fields.get("image_shape")[0]
    model["input_shape"] = (side, side, fields.get("channels", 3))
    if run.config.get("task") == "resnet_classification":
        forward = cost.bit_multiply_accumulates(**model)
    elif run.config.get("task") == "axial_classification":
        forward = cost.axial_multiply_accumulates(**model)
    else:
        forward = cost.multiply_accumulates(**model)
    return cost.exaflops(forward, images_of(run))


def estimate(study, scale, flops):
    """A dict of `runs`, `images`, `exaflops` and `hours` of a study.

    Args:
        study: the `Study`.
        scale: the `Scale`.
        flops: a second, of this machine; `measure_flops` gives them.
    """
    runs = study.runs(scale)
    exaflops = sum(map(exaflops_of, runs))
    return {
        "runs": len(runs),
        "images": sum(map(images_of, runs)),
        "exaflops": exaflops,
        "hours": (exaflops * 1e18 / (_EFFICIENCY * flops) + _SECONDS_A_RUN * len(runs)) / 3600,
    }


def measure_flops(size=1024, seconds=0.3):
    """The FLOPs a second of products of float32 matrices of `size`, on the device of Keras' backend."""
    matrix = keras.random.normal((size, size), seed=0)

    def product():
        return ops.convert_to_numpy(ops.matmul(matrix, matrix)[:1, :1])

    product()
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        product()
        count += 1
    return 2 * size**3 * count / (time.perf_counter() - start)


def model_name(run):
    """What a run trains, in a few words."""
    model = run.config["model"]
    if "depth" in model:
        return f"BiT-R{model['depth']}x{model.get('width_factor', 1)}"
    keys = ("patch_size", "num_layers", "hidden_size", "resnet_blocks")
    name = architectures.find_vision_transformer(**{key: model.get(key) or None for key in keys})
    return name or f"{model['num_layers']} layers of {model['hidden_size']}, patches of {model['patch_size']}"
