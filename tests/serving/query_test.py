"""Tests of `keras-vit query` over REST and gRPC."""

import threading
import types
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.commands import query as query_command

from ..shared import ROOT
from . import malformed


@pytest.fixture
def query(scripts):
    """Returns a function that runs `keras-vit query` for the model "golden"."""

    def run(*arguments):
        return scripts.run("-m", "keras_vit", "query", "--model=golden", *arguments, cwd=ROOT)

    return run


@pytest.fixture
def files(tmp_path):
    """Writes two image files and returns their names."""
    (tmp_path / "one.png").write_bytes(malformed.PNG)
    (tmp_path / "two.jpg").write_bytes(malformed.JPEG)
    return [f"{tmp_path}/one.png", f"{tmp_path}/two.jpg"]


@pytest.fixture
def rest_port(server):
    return server.port


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_prints_top_classes(protocol, query, files, served, request):
    port = request.getfixturevalue(f"{protocol}_port")
    done = query(f"--protocol={protocol}", f"--port={port}", "--top=2", *files)
    expected = []
    probabilities = served.probabilities_of_files([malformed.PNG, malformed.JPEG])
    for name, scores in zip(files, probabilities, strict=True):
        first, second = np.argsort(-scores)[:2]
        expected.append(
            f"{name}: {served.class_names[first]} {100 * scores[first]:.1f} %, "
            f"{served.class_names[second]} {100 * scores[second]:.1f} %"
        )
    assert done.stdout.splitlines() == expected, done.stderr


def test_sends_arrays_to_tensor_signature(query, rest_port, served, tmp_path):
    np.save(tmp_path / "images.npy", served.images)
    flags = (f"--port={rest_port}", "--signature=tensor", "--top=1")
    done = query(*flags, tmp_path / "images.npy")
    assert done.stdout.splitlines() == [
        f"image {i}: class {scores.argmax()} {100 * scores.max():.1f} %"
        for i, scores in enumerate(served.expected)
    ]


def test_array_must_be_one_batch_of_images(tmp_path, monkeypatch):
    np.save(tmp_path / "scalar.npy", np.float32(1))
    np.savez(tmp_path / "arrays.npz", images=np.zeros((1, 8, 8, 3), "float32"))
    monkeypatch.setattr(query_command, "FLAGS", types.SimpleNamespace(signature="tensor"))
    for name in ("scalar.npy", "arrays.npz"):
        with pytest.raises(ValueError, match="one float32 .npy file"):
            query_command.read_inputs([str(tmp_path / name)])


def assert_error(done, message):
    """Checks that a command failed and that its last line is its only error message."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:]
    assert message in lines[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "names", "message"),
    [
        ([], [], "IMAGES... are expected"),
        ([], ["nowhere.jpg"], "An image file cannot be read"),
        ([], ["text.jpg"], "The server rejected the request"),
        (["--signature=tensor"], ["pickle.npy"], "An image file cannot be read"),
        (["--signature=tensor"], ["one.png", "two.jpg"], "IMAGES must be"),
        (["--port=1"], ["one.png"], "The model server did not return predictions"),
    ],
)
@pytest.mark.usefixtures("files")
def test_errors_are_one_line(flags, names, message, query, rest_port, tmp_path):
    (tmp_path / "text.jpg").write_text("no image")
    (tmp_path / "pickle.npy").write_bytes(b"\x80\x04N.")
    images = [tmp_path / name for name in names]
    # A later flag replaces an earlier one.
    assert_error(query(f"--port={rest_port}", *flags, *images), message)


def test_grpc_without_server_is_an_error(query, files):
    pytest.importorskip("grpc", reason="grpcio is not installed")
    done = query("--protocol=grpc", "--port=1", *files)
    assert_error(done, "The model server did not return predictions")


def test_grpc_response_may_be_large(query, tmp_path):
    pytest.importorskip("grpc", reason="grpcio is not installed")
    from . import grpc_servicer

    spec = tf.TensorSpec((None, 1), tf.float32, "images")
    many = tf.function(lambda images: {"probabilities": tf.zeros((1, 2**21))}, [spec])
    tf.saved_model.save(tf.Module(), tmp_path, {"tensor": many.get_concrete_function()})
    np.save(tmp_path / "images.npy", np.zeros((1, 1), "float32"))
    server, port = grpc_servicer.start(str(tmp_path))
    flags = ("--protocol=grpc", f"--port={port}", "--signature=tensor", "--top=1")
    done = query(*flags, tmp_path / "images.npy")
    server.stop(None).wait()
    assert done.stdout == "image 0: class 0 0.0 %\n", done.stderr


@pytest.mark.parametrize("content", [b"<html>", b"[]"])
def test_rejects_response_of_other_http_server(content, query, files):
    class OtherHandler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    with HTTPServer(("localhost", 0), OtherHandler) as other:
        thread = threading.Thread(target=other.handle_request)
        thread.start()
        done = query(f"--port={other.server_port}", *files)
        thread.join()
    assert_error(done, "The model server did not return predictions")
