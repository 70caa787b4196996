"""Tests of the C++ server: responses, startup errors, limits, and malformed requests."""

import base64
import contextlib
import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
PATHS = [":predict", "/versions/1:predict"]


def _b64(file):
    return {"b64": base64.b64encode(file).decode()}


def _assert_golden(client, served, malformed):
    """Checks the probabilities for a tensor and for image files."""
    code, response = client.predict(signature_name="tensor", instances=served.images.tolist())
    assert code == 200, response
    np.testing.assert_allclose(response["predictions"], served.expected, atol=1e-4)
    code, response = client.predict(inputs=[_b64(malformed.PNG), _b64(malformed.JPEG)])
    assert code == 200, response
    expected = served.of_files([malformed.PNG, malformed.JPEG])
    np.testing.assert_allclose(response["outputs"]["probabilities"], expected, atol=1e-5)


@pytest.mark.parametrize("path", PATHS)
def test_tensors_match_reference_in_row_and_column_format(path, client, served):
    images = served.images.tolist()
    for body, key in (
        ({"instances": images}, "predictions"),
        ({"instances": [{"images": image} for image in images]}, "predictions"),
        ({"inputs": images}, "outputs"),
        ({"inputs": {"images": images}}, "outputs"),
    ):
        code, response = client.request("POST", path, {"signature_name": "tensor", **body})
        assert code == 200, response
        assert response.keys() == {key}
        np.testing.assert_allclose(response[key], served.expected, atol=1e-4)


def test_files_match_model_in_row_and_column_format(client, served, malformed):
    files = [malformed.PNG, malformed.JPEG, malformed.GIF]
    expected = served.of_files(files)
    best = np.argsort(-expected, -1)
    rows = [_b64(file) for file in files]
    columns = {"image_bytes": [_b64(file) for file in files]}
    code, response = client.predict(instances=rows)
    assert code == 200, response
    for row, probabilities, order in zip(response["predictions"], expected, best, strict=True):
        assert row.keys() == {"probabilities", "top_classes", "top_probabilities"}
        np.testing.assert_allclose(row["probabilities"], probabilities, atol=1e-5)
        assert row["top_classes"] == [
            served.class_names[i] for i in order[: len(row["top_classes"])]
        ]
        np.testing.assert_allclose(
            row["top_probabilities"], np.sort(row["probabilities"])[::-1][:5]
        )
    code, again = client.predict(signature_name="serving_default", inputs=columns)
    assert code == 200, again
    assert again["outputs"]["probabilities"] == [
        row["probabilities"] for row in response["predictions"]
    ]
    assert again["outputs"]["top_classes"] == [
        row["top_classes"] for row in response["predictions"]
    ]


def test_classify_returns_names_and_scores(client, served, malformed):
    examples = [{"image/encoded": _b64(file)} for file in (malformed.PNG, malformed.BMP)]
    code, response = client.request(
        "POST", ":classify", {"signature_name": "classify", "examples": examples}
    )
    assert code == 200, response
    for result, probabilities in zip(
        response["results"], served.of_files([malformed.PNG, malformed.BMP]), strict=True
    ):
        order = np.argsort(-probabilities)[: len(result)]
        assert [name for name, _ in result] == [served.class_names[i] for i in order]
        np.testing.assert_allclose([score for _, score in result], probabilities[order], atol=1e-5)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_commands_in_export_readme_run(exported, server, served):
    blocks = re.findall(r"```sh\n(.*?)```", (exported / "1" / "README.md").read_text(), re.DOTALL)
    status, response = (
        subprocess.run(
            [
                "bash",
                "-euo",
                "pipefail",
                "-c",
                line.replace("localhost:8501", f"localhost:{server.port}"),
            ],
            cwd=exported / "1",
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for line in blocks
        if "curl" in line
    )
    assert json.loads(status)["model_version_status"][0]["state"] == "AVAILABLE"
    (expected,) = served.of_files([(exported / "1" / "assets.extra" / "example.jpg").read_bytes()])
    assert (
        json.loads(response)["predictions"][0]["top_classes"][0]
        == served.class_names[expected.argmax()]
    )


def test_status_and_metadata_describe_model(client):
    code, status = client.request("GET", "")
    assert (code, status["model_version_status"][0]["state"]) == (200, "AVAILABLE")
    assert status["model_version_status"][0]["version"] == "1"
    code, metadata = client.request("GET", "/metadata")
    assert code == 200
    assert metadata["model_spec"] == {"name": "golden", "signature_name": "", "version": "1"}
    signatures = metadata["metadata"]["signature_def"]["signature_def"]
    images = signatures["tensor"]["inputs"]["images"]
    assert images["dtype"] == "DT_FLOAT"
    assert [dim["size"] for dim in images["tensor_shape"]["dim"]] == ["-1", "64", "64", "3"]
    assert signatures["serving_default"]["inputs"]["image_bytes"]["dtype"] == "DT_STRING"


def test_server_runs_at_least_3_warm_up_requests(server):
    assert server.warm_up_requests >= 3


def test_serves_highest_version(rest_server, exported, tmp_path):
    for name in ("2", "10", "partial-11", "latest"):
        (tmp_path / name).symlink_to(exported / "1")
    with rest_server.RestServer(tmp_path) as server:
        status = _get(server, "/v1/models/model")
        assert status["model_version_status"][0]["version"] == "10"


def test_rejects_invalid_export(rest_server, exported, tmp_path):
    with (
        pytest.raises(ValueError, match="--model_base_path must contain a version"),
        rest_server.RestServer(tmp_path),
    ):
        pass
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"no graph")
    with (
        pytest.raises(ValueError, match="did not start: error: "),
        rest_server.RestServer(tmp_path),
    ):
        pass


def test_missing_compiler_error_names_package(rest_server, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match=r"g\+\+, which is not installed .*apt-get install g\+\+"):
        rest_server.build()


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        (
            {"rest_api_port": 70_000},
            "--rest_api_port must be an integer from 0 to 65535. Received: --rest_api_port=70000",
        ),
        (
            {"rest_api_num_threads": "two"},
            "--rest_api_num_threads must be an integer from 1 to 1024",
        ),
        ({"port": 8501}, "unknown flag --port=8501"),
    ],
    ids=["range", "words", "unknown"],
)
def test_rejects_bad_flags(flag, message, rest_server, exported):
    with pytest.raises(ValueError, match=message), rest_server.RestServer(exported, **flag):
        pass


def test_rejects_port_in_use(server, rest_server, exported):
    with (
        pytest.raises(ValueError, match="already in use"),
        rest_server.RestServer(exported, rest_api_port=server.port),
    ):
        pass


def _get(server, path):
    with socket.create_connection(("localhost", server.port), timeout=60) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
        return json.loads(_read_all(connection).partition(b"\r\n\r\n")[2])


def _read_all(connection):
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_connection_stays_open_between_requests(client):
    client.request("GET", "")
    first = client.connection.sock.getsockname()
    for _ in range(3):
        assert client.request("POST", ":predict", {})[0] == 400
    assert client.connection.sock.getsockname() == first


def test_server_answers_expect_100_continue(server):
    # curl sends this header for bodies above 1 MB.
    body = b'{"instances": []}'
    with socket.create_connection(("localhost", server.port), timeout=60) as connection:
        head = (
            f"POST /v1/models/golden:predict HTTP/1.1\r\nContent-Length: {len(body)}\r\nExpect: "
            "100-continue\r\n\r\n"
        )
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_concurrent_clients_get_their_own_responses(server, served, rest_client):
    responses = {}

    def send(number):
        client = rest_client(server)
        image = served.images[number % len(served.images)]
        responses[number] = client.predict(signature_name="tensor", instances=[image.tolist()])
        client.connection.close()

    # Start more clients than the server has threads.
    threads = [threading.Thread(target=send, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, (code, response) in responses.items():
        assert code == 200, response
        np.testing.assert_allclose(
            response["predictions"][0], served.expected[number % len(served.images)], atol=1e-4
        )
    assert len(responses) == 40


@pytest.mark.parametrize("kind", ["ODD_IMAGES", "BAD_IMAGES", "ARRAYS"])
def test_malformed_tensor_gets_error_or_right_output(kind, server, client, served, malformed):
    for name, values in getattr(malformed, kind).items():
        if kind == "ARRAYS":
            code, response = client.predict(
                signature_name="tensor", inputs={"images": values.tolist()}
            )
        else:
            code, response = client.predict(instances=[_b64(file) for file in values])
        assert server.is_running, name
        if code == 200:
            outputs = (
                response["outputs"]
                if kind == "ARRAYS"
                else [row["probabilities"] for row in response["predictions"]]
            )
            _assert_right(outputs, kind, values, served, name)
        else:
            assert kind != "ODD_IMAGES", (name, response)
            assert code == 400 and response["error"], (name, code, response)
    _assert_golden(client, served, malformed)


def _assert_right(probabilities, kind, values, served, name):
    """Checks that the input is an unusual image or a valid array, and that its probabilities match
    the model."""
    assert kind != "BAD_IMAGES", name
    if kind == "ARRAYS":
        assert values.shape[1:] == (64, 64, 3) and len(values), name
        expected = served.probabilities(values.astype("float32"))
    else:
        expected = served.of_files(values)
    defined = np.isfinite(expected).all(-1)  # skip rows in which the model itself overflows
    assert defined.any(), name
    np.testing.assert_allclose(
        np.array(probabilities)[defined], expected[defined], atol=1e-5, err_msg=name
    )


def test_malformed_body_gets_error(server, client, served, malformed):
    for name, body in malformed.BODIES.items():
        code, response = client.request("POST", ":predict", body)
        assert code == 400 and response["error"], (name, code, response)
        assert server.is_running, name
    _assert_golden(client, served, malformed)


def test_malformed_http_gets_error_or_no_response(server, client, served, malformed):
    for name, sent in malformed.RAW_REQUESTS.items():
        with socket.create_connection(("localhost", server.port), timeout=60) as connection:
            connection.sendall(sent if isinstance(sent, bytes) else sent.encode())
            connection.shutdown(socket.SHUT_WR)
            response = _read_all(connection)
        assert not response or response.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501")), (
            name,
            response,
        )
        assert server.is_running, name
    _assert_golden(client, served, malformed)


def test_listens_on_localhost_only(server):
    listening = [line.split()[1:4] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert [
        local
        for local, _, state in listening
        if state == "0A" and int(local[-4:], 16) == server.port
    ] == [f"0100007F:{server.port:04X}"]


def test_idle_connections_do_not_block_requests(rest_server, exported):
    with (
        rest_server.RestServer(exported, rest_api_num_threads=2) as server,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(20):
            stack.enter_context(socket.create_connection(("localhost", server.port)))
        kept = [http.client.HTTPConnection("localhost", server.port, timeout=60) for _ in range(4)]
        for connection in kept:
            stack.callback(connection.close)
        for _ in range(2):  # each connection is idle between its requests
            for connection in kept:
                connection.request("GET", "/v1/models/model")
                assert connection.getresponse().read()


def test_slow_clients_and_total_body_bytes_are_limited(rest_server, exported):
    flags = {"rest_api_num_threads": 6, "max_request_megabytes": 1, "request_seconds": 2}
    with rest_server.RestServer(exported, **flags) as server, contextlib.ExitStack() as stack:

        def begin(text):
            connection = stack.enter_context(
                socket.create_connection(("localhost", server.port), timeout=60)
            )
            connection.sendall(text.encode())
            return connection

        head = (
            f"POST /v1/models/model:predict HTTP/1.1\r\nContent-Length: {1 << 20}\r\nExpect: "
            "100-continue\r\n\r\n"
        )
        slow = [begin(head) for _ in range(4)]
        for connection in slow:
            # The server waits for the body.
            assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        assert _read_all(begin(head)).startswith(b"HTTP/1.1 503 ")
        slow += [begin("GET /v1/mod") for _ in range(6)]
        for connection in slow:
            assert _read_all(connection).startswith(b"HTTP/1.1 408 ")
        assert _get(server, "/v1/models/model")["model_version_status"]


def test_rejects_oversized_body(client, served, malformed):
    code, response = client.request("POST", ":predict", b"0" * (65 << 20))
    assert code == 413 and "The body must have at most" in response["error"]
    _assert_golden(client, served, malformed)


def test_malformed_tensors_do_not_abort_the_process(exported, served, malformed, tmp_path):
    command = [
        sys.executable,
        str(HERE / "call_signatures.py"),
        str(exported / "1"),
        str(tmp_path / "results.json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads((tmp_path / "results.json").read_text())
    images = {**malformed.ODD_IMAGES, **malformed.BAD_IMAGES}
    assert (
        results["images"].keys() == images.keys()
        and results["arrays"].keys() == malformed.ARRAYS.keys()
    )
    assert sum(map(len, results.values())) >= 40
    for name, probabilities in results["images"].items():
        if name in malformed.ODD_IMAGES:
            _assert_right(probabilities, "ODD_IMAGES", images[name], served, name)
        else:
            assert probabilities is None, name
    for name, probabilities in results["arrays"].items():
        if probabilities is not None:
            _assert_right(probabilities, "ARRAYS", malformed.ARRAYS[name], served, name)
    assert set(results["shapes"].values()) == {None}
