"""Digits with captions, a toy tokenizer, and the config of a tiny image-text run. As a command, it
trains, and kills itself before the line that starts with LINE.

python captioned.py WORKDIR DEVICES [LINE]
"""

import os
import signal
import sys
import zlib

import keras
import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from keras_vit import data, recipes, training
from keras_vit.data.targets import texts
from keras_vit.tasks import image_text

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEMPLATES = ("a photo of a {}", "the number {}", "{}")
LENGTH = 6
SIZES = {"hidden_size": 8, "num_layers": 1, "mlp_dim": 12, "num_heads": 2}
MODEL = {"patch_size": 4, "classifier": "map", "dropout": 0.1, **SIZES}


class ToyTokenizer:
    """Maps each word to a number."""

    vocabulary_size = 64
    checksum = 0

    def __init__(self, place="", length=LENGTH):
        self.length = length

    def __call__(self, captions):
        rows = [[1 + zlib.crc32(word.encode()) % 63 for word in c.split()] for c in captions]
        return np.array([(row + [0] * self.length)[: self.length] for row in rows], "int32")

    def decode(self, ids):
        return " ".join(map(str, ids))


def captioned(split):
    """Digits with captions; each zero has an empty one."""
    digits = data.load_split("digits", split)
    captions = tf.constant(
        [TEMPLATES[i % 3].format(NAMES[x]) if x else "" for i, x in enumerate(digits.labels)]
    )

    @tf.autograph.experimental.do_not_convert
    def read(index):
        return {"image": digits.read(index)["image"], "caption": captions[index]}

    return data.Source(read, digits.num_examples, (), 16, options=digits.options)


def prepare():
    """Registers the source "captioned" and replaces tokenizers."""
    data.SOURCES["captioned"] = captioned
    texts.tokenizer_of = image_text.Tokenizer = ToyTokenizer


def config_of(loss="sigmoid", **changes):
    fields = {
        "task": "image_text",
        "loss": loss,
        "batch_size": 32,
        "total_steps": 6,
        "checkpoint_every_steps": 2,
        "log_every_steps": 1,
        "clip_norm": 1.0,
        "optimizer": {"name": "adamw", "weight_decay": 0.1, "no_decay": "similarity"},
        "schedule": {"base": 3e-3, "warmup_steps": 2},
        "data": data.defaults(name="captioned", shift=1, tokenizer="toy", text_length=LENGTH),
    }
    config = ConfigDict(recipes.defaults(**{**fields, **changes}))
    text = {**SIZES, "vocabulary_size": 0, "dropout": 0.1}
    config.model = ConfigDict({**MODEL, "text": text, "bias": -5.0 * (loss == "sigmoid")})
    return config


def engine_of(devices):
    """Returns an engine of the current backend on `devices` virtual devices."""
    if keras.backend.backend() == "jax":
        import jax
        from jax.sharding import Mesh

        from keras_vit.training.jax import JaxEngine

        return JaxEngine(Mesh(np.array(jax.devices()[:devices]), ("data",)))
    from keras_vit.training.tensorflow import TensorFlowEngine

    strategy = tf.distribute.get_strategy()
    if devices > 1:
        strategy = tf.distribute.MirroredStrategy(
            [f"CPU:{i}" for i in range(devices)], tf.distribute.ReductionToOneDevice()
        )
    return TensorFlowEngine(strategy)


def start(workdir, devices, write=print, **changes):
    """Trains to the end and returns the `RunResult`."""
    prepare()
    config = config_of(**changes)
    return training.run(
        config, training.Workdir(workdir, config.to_dict()), write, engine=engine_of(devices)
    )


def main(workdir, devices, moment=""):
    def write(line):
        print(line, flush=True)
        if moment and line.startswith(moment):
            os.kill(os.getpid(), signal.SIGKILL)

    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
    tf.config.set_logical_device_configuration(cpu, logical)
    start(workdir, int(devices), write)


if __name__ == "__main__":
    main(*sys.argv[1:])
