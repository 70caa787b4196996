"""Compares images per second of ViT-B/16 in keras_vit, its trainer and keras-hub.

    pip install -e ".[benchmarks]" && python experiments/benchmarks/throughput.py
    python experiments/benchmarks/throughput.py --precision=mixed_bfloat16

The columns:

    keras_vit   the model in a plain training step with `keras.optimizers.AdamW`
    trainer     the same model in the training step of `keras-vit train`, with its own AdamW
    keras_hub   the model of keras-hub in the plain training step
    products    only the matrix products of the blocks, and for training those of their gradients;
                keras_vit computes fewer of them: in the last block, only those of the class
                token

Each column runs in its own process, so that peak memory is separate. The processes alternate, so
that only one computes at a time. Images per second are medians over the rounds, peak memory is the
maximum so far, and times in seconds are measured once. The time to the first step includes building
the model, tracing and one step, but no imports. AutoGraph is off everywhere. `--output` also writes
the table as JSON.
"""

import functools
import json
import statistics
import time

from absl import app, flags
from vit_models import CLASSES, SIZES, keras_hub_model
from workers import Worker, in_turns, peak_bytes, seconds, serve

_COLUMNS = ("keras_vit", "trainer", "keras_hub", "products")
_BATCH = flags.DEFINE_integer("batch_size", 8, "Images in a batch.", lower_bound=1)
_IMAGE_SIZE = flags.DEFINE_integer(
    "image_size", 224, "Height and width of the images.", lower_bound=16
)
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

_VIT_B16 = SIZES["B/16"]


def build_model(column):
    """Returns a ViT-B/16 with `--num_layers` blocks and 1,000 logits."""
    sizes = {**_VIT_B16, "num_layers": _LAYERS.value}
    if column == "keras_hub":
        return keras_hub_model(_IMAGE_SIZE.value, **sizes)
    import keras_vit

    return keras_vit.VisionTransformer(
        input_shape=(_IMAGE_SIZE.value, _IMAGE_SIZE.value, 3), **sizes
    )


def random_batch():
    """Returns images and labels."""
    import tensorflow as tf

    shape = (_BATCH.value, _IMAGE_SIZE.value, _IMAGE_SIZE.value, 3)
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
    batch = (images, tf.one_hot(labels, CLASSES), tf.ones(_BATCH.value))
    iterator = iter(tf.data.Dataset.from_tensors(batch).repeat())
    config = ConfigDict(recipes.defaults(batch_size=_BATCH.value))
    optimizer = optimizers.get("adamw", 1e-3)
    optimizer.build(model.trainable_variables)
    state = State(model, optimizer)
    train_steps = make_train_steps(tf.distribute.get_strategy(), state, tasks.get(config), config)
    first = tf.constant(0)
    count = tf.constant(1)
    stop_requested = tf.constant(0.0)
    return lambda: train_steps(iterator, first, count, stop_requested)["metrics"]


def products_step(training):
    """Returns a function that computes the matrix products of the blocks; with `training`, also the
    products of both gradients of each."""
    import tensorflow as tf

    dtype = "bfloat16" if _PRECISION.value == "mixed_bfloat16" else "float32"
    tokens = (_IMAGE_SIZE.value // _VIT_B16["patch_size"]) ** 2 + 1
    rows = _BATCH.value * tokens
    width = _VIT_B16["hidden_size"]
    mlp_dim = _VIT_B16["mlp_dim"]
    heads = (_BATCH.value, _VIT_B16["num_heads"])
    head_dim = width // _VIT_B16["num_heads"]
    shapes = [  # of both factors
        ((rows, width), (width, 3 * width)),
        ((*heads, tokens, head_dim), (*heads, head_dim, tokens)),
        ((*heads, tokens, tokens), (*heads, tokens, head_dim)),
        ((rows, width), (width, width)),
        ((rows, width), (width, mlp_dim)),
        ((rows, mlp_dim), (mlp_dim, width)),
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


def load(column):
    """Returns the build time in seconds, and a function that runs a number of steps of a mode.

    The function returns the seconds that the steps took and the peak memory so far in bytes.
    """
    import keras

    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(_PRECISION.value)
    start = time.perf_counter()
    inference, train = make_steps(column)
    build_seconds = time.perf_counter() - start

    def run(mode, steps):
        step = inference if mode == "inference" else train
        for _ in range(steps):
            result = step()
        result.numpy()  # waits for the device

    return build_seconds, lambda mode, steps: (seconds(run, mode, steps), peak_bytes())


def measure():
    """Returns `{name and unit: {column: value}}`."""
    workers = {column: Worker(column, KERAS_BACKEND="tensorflow") for column in _COLUMNS}
    build = {column: worker.facts for column, worker in workers.items()}
    results = {"build, s": build}
    images = _STEPS.value * _BATCH.value
    for mode in ("inference", "train"):
        results[f"to first {mode} step, s"] = {
            column: build[column] + worker.query(mode, 1)[0] for column, worker in workers.items()
        }
        runs = {
            column: functools.partial(worker.query, mode, _STEPS.value)
            for column, worker in workers.items()
        }
        in_turns(runs, 1)  # warms up
        rates = results[f"{mode}, images/s"] = {}
        peaks = results[f"peak memory after {mode}, MB"] = {}
        for column, answers in in_turns(runs, _ROUNDS.value).items():
            times, memory = zip(*answers)
            rates[column] = images / statistics.median(times)
            peaks[column] = max(memory) / 1e6
    for worker in workers.values():
        worker.close()
    return results


def main(_):
    if _WORKER.value:
        serve(lambda: load(_WORKER.value))
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
