"""Says whether a run fits a TPU and how long it may take there, on a machine that has none.

    keras-vit check-tpu --topology=v3:2x2 --config=finetune:ViT-B/16,cifar10
    keras-vit check-tpu --topology=v5e:2x4 --config=... --config.precision=mixed_bfloat16 --search
    KERAS_BACKEND=jax keras-vit check-tpu --topology=v5e:2x4 --config=...

The TPU's own compiler compiles the training and the evaluation step that `keras-vit train` would run there. The exit
code is 0 if both compile and fit, and 1 if not. It needs `pip install "keras_vit[cpu,aot]"`, x86-64 Linux, some minutes
of two cores and some GB of memory. `keras_vit.tpu.check` is the same from Python.
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
    flags.DEFINE_string("topology", "v3:2x2", "The slice, such as v3:2x2 (Cloud TPU v3-8), v4:2x2x1, v5e:2x4, v6e:1x1.")
    flags.DEFINE_bool("search", False, "Look for the largest batch that fits; takes a few minutes.")
    flags.DEFINE_float("price", 0.0, "What a device costs an hour, for the price of the recipe.", lower_bound=0.0)
    flags.register_validator("price", math.isfinite, "must be finite. Received: nan or inf")
    flags.DEFINE_integer("traffic", 0, "How many of the arrays that a step moves most are listed.", lower_bound=0)
    flags.DEFINE_string("output", "", "A JSON file to write the results to.")


def main():
    command_line.check_output(FLAGS.output)
    config = FLAGS.config
    check = tpu.check(tasks.get(config), config, config.batch_size, FLAGS.topology, search=FLAGS.search)
    for line in report(check, FLAGS.price, FLAGS.traffic):
        print(line)
    if FLAGS.output:
        files.write_json(FLAGS.output, check.to_dict() | {"price": FLAGS.price * check.device_hours_estimate})
        print(f"wrote {FLAGS.output}")
    sys.exit(0 if check.fits else 1)
