"""Sends good and bad requests from many clients for several minutes (`pytest -m slow`)."""

import base64
import http.client
import itertools
import threading
import time

import numpy as np
import pytest

CLIENTS = 16


def _bad_bodies(malformed):
    """Yields bad request bodies. Omits large ones, which would take most of the time, and arrays of
    the right shape."""
    for files in malformed.BAD_IMAGES.values():
        if len(files) < 100:
            yield {"instances": [{"b64": base64.b64encode(file).decode()} for file in files]}
    for values in malformed.ARRAYS.values():
        if values.size < 100_000 and (values.shape[1:] != (64, 64, 3) or not len(values)):
            yield {"signature_name": "tensor", "instances": values.tolist()}
    yield from (body for body in malformed.BODIES.values() if len(body) < 1_000_000)


@pytest.mark.slow
def test_correct_responses_and_stable_memory_under_load(
    server, rest_client, served, malformed, pytestconfig
):
    seconds = pytestconfig.getoption("--soak_seconds")
    images = served.images[:1]
    files = [malformed.JPEG, malformed.PNG]
    good = [
        ({"signature_name": "tensor", "instances": images.tolist()}, served.expected[:1]),
        (
            {"instances": [{"b64": base64.b64encode(x).decode()} for x in files]},
            served.of_files(files),
        ),
    ]
    bad = list(_bad_bodies(malformed))
    end = time.monotonic() + seconds
    wrong = []
    counts = np.zeros((CLIENTS, 2), int)

    def send(number):
        client = rest_client(server)
        turns = itertools.count(number)
        while time.monotonic() < end and not wrong:
            turn = next(turns)
            body, expected = good[turn % 2] if turn % 3 else (bad[(7 * turn) % len(bad)], None)
            try:
                code, response = client.request("POST", ":predict", body)
            except (OSError, http.client.HTTPException) as error:
                wrong.append((body, repr(error)))
                return
            if expected is None:
                right = code == 400
            else:
                rows = response.get("predictions", [])
                rows = [row if isinstance(row, list) else row["probabilities"] for row in rows]
                right = code == 200 and np.allclose(rows, expected, rtol=0, atol=1e-4)
            if not right:
                wrong.append((body, code, response))
            counts[number, int(expected is None)] += 1
        client.connection.close()

    threads = [threading.Thread(target=send, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    memory = []
    for thread in threads:
        while thread.is_alive() and server.is_running:
            memory.append(server.memory() / 2**20)
            thread.join(1)
        thread.join()
    assert not wrong, str(wrong[0])[:2000]
    assert server.is_running
    assert counts.min() > 0
    # Each fifth is one minute by default.
    fifths = [np.median(part) for part in np.array_split(memory, 5)]
    print(
        f"{counts.sum(0)} good and bad requests; MiB: "
        + ", ".join(f"{fifth:.0f}" for fifth in fifths)
    )
    # A leak of 1 KiB per request reaches 16 MiB after 16,384 requests.
    assert max(fifths[1:]) <= max(memory[: len(memory) // 5]) + 16
