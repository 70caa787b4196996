"""Tests of `keras-vit query` over REST and gRPC."""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

from ..shared import ROOT
from . import malformed


def _query(*arguments):
    command = [sys.executable, "-m", "keras_vit", "query", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def _output_lines(*arguments):
    """Returns the lines that a successful query prints."""
    done = _query(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def _error(*arguments):
    """Returns the only error line of a query that fails."""
    done = _query(*arguments)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:]
    return lines[-1]


@pytest.fixture
def files(tmp_path):
    """Writes two image files and returns their names."""
    (tmp_path / "one.png").write_bytes(malformed.PNG)
    (tmp_path / "two.jpg").write_bytes(malformed.JPEG)
    return [f"{tmp_path}/one.png", f"{tmp_path}/two.jpg"]


@pytest.fixture
def expected_lines(files, served):
    """Returns the lines that a query with `--top=2` prints for `files`."""
    lines = []
    probabilities = served.probabilities_of_files([malformed.PNG, malformed.JPEG])
    for name, scores in zip(files, probabilities, strict=True):
        first, second = np.argsort(-scores)[:2]
        lines.append(
            f"{name}: {served.class_names[first]} {100 * scores[first]:.1f} %, "
            f"{served.class_names[second]} {100 * scores[second]:.1f} %"
        )
    return lines


def test_query_over_rest_prints_top_classes(server, files, expected_lines):
    printed = _output_lines(f"--port={server.port}", "--model=golden", *files, "--top=2")
    assert printed == expected_lines


def test_query_over_grpc_prints_top_classes(grpc_port, files, expected_lines):
    flags = ("--protocol=grpc", f"--port={grpc_port}", "--model=golden", "--top=2")
    assert _output_lines(*flags, *files) == expected_lines


def test_query_sends_arrays_to_tensor_signature(server, served, tmp_path):
    np.save(tmp_path / "images.npy", served.images)
    flags = (f"--port={server.port}", "--model=golden", "--signature=tensor", "--top=1")
    assert _output_lines(*flags, f"{tmp_path}/images.npy") == [
        f"image {i}: class {scores.argmax()} {100 * scores.max():.1f} %"
        for i, scores in enumerate(served.expected)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "names", "message"),
    [
        ([], [], "IMAGES... are expected"),
        ([], ["nowhere.jpg"], "An image file cannot be read"),
        ([], ["text.jpg"], "The server rejected the request"),
        (["--signature=tensor"], ["pickle.npy"], "An image file cannot be read"),
        (["--signature=tensor"], ["one.png", "two.jpg"], "IMAGES must be"),
        (["--model=silver"], ["one.png"], "Received: HTTP 404 from http://localhost"),
        (["--port=1"], ["one.png"], "The model server did not return predictions"),
        (["--protocol=soap"], ["one.png"], "soap"),
    ],
)
@pytest.mark.usefixtures("files")
def test_errors_are_one_line(flags, names, message, server, tmp_path):
    (tmp_path / "text.jpg").write_text("no image")
    (tmp_path / "pickle.npy").write_bytes(b"\x80\x04N.")
    images = [f"{tmp_path}/{name}" for name in names]
    # A later flag replaces an earlier one.
    assert message in _error(f"--port={server.port}", "--model=golden", *flags, *images)


def test_grpc_without_server_is_a_one_line_error(grpc_port, files):
    error = _error("--protocol=grpc", "--port=1", *files)
    assert "The server rejected the request" in error


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
        error = _error(f"--port={other.server_port}", *files)
        thread.join()
    assert "The model server did not return predictions" in error
