"""Measures the memory and the time of loading a checkpoint into a built model.

    python experiments/benchmarks/loading.py [--model=ViT_L16] [--rounds=5]

The baselines are the peak memory of building the model alone, and the time in which numpy reads the
file's arrays. Loading should need at most 300 MB more memory than building alone, and at most twice
as much time as numpy.
"""

import functools
import json
import statistics
import tempfile
from pathlib import Path

import numpy as np
from absl import app, flags
from workers import in_turns, peak_bytes, seconds

from keras_vit import files

FLAGS = flags.FLAGS
flags.DEFINE_string("model", "ViT_L16", "A constructor of keras_vit.")
flags.DEFINE_integer(
    "rounds",
    5,
    "Measured rounds of reading and loading the file, after one warm-up round.",
    lower_bound=1,
)


def child(task, path):
    """Runs a task and prints its measurements as JSON.

    Each task builds the model. "write" also saves random weights, "load" loads them, "time" times
    numpy and loading, and "build" does nothing more. Each runs in its own process, because peak
    memory never decreases.
    """
    import keras_vit

    model = getattr(keras_vit, FLAGS.model)()
    result = {}
    if task == "write":
        rng = np.random.default_rng(0)
        for variable in model.weights:
            variable.assign(rng.standard_normal(variable.shape, dtype="float32"))
        keras_vit.checkpoints.save(model, path)
    elif task == "load":
        keras_vit.checkpoints.load(model, path)
    elif task == "time":
        runs = {
            "read": functools.partial(seconds, _read, path),
            "load": functools.partial(seconds, keras_vit.checkpoints.load, model, path),
        }
        in_turns(runs, 1)  # warms up
        times = in_turns(runs, FLAGS.rounds)
        result = {name: statistics.median(spent) for name, spent in times.items()}
    result["peak"] = peak_bytes()
    print(json.dumps(result))


def _read(path):
    with np.load(path, allow_pickle=False) as file:
        for name in file.files:
            file[name]


def main(argv):
    if len(argv) == 3:
        child(*argv[1:])
        return
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "weights.npz")

        def measure(task):
            arguments = [__file__, task, path, f"--model={FLAGS.model}", f"--rounds={FLAGS.rounds}"]
            return json.loads(files.run_python(arguments))

        measure("write")
        size = Path(path).stat().st_size
        built = measure("build")["peak"]
        loaded = measure("load")["peak"]
        timed = measure("time")
    print(f"{FLAGS.model}, a file of {size / 1e6:,.0f} MB")
    print(
        f"peak memory: built {built / 1e6:,.0f} MB, loaded {loaded / 1e6:,.0f} MB, "
        f"{(loaded - built) / 1e6:+,.0f} MB"
    )
    print(
        f"medians of {FLAGS.rounds} rounds: numpy reads the file in {timed['read']:.2f} s, a load "
        f"takes {timed['load']:.2f} s, {timed['load'] / timed['read']:.2f} times as long"
    )


if __name__ == "__main__":
    app.run(main)
