"""Tests of the C++ server's connections: keep-alive, slow and idle clients, and limits."""

import contextlib
import http.client
import socket

import pytest

from .client import Client, assert_serves_model


def _post_head(length, name):
    """Returns the head of a request whose client waits for `100 Continue` before the body."""
    return (
        f"POST /v1/models/{name}:predict HTTP/1.1\r\n"
        f"Content-Length: {length}\r\n"
        "Expect: 100-continue\r\n\r\n"
    ).encode()


def _read_all(connection):
    """Returns what the server sends until it closes the connection."""
    return connection.makefile("rb").read()


@pytest.fixture
def connect():
    """Returns a function that opens a connection until the end of the test and sends bytes."""
    with contextlib.ExitStack() as stack:

        def open_connection(server, content=b""):
            connection = stack.enter_context(
                socket.create_connection(("localhost", server.port), timeout=60)
            )
            connection.sendall(content)
            return connection

        yield open_connection


def test_connection_stays_open_between_requests(client):
    client.request("GET", "")
    first = client.connection.sock.getsockname()
    for _ in range(3):
        assert client.request("POST", ":predict", {})[0] == 400
    assert client.connection.sock.getsockname() == first


def test_server_answers_expect_100_continue(server, connect):
    """curl sends this header for bodies above 1 MB."""
    body = b'{"instances": []}'
    connection = connect(server, _post_head(len(body), "golden"))
    assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
    connection.sendall(body)
    assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_idle_connections_do_not_block_requests(start_server, exported, connect):
    with start_server(exported, rest_api_num_threads=2) as server, contextlib.ExitStack() as stack:
        for _ in range(20):
            connect(server)
        kept = [http.client.HTTPConnection("localhost", server.port, timeout=60) for _ in range(4)]
        for connection in kept:
            stack.callback(connection.close)
        # Each connection is idle between its two requests.
        for connection in 2 * kept:
            connection.request("GET", "/v1/models/model")
            assert connection.getresponse().read()


def test_slow_clients_and_total_body_bytes_are_limited(start_server, exported, connect):
    flags = {"rest_api_num_threads": 6, "max_request_megabytes": 1, "request_seconds": 2}
    with start_server(exported, **flags) as server:
        head = _post_head(1 << 20, "model")
        without_body = [connect(server, head) for _ in range(4)]
        for connection in without_body:
            assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        # The concurrent bodies may have four times the size of the largest body.
        assert _read_all(connect(server, head)).startswith(b"HTTP/1.1 503 ")
        half_lines = [connect(server, b"GET /v1/mod") for _ in range(6)]
        for connection in without_body + half_lines:
            assert _read_all(connection).startswith(b"HTTP/1.1 408 ")
        with Client(server) as client:
            code, _ = client.request("GET", "")
        assert code == 200


def test_rejects_oversized_body(client, served):
    code, response = client.request("POST", ":predict", b"0" * (65 << 20))
    assert code == 413 and "The body must have at most" in response["error"]
    assert_serves_model(client, served)
