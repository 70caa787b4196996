"""Tests of downloads, the cache and the mirror folder."""

import http.server
import os
import threading
import time
from pathlib import Path

import pytest

from keras_vit.checkpoints import downloading

pytestmark = pytest.mark.one_backend  # downloads do not depend on the backend

GOOGLE = "https://storage.googleapis.com"
CONTENT = bytes(range(256)) * 1024  # 0.25 MiB


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Sets an empty folder as the home of Keras, which contains the cache, and returns it."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("KERAS_VIT_WEIGHTS", raising=False)
    return tmp_path / "home"


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers with `CONTENT`, or with its first half if `server.truncate` is set."""

    def do_GET(self):
        self.server.requests.append(self.path)
        if "missing" in self.path:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[: len(CONTENT) // 2] if self.server.truncate else CONTENT)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    """Runs a local HTTP server. `requests` lists the requested paths."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.requests = []
        server.truncate = False
        server.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def files_below(folder):
    """Returns the names of all files in a folder and its subfolders."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_file_is_downloaded_once(server, home):
    url = f"{server.url}/vit_models/sam/ViT-B_16.npz"
    path = downloading.fetch(url)
    assert Path(path).read_bytes() == CONTENT
    assert downloading.fetch(url) == path
    assert len(server.requests) == 1
    assert files_below(home) == ["ViT-B_16.npz"]


def test_files_with_equal_names_are_cached_separately(server):
    paths = {
        downloading.fetch(f"{server.url}/{folder}/ViT-B_16.npz")
        for folder in ("sam", "imagenet21k")
    }
    assert len(paths) == 2


def test_interrupted_download_leaves_no_file(server, home):
    server.truncate = True
    with pytest.raises(ConnectionError, match="could not be downloaded"):
        downloading.fetch(f"{server.url}/x.npz")
    assert files_below(home) == []
    server.truncate = False
    assert Path(downloading.fetch(f"{server.url}/x.npz")).read_bytes() == CONTENT


def test_leftovers_of_a_killed_download_are_ignored(server, home):
    url = f"{server.url}/x.npz"
    target = downloading.cache_path(url)
    target.parent.mkdir(parents=True)
    new = target.with_name(f"x.{'a' * 12}.part.npz")
    old = target.with_name(f"x.{'b' * 12}.part.npz")
    new.write_bytes(CONTENT[:100])
    old.write_bytes(CONTENT[:100])
    yesterday = time.time() - 25 * 3600
    os.utime(old, (yesterday, yesterday))
    assert Path(downloading.fetch(url)).read_bytes() == CONTENT
    assert new.exists()  # another process may still be writing it
    assert not old.exists()


def test_failed_download_error_lists_the_url_and_both_paths(server, monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path))
    url = f"{server.url}/missing/ViT-B_16.npz"
    with pytest.raises(ConnectionError) as raised:
        downloading.fetch(url)
    paths = f"{tmp_path}/127.0.0.1/missing/ViT-B_16.npz or {downloading.cache_path(url)}"
    assert f"download {url} on another machine and copy it to {paths}" in str(raised.value)


def test_gs_url_maps_to_https():
    url = downloading.https("gs://vit_models/imagenet21k/R50+ViT-B_16.npz")
    assert url == f"{GOOGLE}/vit_models/imagenet21k/R50%2BViT-B_16.npz"


def test_file_is_read_from_the_mirror(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path))
    file = tmp_path / "bit_models" / "BiT-M-R50x1.npz"
    file.parent.mkdir()
    file.touch()
    assert downloading.fetch("gs://bit_models/BiT-M-R50x1.npz") == str(file)


@pytest.mark.parametrize(
    "url, path",
    [
        (f"{GOOGLE}/vit_models/imagenet21k/R50%2BViT-B_16.npz", "imagenet21k/R50+ViT-B_16.npz"),
        # The path stays inside the mirror.
        (f"{GOOGLE}/vit_models/..%2F../secret.npz", "secret.npz"),
    ],
)
def test_mirror_has_the_paths_of_the_bucket(url, path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", "/mirror")
    assert downloading.in_mirror(url) == Path("/mirror", path)
