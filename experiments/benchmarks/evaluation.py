"""Measures the cost of evaluation and inspection.

    python experiments/benchmarks/evaluation.py [--task=distance,fewshot,features] [--rounds=3]

Each task runs in its own process because peak memory never decreases:

    distance    `attention_distance` of ViT-L/16 on `--images` images of 224x224 pixels, alternating
                with plain forward passes. Limits: 6 GiB of peak memory and three times the forward
                time.
    fewshot     The ridge classifier on 50,000 training and 50,000 test vectors of 1,024 features,
                with 1,000 classes and a single ridge weight. Limits: one minute and 4 GiB.
    features    `features` at layer 6 of ViT-B/16, alternating with a model truncated at that layer.
                Limit: 1.1 times the runtime of the truncated model.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_list("task", ["distance", "fewshot", "features"], "What to measure.")
flags.DEFINE_integer(
    "rounds",
    3,
    "Timed rounds after one warm-up round; each runs every function once.",
    lower_bound=1,
)
flags.DEFINE_integer(
    "images", 128, "Images per round of `distance` and of its forward-pass baseline.", lower_bound=8
)
flags.DEFINE_bool("child", False, "Internal: measure in this process.")


def distance():
    import keras_vit
    from keras_vit import inspection

    model = keras_vit.ViT_L16()
    images = np.random.default_rng(0).uniform(-1, 1, (FLAGS.images, 224, 224, 3)).astype("float32")

    def forward():
        for start in range(0, len(images), 8):
            np.asarray(model(images[start : start + 8], training=False))

    return _in_turns(
        {"forward": forward, "distance": lambda: inspection.attention_distance(model, images)}
    )


def fewshot():
    from keras_vit.evaluation.frozen import ridge_scores

    random = np.random.default_rng(0)
    centers = random.standard_normal((1000, 1024), dtype="float32")

    def draw():
        y = random.permutation(np.arange(50_000) % 1000)
        return centers[y] + 4 * random.standard_normal((50_000, 1024), dtype="float32"), y

    x, y = draw()
    x_test, y_test = draw()
    start = time.perf_counter()
    processor = time.process_time()
    accuracy = np.mean(ridge_scores(x, y, x_test, 1000).argmax(1) == y_test)
    seconds = {
        "seconds": time.perf_counter() - start,
        "processor_seconds": time.process_time() - processor,
    }
    return {**seconds, "accuracy": round(float(accuracy), 4)}


def features():
    import keras

    import keras_vit

    model = keras_vit.ViT_B16()
    images = np.random.default_rng(0).uniform(-1, 1, (8, 224, 224, 3)).astype("float32")
    block = keras.Model(model.input, model.get_layer("encoderblock_5").output)
    return _in_turns(
        {
            "forward": lambda: np.asarray(block(images, training=False)),
            "features": lambda: keras_vit.features(model, images, 6, tokens="patch", norm=False),
        }
    )


def _in_turns(work):
    """Alternates two functions; returns their median wall times in seconds and the ratios of the
    second to the first.

    `ratio` compares the wall times, and `processor_ratio` the CPU times, which depend less on other
    programs.
    """
    times = {name: [] for name in work}
    for _ in range(FLAGS.rounds + 1):
        for name, function in work.items():
            start = time.perf_counter(), time.process_time()
            function()
            times[name].append((time.perf_counter() - start[0], time.process_time() - start[1]))
    medians = {
        name: [statistics.median(column) for column in zip(*values[1:])]
        for name, values in times.items()
    }
    first, second = medians.values()
    return {
        **{name: seconds for name, (seconds, _) in medians.items()},
        "ratio": second[0] / first[0],
        "processor_ratio": second[1] / first[1],
    }


def main(_):
    if FLAGS.child:
        result = {"distance": distance, "fewshot": fewshot, "features": features}[FLAGS.task[0]]()
        result["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(json.dumps(result))
        return
    for task in FLAGS.task:
        command = [sys.executable, __file__, "--child", f"--task={task}"]
        command += [f"--{name}={FLAGS[name].value}" for name in ("rounds", "images")]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        result = json.loads(done.stdout.splitlines()[-1])
        rounded = {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in result.items()
        }
        print(task, rounded)


if __name__ == "__main__":
    app.run(main)
