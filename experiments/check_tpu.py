"""Says whether a run fits a TPU and how long it may take there, on a machine that has none.

    python experiments/check_tpu.py --topology=v3:2x2 --config=experiments/configs/finetune.py:ViT-B/16,cifar10
    python experiments/check_tpu.py --topology=v5e:2x4 --config=... --config.precision=mixed_bfloat16 --search
    KERAS_BACKEND=jax python experiments/check_tpu.py --topology=v5e:2x4 --config=...

The TPU's own compiler compiles the training and the evaluation step that `run_tpu.py` would run there. The exit code is
0 if both compile and fit, and 1 if not. It needs `pip install -e ".[cpu,aot]"`, x86-64 Linux, some minutes of two cores
and some GB of memory. `keras_vit.tpu.check` is the same from Python.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides TensorFlow's start-up messages; must precede its import
# JAX must not look for a TPU; this must precede its import, by the JAX backend.
os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}

import command_line
from absl import flags

from keras_vit import files, tasks, tpu
from keras_vit.tpu.report import report

HERE = Path(__file__).parent
CONFIG = command_line.define_config(HERE / "configs/digits.py")
flags.declare_key_flag("config")  # for --help
FLAGS = flags.FLAGS
flags.DEFINE_string("topology", "v3:2x2", "The slice, such as v3:2x2 (Cloud TPU v3-8), v4:2x2x1, v5e:2x4, v6e:1x1.")
flags.DEFINE_bool("search", False, "Look for the largest batch that fits; takes some minutes.")
flags.DEFINE_float("price", 0.0, "What a device costs an hour, for the price of the recipe.", lower_bound=0.0)
flags.DEFINE_string("json", "", "A file to write the results to.")


def main(_):
    config = CONFIG.value
    check = tpu.check(tasks.get(config), config, config.batch_size, FLAGS.topology, search=FLAGS.search)
    for line in report(check, FLAGS.price):
        print(line)
    if FLAGS.json:
        files.write_json(FLAGS.json, check.to_dict() | {"price": FLAGS.price * check.device_hours_estimate})
        print(f"wrote {FLAGS.json}")
    sys.exit(0 if check.fits else 1)


if __name__ == "__main__":
    command_line.run(main)
