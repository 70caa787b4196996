"""Tests of `keras-vit query` over REST and gRPC."""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

from ..shared import ROOT


def _query(*arguments):
    command = [sys.executable, "-m", "keras_vit", "query", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def _error(done):
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2, done.stderr
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:]
    assert "Traceback" not in done.stderr
    return lines[-1]


@pytest.fixture
def files(malformed, served, tmp_path):
    """Returns two image files, a file of preprocessed images, and the expected output for the image
    files."""
    (tmp_path / "one.png").write_bytes(malformed.PNG)
    (tmp_path / "two.jpg").write_bytes(malformed.JPEG)
    np.save(tmp_path / "images.npy", served.images)
    names = [f"{tmp_path}/one.png", f"{tmp_path}/two.jpg"]
    lines = []
    for name, row in zip(names, served.of_files([malformed.PNG, malformed.JPEG])):
        best = [f"{served.class_names[i]} {100 * row[i]:.1f} %" for i in np.argsort(-row)[:2]]
        lines.append(f"{name}: {', '.join(best)}")
    return names, f"{tmp_path}/images.npy", lines


def test_query_over_rest_prints_top_classes(server, files):
    done = _query(f"--port={server.port}", "--model=golden", *files[0], "--top=2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == files[2]


def test_query_over_grpc_prints_top_classes(grpc_port, files):
    done = _query("--protocol=grpc", f"--port={grpc_port}", "--model=golden", *files[0], "--top=2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == files[2]


def test_query_sends_arrays_to_tensor_signature(server, files, served):
    done = _query(
        f"--port={server.port}", "--model=golden", "--signature=tensor", files[1], "--top=1"
    )
    assert done.returncode == 0, done.stderr
    expected = [f"class {row.argmax()} {100 * row.max():.1f} %" for row in served.expected]
    assert done.stdout.splitlines() == [f"image {i}: {text}" for i, text in enumerate(expected)]


@pytest.mark.slow
def test_errors_are_one_line(server, files, tmp_path):
    golden = (f"--port={server.port}", "--model=golden")
    (tmp_path / "text.jpg").write_text("no image")
    (tmp_path / "pickle.npy").write_bytes(b"\x80\x04N.")
    for arguments, message in (
        ([*golden], "IMAGES... are expected"),
        ([*golden, "nowhere.jpg"], "An image file cannot be read"),
        ([*golden, "--signature=tensor", f"{tmp_path}/pickle.npy"], "An image file cannot be read"),
        ([*golden, "--signature=tensor", *files[0]], "IMAGES must be"),
        ([*golden, f"{tmp_path}/text.jpg"], "The server rejected the request"),
        (
            [f"--port={server.port}", "--model=silver", *files[0]],
            "Received: HTTP 404 from http://localhost",
        ),
        (["--port=1", *files[0]], "The model server did not return predictions"),
        (["--protocol=soap"], "soap"),
    ):
        assert message in _error(_query(*arguments)), arguments


def test_grpc_without_server_is_a_one_line_error(grpc_port, files):
    assert "The server rejected the request" in _error(
        _query("--protocol=grpc", "--port=1", *files[0])
    )


def test_rejects_response_of_other_http_server(files):
    class HtmlHandler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_):
            pass

    with HTTPServer(("localhost", 0), HtmlHandler) as other:
        thread = threading.Thread(target=other.handle_request)
        thread.start()
        error = _error(_query(f"--port={other.server_port}", *files[0]))
        thread.join()
    assert "The model server did not return predictions" in error
