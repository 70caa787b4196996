"""Measures how many images of shapes are drawn per second on one thread, and the speed of tf.data
without drawing.

    taskset -c 0 python experiments/benchmarks/shapes.py

The image sizes alternate for several rounds. Prints the median and the highest rate per second of
CPU time. CPU time depends little on other load on the machine.
"""

import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.append(str(Path(__file__).parents[1] / "paper"))

import drawn_shapes
import tensorflow as tf

BATCH = 64
ROUNDS = 20


def batches(read):
    """Returns an iterator over batches of `read(index)`, computed on one thread."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.autotune.enabled = False
    # Otherwise, tf.data computes batches outside the timed section or on several threads.
    options.experimental_optimization.inject_prefetch = False
    options.experimental_optimization.map_parallelization = False
    options.experimental_optimization.map_and_batch_fusion = False
    options.experimental_optimization.parallel_batch = False
    return iter(tf.data.Dataset.range(2**40).map(read).batch(BATCH).with_options(options))


def main():
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    def shapes(side):
        return drawn_shapes.shapes(num_examples=2**40, image_shape=(side, side, 3)).read

    kinds = {
        "32 pixels": shapes(32),
        "64 pixels": shapes(64),
        "224 pixels": shapes(224),
        "nothing": lambda i: i + 1,
    }
    iterators = {name: batches(read) for name, read in kinds.items()}
    seconds = {name: [] for name in kinds}
    for iterator in iterators.values():
        next(iterator)
    for _ in range(ROUNDS):
        for name, iterator in iterators.items():
            start = time.process_time()
            next(iterator)
            seconds[name].append((time.process_time() - start) / BATCH)
    for name, values in seconds.items():
        print(
            f"{name:10}  images per CPU second: median {1 / statistics.median(values):9.0f}, "
            f"fastest {1 / min(values):9.0f}"
        )


if __name__ == "__main__":
    main()
