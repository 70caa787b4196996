"""Checks, on a machine without a TPU, whether a run fits a TPU, and estimates its duration.

    keras-vit check-tpu --topology=v3:2x2 --config=finetune:ViT-B/16,cifar10
    keras-vit check-tpu --topology=v5e:2x4 --config=... --config.precision=mixed_bfloat16 --search
    KERAS_BACKEND=jax keras-vit check-tpu --topology=v5e:2x4 --config=...

The TPU compiler compiles the training and evaluation steps of `keras-vit train`. The exit code is 0
if both steps compile and fit in memory, 1 if not, and 2 for bad input. The check requires x86-64
Linux, `pip install "keras_vit[cpu,aot]"`, a few GB of memory, and a few minutes on two cores. From
Python, call `keras_vit.tpu.check`.
"""

import math
import sys

from absl import flags

from keras_vit import files, tasks, tpu
from keras_vit.commands import command_line
from keras_vit.tpu.report import report

FLAGS = flags.FLAGS


def define_flags():
    command_line.define_config()
    flags.DEFINE_string(
        "topology",
        "v3:2x2",
        "TPU slice, such as v3:2x2 (Cloud TPU v3-8), v4:2x2x1, v5e:2x4, v6e:1x1.",
    )
    flags.DEFINE_bool(
        "search", False, "Search for the largest batch that fits, which takes a few more minutes."
    )
    flags.DEFINE_float(
        "price",
        0.0,
        "Price of one device-hour, for an estimate of the run's price.",
        lower_bound=0.0,
    )
    flags.register_validator("price", math.isfinite, "must be finite")
    flags.DEFINE_integer(
        "traffic", 0, "Number of arrays to list, by descending memory traffic.", lower_bound=0
    )
    flags.DEFINE_string("output", "", "JSON file for the results.")


def main():
    command_line.check_output(FLAGS.output)
    config = FLAGS.config
    check = tpu.check(
        tasks.get(config), config, config.batch_size, FLAGS.topology, search=FLAGS.search
    )
    for line in report(check, FLAGS.price, FLAGS.traffic):
        print(line)
    if FLAGS.output:
        files.write_json(
            FLAGS.output, check.to_dict() | {"price": FLAGS.price * check.device_hours_estimate}
        )
        print(f"wrote {FLAGS.output}")
    sys.exit(0 if check.fits else 1)
