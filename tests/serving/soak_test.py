"""Sends good and bad requests from many clients for several minutes (`pytest -m slow`)."""

import http.client
import itertools
import threading
import time

import numpy as np
import pytest

from . import malformed
from .client import Client, as_base64

CLIENTS = 16


def _good_requests(served):
    """Returns request bodies with their expected probabilities."""
    images = served.images[:1]
    files = [malformed.JPEG, malformed.PNG]
    return [
        ({"signature_name": "tensor", "instances": images.tolist()}, served.expected[:1]),
        (
            {"instances": [as_base64(file) for file in files]},
            served.probabilities_of_files(files),
        ),
    ]


def _bad_bodies():
    """Yields bad request bodies. Omits large ones, which would take most of the time, and arrays of
    the right shape."""
    for files in malformed.BAD_IMAGES.values():
        if len(files) < 100:
            yield {"instances": [as_base64(file) for file in files]}
    for values in malformed.ARRAYS.values():
        if values.size < 100_000 and (values.shape[1:] != (64, 64, 3) or not len(values)):
            yield {"signature_name": "tensor", "instances": values.tolist()}
    yield from (body for body in malformed.BODIES.values() if len(body) < 1_000_000)


def _mixed_requests(good, bad, start):
    """Yields `(body, expected)` without end, with `expected=None` for every third, bad body."""
    for number in itertools.count(start):
        if number % 3 == 0:
            yield bad[7 * number % len(bad)], None
        else:
            yield good[number % 2]


def _is_right(code, response, expected):
    if expected is None:
        return code == 400
    if code != 200:
        return False
    predictions = response["predictions"]
    if isinstance(predictions[0], dict):
        predictions = [prediction["probabilities"] for prediction in predictions]
    return np.allclose(predictions, expected, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_correct_responses_and_stable_memory_under_load(server, served, pytestconfig):
    good = _good_requests(served)
    bad = list(_bad_bodies())
    end = time.monotonic() + pytestconfig.getoption("--soak_seconds")
    failures = []
    counts = np.zeros((CLIENTS, 2), int)

    def send(number):
        with Client(server) as client:
            for body, expected in _mixed_requests(good, bad, start=number):
                if time.monotonic() > end or failures:
                    break
                try:
                    code, response = client.request("POST", ":predict", body)
                except (OSError, http.client.HTTPException) as error:
                    failures.append((body, repr(error)))
                    break
                if not _is_right(code, response, expected):
                    failures.append((body, code, response))
                counts[number, int(expected is None)] += 1

    threads = [threading.Thread(target=send, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    megabytes = []
    while any(thread.is_alive() for thread in threads) and server.is_running:
        megabytes.append(server.memory() / 2**20)
        time.sleep(1)
    for thread in threads:
        thread.join()
    assert not failures, str(failures[0])[:2000]
    assert server.is_running
    assert counts.min() > 0
    # Each fifth is one minute by default.
    fifths = np.array_split(megabytes, 5)
    medians = [round(float(np.median(fifth))) for fifth in fifths]
    print(f"{counts.sum(0)} good and bad requests; median MiB per fifth: {medians}")
    # A leak of 1 KiB per request reaches 16 MiB after 16,384 requests.
    assert max(medians[1:]) <= max(fifths[0]) + 16
