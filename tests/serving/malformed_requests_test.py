"""Tests that unusual images are decoded as in evaluation, and that malformed requests get errors.

TensorFlow must not abort the server's process."""

import numpy as np
import pytest

from . import malformed
from .client import as_base64


@pytest.mark.parametrize("files", malformed.BAD_IMAGES.values(), ids=malformed.BAD_IMAGES)
def test_bad_images_get_error(files, client):
    code, response = client.predict(instances=[as_base64(file) for file in files])
    assert code == 400 and response["error"], (code, response)


@pytest.mark.parametrize("values", malformed.ARRAYS.values(), ids=malformed.ARRAYS)
def test_array_gets_error_or_right_output(values, client, served):
    code, response = client.predict(signature_name="tensor", inputs={"images": values.tolist()})
    if code != 200:
        assert code == 400 and response["error"], (code, response)
        return
    assert values.shape[1:] == (64, 64, 3) and len(values)
    expected = served.probabilities(values.astype("float32"))
    np.testing.assert_allclose(response["outputs"], expected, atol=1e-5)


@pytest.mark.parametrize("files", malformed.ODD_IMAGES.values(), ids=malformed.ODD_IMAGES)
def test_odd_images_are_decoded_as_in_evaluation(files, client, served):
    response = client.predict_successfully(instances=[as_base64(file) for file in files])
    probabilities = [prediction["probabilities"] for prediction in response["predictions"]]
    np.testing.assert_allclose(probabilities, served.probabilities_of_files(files), atol=1e-5)
