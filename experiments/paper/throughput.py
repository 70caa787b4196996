"""Figure 12: images per second and the largest batch, by image size."""

import time

import keras
import tpu_table
from small_models import small_models
from study import Run, Study

from keras_vit import tasks
from keras_vit.tpu.inputs import InputShapes

_PAPER_MODELS = ("ViT-B/32", "ViT-B/16", "ViT-L/32", "ViT-L/16", "ViT-H/14", "R50x1", "R50x2")
_SIDES = {"tiny": (16,), "small": (16, 32, 64, 128, 256), "paper": (64, 128, 224, 384, 512)}
_CLASSES = 1000
_LARGEST_BATCH = {"tiny": 2, "small": 1024, "paper": 2**14}
_SECONDS = 10.0  # on a CPU, stop doubling the batch size if a call takes longer


def _runs(scale):
    for side in _SIDES[scale.name]:
        for model, config in _models(scale):
            image_size = side // 14 * 14 if model.endswith("/14") else side
            image_shape = (image_size, image_size, 3)
            config |= {
                "recipe": "inference",
                "evals": (),
                "total_steps": 0,
                "total_epochs": 0.0,
                "batch_size": _LARGEST_BATCH[scale.name],
                "data": {**config["data"], "image_size": 0, "image_shape": image_shape},
            }
            name = f"{model.replace('/', '_')}-{image_size}"
            yield Run(name, config, {"model": model, "pixels": image_size})
    if scale.path.endswith(".csv"):
        for row in tpu_table.read(scale.path):
            if row.mode == "inference" and not row.error:
                yield _compiled(row)


def _models(scale):
    """Returns `(name, config)` of each model."""
    if scale.is_paper:
        for model in _PAPER_MODELS:
            choices = {"epochs": 7.0} if model == "ViT-L/16" else {}
            yield model, scale.paper_pretraining(model, **choices)
    else:
        for family, (architecture, model) in small_models(scale).items():
            yield family, scale.pretraining(architecture=architecture, model=model)


def _compiled(row):
    """Returns a row of `tpu_table` as a finished run."""
    results = {"images_per_second": row.images_per_second, "largest_batch": row.batch_per_device}
    model = f"{row.model}, compiled for {row.topology}"
    name = f"{row.model.replace('/', '_')}-{row.image_size}-{row.topology.replace(':', '-')}"
    return Run(name, {}, {"model": model, "pixels": row.image_size}, results=results)


def measure(config):
    """Measures the images per second of a model at the fastest of the batch sizes 1, 2, 4, ...

    Args:
        config: a config with the model and the image shape; `batch_size` is the largest batch size
            to try.

    Returns: `images_per_second` and `batch`, the fastest batch size. On an accelerator, also
        `largest_batch`, the largest of these batch sizes that fits in memory.
    """
    image_shape = tuple(config.data.image_shape)
    model = tasks.get(config).build_model(InputShapes(image_shape, _CLASSES))
    list_devices = keras.distribution.list_devices
    accelerators = list_devices("gpu") or list_devices("tpu")
    results = {"images_per_second": 0.0, "batch": 0}
    batch = 1
    while batch <= config.batch_size:
        images = keras.ops.convert_to_numpy(
            keras.random.uniform((batch, *image_shape), -1, 1, seed=config.seed)
        )
        try:
            seconds = _seconds(model, images)
        except Exception as error:  # out-of-memory errors differ by backend and version
            if not _is_out_of_memory(error) or batch == 1:
                raise
            break
        rate = batch / seconds
        if rate > results["images_per_second"]:
            results |= {"images_per_second": rate, "batch": batch}
        if accelerators:
            results["largest_batch"] = batch
        elif seconds > _SECONDS or rate < 0.8 * results["images_per_second"]:
            break
        batch *= 2
    return results


def _seconds(model, images, calls=3):
    """Returns the time of the fastest call in seconds. A first call, which compiles the model, is
    not counted."""
    model.predict_on_batch(images)
    shortest = float("inf")
    for _ in range(calls):
        start = time.perf_counter()
        model.predict_on_batch(images)
        shortest = min(shortest, time.perf_counter() - start)
    return shortest


def _is_out_of_memory(error):
    text = f"{type(error).__name__} {error}"
    return any(
        word in text for word in ("ResourceExhausted", "RESOURCE_EXHAUSTED", "Out of memory", "OOM")
    )


STUDY = Study(
    title="Speed and memory against the size of images (Figure 12)",
    question="How do images per second and the largest batch decrease with the image size?",
    runs_of=_runs,
    metrics={"images/s": "images_per_second", "batch": "batch", "largest batch": "largest_batch"},
    picture=("slopes", "pixels", ("images/s", "largest batch"), "model"),
    notes=(
        "We measure inference in float32 on this machine, at the fastest of the batch sizes 1, 2, "
        "4, and so on. The paper used a TPUv3 core.",
        "The largest batch is the largest of these batch sizes that fits into an accelerator's "
        "memory. It is not measured on CPUs. `tpu_table.py --table=FILE.csv --modes=inference` "
        "computes the largest batch that the TPU's compiler accepts, and estimates images per "
        "second; `--data_path=FILE.csv` adds these rows.",
    ),
    measure=measure,
)
