"""Tests that unusual images are decoded as in evaluation, and that malformed requests get errors.

If TensorFlow aborted the server's process, the test or the next one would fail, because all tests
share the server.
"""

import numpy as np
import pytest

from ..shared import random_images
from . import malformed
from .client import as_base64


@pytest.mark.parametrize("files", malformed.BAD_IMAGES.values(), ids=malformed.BAD_IMAGES)
def test_bad_images_get_error(files, client):
    code, response = client.post("predict", instances=[as_base64(file) for file in files])
    assert code == 400 and response["error"], (code, response)


@pytest.mark.parametrize("values", malformed.BAD_ARRAYS.values(), ids=malformed.BAD_ARRAYS)
def test_bad_arrays_get_error(values, client):
    inputs = {"images": values.tolist()}
    code, response = client.post("predict", signature_name="tensor", inputs=inputs)
    assert code == 400 and response["error"], (code, response)


@pytest.mark.filterwarnings("ignore")  # about the values
def test_values_outside_of_the_expected_range_are_served(client, served):
    images = 255 * random_images((1, 64, 64, 3))
    inputs = {"images": images.tolist()}
    response = client.predict_successfully(signature_name="tensor", inputs=inputs)
    np.testing.assert_allclose(response["outputs"], served.probabilities(images), atol=1e-5)


@pytest.mark.parametrize("files", malformed.ODD_IMAGES.values(), ids=malformed.ODD_IMAGES)
def test_odd_images_are_decoded_as_in_evaluation(files, client, served):
    response = client.predict_successfully(instances=[as_base64(file) for file in files])
    probabilities = [prediction["probabilities"] for prediction in response["predictions"]]
    np.testing.assert_allclose(probabilities, served.probabilities_of_files(files), atol=1e-5)
