"""Tests that malformed requests get errors, and never crash the C++ server or TensorFlow."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from . import malformed
from .client import as_base64, assert_serves_model


@pytest.fixture
def check_server(client, served):
    """Checks after a test that the server still works."""
    yield
    assert_serves_model(client, served)


def assert_right_for_array(probabilities, values, served):
    """Checks that an array has the shape of images, and its probabilities."""
    assert values.shape[1:] == (64, 64, 3) and len(values)
    expected = served.probabilities(values.astype("float32"))
    # Skip the images for which the model itself overflows.
    is_finite = np.isfinite(expected).all(-1)
    assert is_finite.any()
    np.testing.assert_allclose(np.array(probabilities)[is_finite], expected[is_finite], atol=1e-5)


@pytest.mark.usefixtures("check_server")
@pytest.mark.parametrize("files", malformed.ODD_IMAGES.values(), ids=malformed.ODD_IMAGES)
def test_odd_images_are_decoded_as_in_evaluation(files, client, served):
    response = client.predict_successfully(instances=[as_base64(file) for file in files])
    probabilities = [prediction["probabilities"] for prediction in response["predictions"]]
    np.testing.assert_allclose(probabilities, served.probabilities_of_files(files), atol=1e-5)


@pytest.mark.usefixtures("check_server")
@pytest.mark.parametrize("files", malformed.BAD_IMAGES.values(), ids=malformed.BAD_IMAGES)
def test_bad_images_get_error(files, client):
    code, response = client.predict(instances=[as_base64(file) for file in files])
    assert code == 400 and response["error"], (code, response)


@pytest.mark.usefixtures("check_server")
@pytest.mark.parametrize("values", malformed.ARRAYS.values(), ids=malformed.ARRAYS)
def test_array_gets_error_or_right_output(values, client, served):
    code, response = client.predict(signature_name="tensor", inputs={"images": values.tolist()})
    if code == 200:
        assert_right_for_array(response["outputs"], values, served)
    else:
        assert code == 400 and response["error"], (code, response)


@pytest.mark.usefixtures("check_server")
@pytest.mark.parametrize("body", malformed.BODIES.values(), ids=malformed.BODIES)
def test_malformed_body_gets_error(body, client):
    code, response = client.request("POST", ":predict", body)
    assert code == 400 and response["error"], (code, response)


@pytest.mark.usefixtures("check_server")
@pytest.mark.parametrize("content", malformed.RAW_REQUESTS.values(), ids=malformed.RAW_REQUESTS)
def test_malformed_http_gets_error_or_no_response(content, server):
    with socket.create_connection(("localhost", server.port), timeout=60) as connection:
        connection.sendall(content if isinstance(content, bytes) else content.encode())
        connection.shutdown(socket.SHUT_WR)
        # Read until the server closes the connection.
        response = connection.makefile("rb").read()
    assert not response or response.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501"))


@pytest.fixture(scope="module")
def signature_outputs(exported, tmp_path_factory):
    """Returns the outputs of the export's signatures for all malformed tensors."""
    path = tmp_path_factory.mktemp("signatures") / "outputs.json"
    script = Path(__file__).parent / "call_signatures.py"
    done = subprocess.run(
        [sys.executable, script, exported / "1", path],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(path.read_text())


def test_signature_decodes_only_images(signature_outputs, served):
    outputs = signature_outputs["images"]
    assert outputs.keys() == malformed.ODD_IMAGES.keys() | malformed.BAD_IMAGES.keys()
    for name, files in malformed.ODD_IMAGES.items():
        expected = served.probabilities_of_files(files)
        np.testing.assert_allclose(outputs[name], expected, atol=1e-5, err_msg=name)
    for name in malformed.BAD_IMAGES:
        assert outputs[name] is None, name


def test_signature_rejects_arrays_of_wrong_shape(signature_outputs, served):
    outputs = signature_outputs["arrays"]
    assert outputs.keys() == malformed.ARRAYS.keys()
    for name, probabilities in outputs.items():
        if probabilities is not None:
            assert_right_for_array(probabilities, malformed.ARRAYS[name], served)


def test_signatures_reject_malformed_arguments(signature_outputs):
    for name, outputs in signature_outputs["arguments"].items():
        assert outputs is None, name
