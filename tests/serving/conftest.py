"""Fixtures: an export with known outputs, and the REST and gRPC servers that serve it."""

import contextlib
import fcntl
import os
import shutil

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import data, export

from ..shared import GOLDEN, GOLDEN_SIZES, read_arrays, to_numpy
from . import rest_server
from .client import Client


class ServedModel:
    """The served model, and images with the probabilities of the JAX reference (`vit_jax`).

    The model is a hybrid, so its first layer is a convolution. If an input of the wrong rank
    reaches a convolution, TensorFlow aborts the process. The export must reject such inputs.
    """

    class_names = tuple(f"class {letter}" for letter in "abcdefghij")

    def __init__(self):
        self.model = keras_vit.VisionTransformer(
            **{**GOLDEN_SIZES, "patch_size": 4},
            resnet_blocks=(),
            input_shape=(64, 64, 3),
            weights=str(GOLDEN / "hybrid_stem_only.ckpt.npz"),
        )
        golden = read_arrays(GOLDEN / "hybrid_stem_only.io.npz")
        self.images = golden["inputs"]
        self.expected = to_numpy(keras.ops.softmax(golden["logits"]))

    def probabilities(self, images):
        return to_numpy(keras.ops.softmax(self.model(images)))

    def probabilities_of_files(self, files):
        """Preprocesses image files as in evaluation and returns their probabilities."""
        images = [data.transforms.resize(data.images.decode(file), (64, 64)) for file in files]
        return self.probabilities(keras_vit.Preprocessing().normalized(np.stack(images)))


@pytest.fixture(scope="session")
def served():
    return ServedModel()


@pytest.fixture(scope="session")
def locked_folder(tmp_path_factory):
    """Returns a context manager that locks a folder shared by all pytest workers and yields its
    path."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent

    @contextlib.contextmanager
    def locked():
        with open(folder / "serving.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder

    return locked


@pytest.fixture(scope="session")
def exported(served, locked_folder):
    """Returns the folder with the export's versions. The first worker that uses this fixture writes
    the export."""
    with locked_folder() as folder:
        if not (folder / "golden" / "1").exists():
            export.saved_model(
                served.model,
                folder / "golden",
                class_names=served.class_names,
                signatures=("serving_default", "tensor", "classify"),
            )
    return folder / "golden"


@pytest.fixture(scope="session")
def server(locked_folder, exported):
    """Builds and starts the REST server."""
    if shutil.which("g++") is None:
        pytest.skip("no g++, which builds the server")
    with locked_folder():
        rest_server.build()
    with rest_server.RestServer(exported, model_name="golden") as running:
        yield running


@pytest.fixture
def client(server):
    with Client(server) as client:
        yield client


@pytest.fixture(scope="module")
def grpc_port(exported):
    """Starts a gRPC server and returns its port."""
    pytest.importorskip("grpc", reason="grpcio is not installed")
    from . import grpc_servicer

    server, port = grpc_servicer.start(str(exported / "1"))
    yield port
    server.stop(None).wait()
