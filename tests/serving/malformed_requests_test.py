"""Tests that unusual images are decoded as in evaluation, and that malformed requests get errors.

If TensorFlow aborted the server's process, the test or the next one would fail, because all tests
share the server.
"""

import numpy as np
import pytest

from . import malformed
from .client import as_base64


@pytest.mark.parametrize("files", malformed.BAD_IMAGES.values(), ids=malformed.BAD_IMAGES)
def test_bad_images_get_error(files, client):
    code, response = client.predict(instances=[as_base64(file) for file in files])
    assert code == 400 and response["error"], (code, response)


@pytest.mark.parametrize("values", malformed.BAD_ARRAYS.values(), ids=malformed.BAD_ARRAYS)
def test_bad_arrays_get_error(values, client):
    code, response = client.predict(signature_name="tensor", inputs={"images": values.tolist()})
    assert code == 400 and response["error"], (code, response)


@pytest.mark.parametrize("values", malformed.ODD_ARRAYS.values(), ids=malformed.ODD_ARRAYS)
def test_odd_arrays_get_the_output_of_the_model(values, client, served):
    response = client.predict_successfully(
        signature_name="tensor", inputs={"images": values.tolist()}
    )
    np.testing.assert_allclose(response["outputs"], served.probabilities(values), atol=1e-5)


@pytest.mark.parametrize("files", malformed.ODD_IMAGES.values(), ids=malformed.ODD_IMAGES)
def test_odd_images_are_decoded_as_in_evaluation(files, client, served):
    response = client.predict_successfully(instances=[as_base64(file) for file in files])
    probabilities = [prediction["probabilities"] for prediction in response["predictions"]]
    np.testing.assert_allclose(probabilities, served.probabilities_of_files(files), atol=1e-5)
