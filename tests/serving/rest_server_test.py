"""Tests of an export in a server that uses TensorFlow's C++ loader of SavedModels."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from . import malformed
from .client import as_base64


def test_server_runs_warm_up_requests(server):
    assert server.warm_up_requests >= 3


def test_tensors_match_reference(client, served):
    images = served.images.tolist()
    response = client.predict_successfully(signature_name="tensor", instances=images)
    np.testing.assert_allclose(response["predictions"], served.expected, atol=1e-4)


def test_files_match_model(client, served):
    files = [malformed.PNG, malformed.JPEG, malformed.GIF]
    response = client.predict_successfully(instances=[as_base64(file) for file in files])
    expected = served.probabilities_of_files(files)
    for prediction, probabilities in zip(response["predictions"], expected, strict=True):
        assert prediction.keys() == {"probabilities", "top_classes", "top_probabilities"}
        np.testing.assert_allclose(prediction["probabilities"], probabilities, atol=1e-5)
        best = np.argsort(-probabilities)[:5]
        assert prediction["top_classes"] == [served.class_names[i] for i in best]
        np.testing.assert_allclose(prediction["top_probabilities"], probabilities[best], atol=1e-5)


def test_classify_returns_names_and_scores(client, served):
    files = [malformed.PNG, malformed.BMP]
    examples = [{"image/encoded": as_base64(file)} for file in files]
    code, response = client.post("classify", signature_name="classify", examples=examples)
    assert code == 200, response
    expected = served.probabilities_of_files(files)
    for result, probabilities in zip(response["results"], expected, strict=True):
        best = np.argsort(-probabilities)[:5]
        names, scores = zip(*result)
        assert list(names) == [served.class_names[i] for i in best]
        np.testing.assert_allclose(scores, probabilities[best], atol=1e-5)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_commands_in_export_readme_run(exported, server, served):
    folder = exported / "1"
    blocks = re.findall(r"```sh\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    responses = []
    for block in blocks:
        if "curl" in block:
            script = block.replace("localhost:8501", f"localhost:{server.port}")
            command = ["bash", "-euo", "pipefail", "-c", script]
            done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
            responses.append(json.loads(done.stdout))
    status, prediction = responses
    assert status["model_version_status"][0]["state"] == "AVAILABLE"
    example = (folder / "assets.extra" / "example.jpg").read_bytes()
    (expected,) = served.probabilities_of_files([example])
    top_classes = prediction["predictions"][0]["top_classes"]
    assert top_classes[0] == served.class_names[expected.argmax()]
