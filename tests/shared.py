"""Constants and helpers of many tests, imported as `from ..shared import ROOT`."""

import importlib.util
import json
import os
import shutil
import socket
from pathlib import Path

import keras
import numpy as np

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "tests" / "golden"
FAMILY_FILES = GOLDEN / "families"
CONFIGS = ROOT / "experiments" / "configs"  # a link to keras_vit/configs

# The smallest model. Tests add the input shape and the classes.
SIZES = {"patch_size": 4, "num_layers": 1, "hidden_size": 8, "mlp_dim": 12, "num_heads": 2}
# A model of two layers for images of at least 16 x 16 pixels.
TWO_LAYERS = {**SIZES, "patch_size": 8, "num_layers": 2, "classes": 3}
# A model whose rows, columns, layers, channels and classes can be told apart by their number.
THREE_LAYERS = {
    "input_shape": (24, 16, 3),
    "patch_size": 8,
    "num_layers": 3,
    "hidden_size": 12,
    "mlp_dim": 20,
    "num_heads": 3,
    "classes": 4,
}
# The model of most golden files.
GOLDEN_SIZES = {
    "patch_size": 8,
    "num_layers": 2,
    "hidden_size": 64,
    "mlp_dim": 128,
    "num_heads": 4,
    "classes": 10,
}
# Keras' `jit_compile` for short training tests. Without it, JAX compiles each operation separately.
JIT = keras.backend.backend() == "jax"
# Flags that shorten a run of the training script to a few seconds.
SHORT_RUN = (
    "--config.total_epochs=0",
    "--config.log_every_steps=20",
    "--config.model.num_layers=1",
    "--config.model.hidden_size=16",
    "--config.model.num_heads=2",
    "--config.schedule.warmup_steps=5",
)


def load_module(path):
    """Imports a Python file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def config_module(name):
    """Imports an installed config file."""
    return load_module(CONFIGS / f"{name}.py")


def get_config(name, request=""):
    """Returns the config of an installed config file."""
    module = config_module(name)
    return module.get_config(request) if request else module.get_config()


def copy_model_folder(case, folder, source=FAMILY_FILES):
    """Copies the weights and the config of a golden model to a new folder, and returns it."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / f"{case}.safetensors", folder / "model.safetensors")
    shutil.copy(source / f"{case}.config.json", folder / "config.json")
    return folder


def random_images(shape, seed=0):
    """Returns float32 images with values in [-1, 1]."""
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype("float32")


def images_for(model, count=2, seed=0):
    """Returns random images of a model's size."""
    return random_images((count, *model.input_shape[1:]), seed)


def randomize(model, scale=1.0, seed=0):
    """Assigns normal random numbers to all weights of a model or layer, and returns it."""
    random = np.random.default_rng(seed)
    for weight in model.weights:
        weight.assign(scale * random.standard_normal(weight.shape))
    return model


def randomize_around_unit_norms(model, scale, seed=0):
    """Assigns normal random numbers to all weights, and adds 1 to the scales of the norms."""
    random = np.random.default_rng(seed)
    for weight in model.weights:
        center = 1 if weight.path.endswith(("gamma", "scale")) else 0
        weight.assign(center + scale * random.standard_normal(weight.shape))
    return model


def randomize_head(model, seed=0):
    """Replaces the kernel of the head, which is zero in a new model, and returns the model."""
    kernel = model.get_layer("head").kernel
    kernel.assign(np.random.default_rng(seed).standard_normal(kernel.shape))
    return model


def to_numpy(tensor):
    """Returns a tensor as a NumPy array. Half precision becomes float32."""
    array = keras.ops.convert_to_numpy(tensor)
    return array.astype("float32") if array.dtype.name in ("bfloat16", "float16") else array


def assert_close(result, expected, tolerance=2e-5):
    """Compares arrays. `tolerance` is relative to the largest expected value."""
    result, expected = (to_numpy(x) for x in (result, expected))
    assert result.shape == expected.shape
    difference = np.abs(result - expected).max() / np.abs(expected).max()
    print(f"largest difference: {difference:.1e}")
    assert difference < tolerance


def value_and_gradients(function, arguments):
    """Returns the value of a function and its gradients with respect to the arguments."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(jax.value_and_grad(function, range(len(arguments))))(*arguments)
    import tensorflow as tf

    @tf.function
    def compute(*arguments):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            value = function(*arguments)
        zero = tf.UnconnectedGradients.ZERO
        return value, tape.gradient(value, arguments, unconnected_gradients=zero)

    return compute(*map(tf.constant, arguments))


def read_arrays(path):
    """Returns a dict with the arrays of an .npz file."""
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def assert_same_arrays(ours, theirs):
    """Compares two dicts of arrays bit for bit."""
    assert sorted(ours) == sorted(theirs)
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name, strict=True)


def assert_same_weights(ours, theirs):
    """Compares the variables of two models bit for bit, except the states of random numbers."""
    ours, theirs = (
        [variable.numpy() for variable in model.variables if "seed" not in variable.path]
        for model in (ours, theirs)
    )
    assert len(ours) == len(theirs)
    for our, their in zip(ours, theirs):
        np.testing.assert_array_equal(our, their)


def tables_of(workdir):
    """Returns the texts of the tables that a run writes."""
    return {name: (workdir / name).read_text() for name in ("metrics.csv", "evaluations.csv")}


def worker_tasks():
    """Returns the values of `TF_CONFIG` for the two processes of a run."""
    with socket.socket() as first, socket.socket() as second:
        for free in (first, second):
            free.bind(("localhost", 0))
        ports = [free.getsockname()[1] for free in (first, second)]
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    tasks = [{"cluster": cluster, "task": {"type": "worker", "index": index}} for index in (0, 1)]
    return [json.dumps(task) for task in tasks]


def start_workers(scripts, *command, **environment):
    """Starts two processes of one run and returns their `Script` objects."""
    variables = {**os.environ, **environment}
    return [
        scripts.start(*command, env={**variables, "TF_CONFIG": task}) for task in worker_tasks()
    ]
