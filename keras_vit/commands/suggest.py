"""Looks at a folder of images, times a training step on this machine, and prints commands to start
with.

    keras-vit suggest --data=photos
    keras-vit suggest --data=photos --minutes=10

The folder has a subfolder of images for each class, as for `keras-vit train`. Nothing is
downloaded. The times do not include the start and the compilation.
"""

import contextlib
import shlex
import time

import numpy as np
import tensorflow as tf
from absl import flags

from keras_vit import data, tasks, training
from keras_vit.configs import fashion, small_data
from keras_vit.data.images import header_size
from keras_vit.recipes import small_data as rules
from keras_vit.training.progress import data_summary

FLAGS = flags.FLAGS
SMALL = 64  # pixels; for images up to this side, a model without pretraining was better


def define_flags():
    flags.DEFINE_string(
        "data", None, "Folder with a subfolder of images for each class.", required=True
    )
    flags.DEFINE_float("minutes", 30.0, "Longest training in minutes.", lower_bound=1.0)


def main():
    tuned = small_data.get_config("DINOv2-S/14,folder")
    tuned.data.path = FLAGS.data
    training.choose_engine(tuned)  # chooses the devices, before data start TensorFlow
    inputs = data.from_config(tuned.data, batch_size=tuned.batch_size, seed=0)
    height, width = _median_size(inputs.train)
    print(f"{data_summary(inputs)}, median size {width:.0f} x {height:.0f} pixels")
    if max(height, width) <= SMALL:
        scratch = fashion.get_config()
        changes = {"data.path": FLAGS.data, "data.name": "folder", "data.channels": 3}
        scratch.update_from_flattened_dict({**changes, "batch_size": tuned.batch_size})
        seconds, _ = _time(scratch)
        why = "small images: without pretraining, a small ResNet was better on Fashion-MNIST"
        _suggest(inputs, "fashion", seconds, 0, why, **changes)
    seconds, megabytes = _time(tuned)
    why = "fine-tunes a model that was pretrained on photographs"
    _suggest(inputs, "small_data:DINOv2-S/14,folder", seconds, megabytes, why)
    images = inputs.train.num_examples + inputs.test.num_examples
    evaluator = f"linear_probe:folder@{FLAGS.data}"
    _print(
        images * seconds / 3,  # a forward pass takes a third of a step
        megabytes,
        "shows how well a linear classifier on the pretrained model separates the classes",
        "evaluate",
        "--variant=DINOv2_S14",
        "--weights=lvd142m",
        # Quotes a path with a comma, because --evals is a list.
        f"--evals={flags.CsvListSerializer(',').serialize([evaluator])}",
    )


def _median_size(source):
    """Returns the median height and width of up to 32 images."""
    sizes = []
    for index in np.linspace(0, source.num_examples - 1, 32).astype("int64"):
        with contextlib.suppress(tf.errors.OpError):  # a damaged file
            sizes.append(header_size(source.read(tf.constant(index))["image"]).numpy())
    sizes = [size for size in sizes if all(size)]
    if not sizes:
        raise ValueError(f"--data must have readable images. Received: data={FLAGS.data!r}")
    return np.median(sizes, axis=0)


def _time(config):
    """Returns the seconds per training image, and the size of the weights in MB."""
    config.weights = ""
    engine = training.choose_engine(config)
    inputs = data.from_config(config.data, batch_size=config.batch_size, seed=0)
    engine.build(config, tasks.get(config), inputs, total_steps=1000)
    engine.train(0, 1)  # compiles
    start = time.monotonic()
    engine.train(1, 1)
    seconds = (time.monotonic() - start) / config.batch_size
    print(f"{config.architecture} on {engine.description}: {1 / seconds:.3g} images per second")
    return seconds, 4e-6 * engine.model.count_params()


def _suggest(inputs, config, seconds, megabytes, why, **changes):
    """Prints the command that trains as long as the rules say, or as `--minutes` allows."""
    images = inputs.train.num_examples
    batch = rules.batch_size(images)
    evaluated = 10 / 3 * inputs.test.num_examples  # the cost of ten evaluations, in images
    most = (60 * FLAGS.minutes / seconds - evaluated) / batch
    steps = min(rules.total_steps(images, batch), int(most))
    least = rules.LEAST_EPOCHS * images
    if steps * batch < least:
        minutes = (least + evaluated) * seconds / 60
        print(f"\nnot {config}: {rules.LEAST_EPOCHS} epochs take {minutes:.0f} min")
        return
    pause = rules.tenth(steps)
    fields = {
        "data.path": FLAGS.data,
        **changes,
        "batch_size": batch,
        "total_steps": steps,
        "eval_every_steps": pause,
        "schedule.warmup_steps": pause,
    }
    _print(
        (steps * batch + evaluated) * seconds,
        megabytes,
        f"{why}; {steps * batch / images:.0f} epochs",
        "train",
        f"--config={config}",
        *(f"--config.{name}={value}" for name, value in fields.items()),
    )


def _print(seconds, megabytes, why, *arguments):
    print(f"\n{seconds / 60:.0f} min, downloads {megabytes:.0f} MB: {why}")
    print(f"  keras-vit {shlex.join(arguments)}")
