"""Fixtures: an export with known outputs, and the REST and gRPC servers that serve it."""

import contextlib
import fcntl
import http.client
import json
import os
import runpy
import shutil
import types
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import data, export

from ..shared import GOLDEN, GOLDEN_SIZES, read_arrays

HERE = Path(__file__).parent
CLASSES = [f"class {name}" for name in "abcdefghij"]


@pytest.fixture(scope="session")
def malformed():
    return types.SimpleNamespace(**runpy.run_path(str(HERE / "malformed.py")))


@pytest.fixture(scope="session")
def served():
    """Returns the served model, images with the predictions of the JAX reference (`vit_jax`), and
    the class names.

    The functions `probabilities` and `of_files` compute the model's predictions for other images
    and for image files.

    The model is a hybrid, so its first layer is a convolution. If an input of the wrong rank
    reaches a convolution, TensorFlow aborts the process. The export must reject such inputs.
    """
    model = keras_vit.VisionTransformer(
        **{**GOLDEN_SIZES, "patch_size": 4},
        resnet_blocks=(),
        input_shape=(64, 64, 3),
        weights=str(GOLDEN / "hybrid_stem_only.ckpt.npz"),
    )
    golden = read_arrays(GOLDEN / "hybrid_stem_only.io.npz")

    def probabilities(images):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some tests pass values outside the expected range
            return keras.ops.convert_to_numpy(keras.ops.softmax(model(images)))

    def of_files(files):
        """Preprocesses image files as in evaluation and returns their probabilities."""
        images = [data.transforms.resize(data.images.decode(file), (64, 64)) for file in files]
        prepared = [data.transforms.normalize(image, keras_vit.Preprocessing()) for image in images]
        return probabilities(np.stack(prepared))

    return types.SimpleNamespace(
        model=model,
        images=golden["inputs"],
        expected=keras.ops.convert_to_numpy(keras.ops.softmax(golden["logits"])),
        probabilities=probabilities,
        of_files=of_files,
        class_names=CLASSES,
    )


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
            signatures = ("serving_default", "tensor", "classify")
            export.saved_model(
                served.model, folder / "golden", class_names=CLASSES, signatures=signatures
            )
    return folder / "golden"


@pytest.fixture(scope="session")
def rest_server(locked_folder):
    """Builds the server and returns the module `rest_server.py`."""
    if shutil.which("g++") is None:
        pytest.skip("no g++, which builds the server")
    module = types.SimpleNamespace(**runpy.run_path(str(HERE / "rest_server.py")))
    with locked_folder():
        module.build()
    return module


class Client:
    """A client with one keep-alive connection."""

    def __init__(self, server):
        self.server = server
        self.connection = http.client.HTTPConnection("localhost", server.port, timeout=120)

    def request(self, method, path, body=None):
        """Sends a request to `/v1/models/<name><path>` and returns the status and JSON of the
        response."""
        if isinstance(body, dict):
            body = json.dumps(body)
        self.connection.request(method, f"/v1/models/{self.server.flags['model_name']}{path}", body)
        response = self.connection.getresponse()
        return response.status, json.loads(response.read())

    def predict(self, **body):
        return self.request("POST", ":predict", body)


@pytest.fixture(scope="module")
def server(rest_server, exported):
    with rest_server.RestServer(exported, model_name="golden") as running:
        yield running


@pytest.fixture(scope="session")
def rest_client():
    return Client


@pytest.fixture
def client(server):
    client = Client(server)
    yield client
    client.connection.close()


@pytest.fixture(scope="module")
def grpc_port(exported):
    """Starts a gRPC server and returns its port."""
    pytest.importorskip("grpc", reason="grpcio is not installed")
    server, port = runpy.run_path(str(HERE / "grpc_servicer.py"))["start"](
        str(exported / "1"), "golden", 1
    )
    yield port
    server.stop(None).wait()
