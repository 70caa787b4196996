"""Compares images per second of ViT-B/16 in keras_vit, its trainer and keras-hub.

    pip install -e ".[benchmarks]" && python experiments/benchmarks/throughput.py
    python experiments/benchmarks/throughput.py --precision=mixed_bfloat16

The columns:

    keras_vit   the model in a plain training step with `keras.optimizers.AdamW`
    trainer     the same model in the training step of `keras-vit train`, with its own AdamW
    keras_hub   the model of keras-hub in the plain training step
    products    only the matrix products of the blocks, and for training those of their gradients;
                keras_vit computes fewer of them, only the class token in the last block

Each column runs in its own process, so that peak memory is separate. The processes alternate, so
that only one computes at a time. Images per second are medians over the rounds; the other rows are
measured once. The time to the first step includes building the model, tracing and one step, but no
imports. AutoGraph is off everywhere. `--output` also writes the table as JSON.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time

from absl import app, flags

_COLUMNS = ("keras_vit", "trainer", "keras_hub", "products")
_BATCH = flags.DEFINE_integer("batch_size", 8, "Images in a batch.", lower_bound=1)
_SIZE = flags.DEFINE_integer("image_size", 224, "Height and width of the images.", lower_bound=16)
_LAYERS = flags.DEFINE_integer("num_layers", 12, "Blocks of the model; 12 is ViT-B.", lower_bound=1)
_PRECISION = flags.DEFINE_enum(
    "precision", "float32", ["float32", "mixed_bfloat16"], "Dtype policy of the models."
)
_ROUNDS = flags.DEFINE_integer(
    "rounds", 10, "Measured rounds, after one warm-up round.", lower_bound=1
)
_STEPS = flags.DEFINE_integer("steps", 2, "Steps per turn of a process.", lower_bound=1)
_OUTPUT = flags.DEFINE_string("output", "", "JSON file for the results.")
_WORKER = flags.DEFINE_enum("worker", None, _COLUMNS, "Internal: run as the process of a column.")

# Sizes of ViT-B/16.
HIDDEN_SIZE = 768
MLP_DIM = 3072
NUM_HEADS = 12


def build_model(column):
    """Returns a ViT-B/16 with `--num_layers` blocks and 1,000 logits."""
    if column == "keras_hub":
        import keras_hub

        backbone = keras_hub.models.ViTBackbone(
            image_shape=(_SIZE.value, _SIZE.value, 3),
            patch_size=16,
            num_layers=_LAYERS.value,
            num_heads=NUM_HEADS,
            hidden_dim=HIDDEN_SIZE,
            mlp_dim=MLP_DIM,
        )
        return keras_hub.models.ViTImageClassifier(backbone, num_classes=1000)
    import keras_vit

    return keras_vit.VisionTransformer(
        input_shape=(_SIZE.value, _SIZE.value, 3),
        patch_size=16,
        num_layers=_LAYERS.value,
        hidden_size=HIDDEN_SIZE,
        mlp_dim=MLP_DIM,
        num_heads=NUM_HEADS,
    )


def random_batch():
    """Returns images and labels."""
    import tensorflow as tf

    shape = (_BATCH.value, _SIZE.value, _SIZE.value, 3)
    images = tf.random.stateless_uniform(shape, (0, 0), -1.0, 1.0)
    return images, tf.zeros(_BATCH.value, tf.int32)


def inference_step(model):
    import tensorflow as tf

    images, _ = random_batch()
    return tf.function(lambda: model(images, training=False), autograph=False)


def plain_step(model):
    """Returns a training step as a user of Keras would write it."""
    import keras
    import tensorflow as tf

    images, labels = random_batch()
    optimizer = keras.optimizers.AdamW(1e-3)

    @tf.function(autograph=False)
    def train():
        with tf.GradientTape() as tape:
            logits = tf.cast(model(images, training=True), tf.float32)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return train


def trainer_step(model):
    """Returns the training step that `keras-vit train` compiles on one device."""
    import tensorflow as tf
    from ml_collections import ConfigDict

    from keras_vit import optimizers, recipes, tasks
    from keras_vit.training.tensorflow.state import State
    from keras_vit.training.tensorflow.step import make_train_steps

    images, labels = random_batch()
    batch = (images, tf.one_hot(labels, 1000), tf.ones(_BATCH.value))
    iterator = iter(tf.data.Dataset.from_tensors(batch).repeat())
    config = ConfigDict(recipes.defaults(batch_size=_BATCH.value))
    optimizer = optimizers.get("adamw", 1e-3)
    optimizer.build(model.trainable_variables)
    state = State(model, optimizer)
    train_steps = make_train_steps(tf.distribute.get_strategy(), state, tasks.get(config), config)
    zero = tf.constant(0)
    one = tf.constant(1)
    stop_requested = tf.constant(0.0)
    return lambda: train_steps(iterator, zero, one, stop_requested)["metrics"]


def products_step(training):
    """Returns a function that computes the matrix products of the blocks; with `training`, also the
    products of both gradients of each."""
    import tensorflow as tf

    dtype = "bfloat16" if _PRECISION.value == "mixed_bfloat16" else "float32"
    tokens = (_SIZE.value // 16) ** 2 + 1
    rows = _BATCH.value * tokens
    heads = (_BATCH.value, NUM_HEADS)
    head_dim = HIDDEN_SIZE // NUM_HEADS
    shapes = [  # of both factors
        ((rows, HIDDEN_SIZE), (HIDDEN_SIZE, 3 * HIDDEN_SIZE)),
        ((*heads, tokens, head_dim), (*heads, head_dim, tokens)),
        ((*heads, tokens, tokens), (*heads, tokens, head_dim)),
        ((rows, HIDDEN_SIZE), (HIDDEN_SIZE, HIDDEN_SIZE)),
        ((rows, HIDDEN_SIZE), (HIDDEN_SIZE, MLP_DIM)),
        ((rows, MLP_DIM), (MLP_DIM, HIDDEN_SIZE)),
    ]

    def random_factor(shape):
        return tf.Variable(tf.cast(tf.random.normal(shape), dtype))

    # Products of equal factors would be computed once, so each has its own.
    factors = [
        (random_factor(left), random_factor(right))
        for _ in range(_LAYERS.value)
        for left, right in shapes
    ]

    @tf.function(autograph=False)
    def compute():
        results = []
        for left, right in factors:
            product = tf.matmul(left, right)
            results.append(product)
            if training:
                # The product takes the place of its gradient, which has the same shape.
                results.append(tf.matmul(product, right, transpose_b=True))
                results.append(tf.matmul(left, product, transpose_a=True))
        # Use one number of each product, so that TensorFlow computes all of them.
        return tf.add_n([tf.reshape(result, [-1])[0] for result in results])

    return compute


def make_steps(column):
    """Returns functions that run an inference step and a training step."""
    if column == "products":
        return products_step(training=False), products_step(training=True)
    model = build_model(column)
    train = trainer_step(model) if column == "trainer" else plain_step(model)
    return inference_step(model), train


def worker(column):
    """Runs the commands `[mode, steps]` from stdin and prints results as JSON.

    The first line has the build time. Then, for each command, a line has the seconds that the
    command took and the peak memory so far in bytes.
    """
    # Keep the libraries' output out of the answers.
    answers = sys.stdout
    sys.stdout = sys.stderr

    def answer(value):
        print(json.dumps(value), file=answers, flush=True)

    import keras

    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(_PRECISION.value)
    start = time.perf_counter()
    inference, train = make_steps(column)
    answer({"build": time.perf_counter() - start})
    for line in sys.stdin:
        command, steps = json.loads(line)
        start = time.perf_counter()
        for _ in range(steps):
            result = inference() if command == "inference" else train()
        result.numpy()
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
        answer({"seconds": seconds, "peak_bytes": peak})


def start_worker(column):
    command = [sys.executable, *sys.argv, f"--worker={column}"]
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    return subprocess.Popen(command, **pipes)


def query(process, *command):
    if command:
        process.stdin.write(json.dumps(command) + "\n")
        process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise app.UsageError(
            f"A worker exited with code {process.wait()} before it answered; see its output above."
        )
    return json.loads(line)


def measure():
    """Returns `{name and unit: {column: value}}`."""
    processes = {}
    build = {}
    for column in _COLUMNS:
        processes[column] = start_worker(column)
        build[column] = query(processes[column])["build"]
    results = {"build, s": build}
    for mode in ("inference", "train"):
        first = {column: query(process, mode, 1) for column, process in processes.items()}
        results[f"to first {mode} step, s"] = {
            column: build[column] + answer["seconds"] for column, answer in first.items()
        }
        seconds = {column: [] for column in _COLUMNS}
        for number in range(_ROUNDS.value + 1):
            for column, process in processes.items():
                answer = query(process, mode, _STEPS.value)
                if number:
                    seconds[column].append(answer["seconds"])
        images = _STEPS.value * _BATCH.value
        results[f"{mode}, images/s"] = {
            column: images / statistics.median(times) for column, times in seconds.items()
        }
        results[f"peak memory after {mode}, MB"] = {
            column: query(process, mode, 1)["peak_bytes"] / 1e6
            for column, process in processes.items()
        }
    for process in processes.values():
        process.stdin.close()
        process.wait()
    return results


def main(_):
    if _WORKER.value:
        worker(_WORKER.value)
        return
    results = measure()
    print(f"\n{'':32}" + "".join(f"{column:>12}" for column in _COLUMNS))
    for name, values in results.items():
        print(f"{name:32}" + "".join(f"{values[column]:12.2f}" for column in _COLUMNS))
    if _OUTPUT.value:
        with open(_OUTPUT.value, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    app.run(main)
