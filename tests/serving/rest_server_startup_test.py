"""Tests of starting the C++ server: its versions, warm-up, flags and errors."""

from pathlib import Path

import pytest

from . import rest_server
from .client import Client


def test_server_runs_at_least_3_warm_up_requests(server):
    assert server.warm_up_requests >= 3


def test_serves_highest_version(start_server, exported, tmp_path):
    for name in ("2", "10", "partial-11", "latest"):
        (tmp_path / name).symlink_to(exported / "1")
    with start_server(tmp_path) as server, Client(server) as client:
        _, status = client.request("GET", "")
        assert status["model_version_status"][0]["version"] == "10"


def test_listens_on_localhost_only(server):
    # Each line of the file has a local address, a remote address and a state after its number.
    connections = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [address for _, address, _, state, *_ in connections if state == "0A"]
    port = f"{server.port:04X}"
    # The address is 127.0.0.1 in reversed byte order.
    assert [address for address in listening if address.endswith(port)] == [f"0100007F:{port}"]


def test_rejects_folder_without_version(start_server, tmp_path):
    with (
        pytest.raises(ValueError, match="--model_base_path must contain a version"),
        start_server(tmp_path),
    ):
        pass


def test_rejects_invalid_saved_model(start_server, tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"no graph")
    with pytest.raises(ValueError, match="did not start: error: "), start_server(tmp_path):
        pass


def test_missing_compiler_error_names_package(monkeypatch):
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
    ids=["out of range", "not a number", "unknown"],
)
def test_rejects_bad_flags(flag, message, start_server, exported):
    with pytest.raises(ValueError, match=message), start_server(exported, **flag):
        pass


def test_rejects_port_in_use(server, start_server, exported):
    with (
        pytest.raises(ValueError, match="already in use"),
        start_server(exported, rest_api_port=server.port),
    ):
        pass
