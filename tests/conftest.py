"""Shared fixtures and settings."""

import gc
import importlib.util
import os
import signal
from pathlib import Path

if importlib.util.find_spec("libtpu"):
    # The tests of `keras_vit.tpu` need libtpu but run on the CPU. Select the CPU before Keras or a
    # child process imports JAX.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

import keras
import pytest

from .scripts import ScriptServer
from .shared import GOLDEN, read_arrays

TESTS = Path(__file__).parent
# Tests in these files and folders belong to the full tier (`pytest -m full`), except tests marked
# `slow`.
FULL = (
    "commands",
    "data/bad_examples_test.py",
    "data/masks_test.py",
    "data/verify_test.py",
    "data/weights_test.py",
    "docs_test.py",
    "experiments",
    "export",
    "jax_backend_test.py",
    "notebook_test.py",
    "packaging_test.py",
    "reference_examples_test.py",
    "serving",
    "site_test.py",
    "tpu",
    "tasks/distillation_run_test.py",
    "tasks/toy_task_test.py",
    "training/batch_norm_test.py",
    "training/class_weights_test.py",
    "training/resuming_test.py",
    "training/run_test.py",
    "training/tensorflow/step_test.py",
)

# A background job of a shell script ignores SIGINT, and a command under `nohup` ignores SIGHUP.
# Restore the default handlers, because the tested commands would otherwise ignore these signals
# too.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    # Split the CPU into four logical devices. This must come before TensorFlow's first operation.
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(4)]
    )


def _takes_long(item):
    return item.path.name == "jax_backend_test.py"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks the full tier and assigns the tests to workers.

    The tests of a file run in one worker. Only the tests of jax_backend_test.py are spread over the
    workers. They take longest, so they start first.
    """

    missing = [path for path in FULL if not (TESTS / path).exists()]
    if missing:
        raise pytest.UsageError(
            f"FULL in conftest.py names files that do not exist: {', '.join(missing)}"
        )

    for item in items:
        is_full = any(item.path.is_relative_to(TESTS / path) for path in FULL)
        if is_full and not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.full)
        group = item.name if _takes_long(item) else item.nodeid.split("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=_takes_long, reverse=True)


def pytest_collection_finish():
    """Excludes all existing objects from garbage collection and reduces the frequency of
    collections."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


class GoldenFiles:
    """Finds and loads the golden files, which are .npz files."""

    def path(self, name):
        return str(GOLDEN / f"{name}.npz")

    def __call__(self, name):
        return read_arrays(self.path(name))


@pytest.fixture
def golden():
    """Loads golden files: `golden("vit_token.io")` returns the arrays of `vit_token.io.npz`, and
    `golden.path("vit_token.io")` its path."""
    return GoldenFiles()


@pytest.fixture(autouse=True)
def clean_keras():
    """Resets the seed, the dtype policy and the layer names before every test."""
    keras.config.set_dtype_policy("float32")
    keras.utils.clear_session(free_memory=False)  # freeing memory would take 0.5 s per test
    keras.utils.set_random_seed(0)
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture(scope="session")
def scripts(tmp_path_factory):
    """Runs scripts in separate processes, e.g. `scripts.run("-m", "keras_vit", "evaluate",
    cwd=ROOT)`."""
    server = ScriptServer(tmp_path_factory.mktemp("scripts"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def xla():
    """Skips a test if TensorFlow cannot compile for this CPU with XLA."""
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    try:
        tf.function(lambda x: x + 1, jit_compile=True, autograph=False)(tf.constant(1))
    except tf.errors.NotFoundError as error:
        pytest.skip(f"this TensorFlow has no XLA for the CPU: {str(error).splitlines()[0][:80]}")
