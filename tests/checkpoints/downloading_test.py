"""Tests of downloads, the cache and the mirror folder."""

import http.server
import os
import threading
import time
from pathlib import Path

import pytest

from keras_vit.checkpoints import downloading

pytestmark = pytest.mark.one_backend  # downloads do not depend on the backend

CONTENT = bytes(range(256)) * 1024  # 0.25 MiB


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("KERAS_VIT_WEIGHTS", raising=False)
    return tmp_path / "home"


@pytest.fixture
def server():
    """Runs a local HTTP server. `requests` lists the requested paths; setting `truncate` cuts
    responses in half."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            Handler.requests.append(self.path)
            if "missing" in self.path:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT[: len(CONTENT) // 2] if Handler.truncate else CONTENT)

        def log_message(self, *_):
            pass

    Handler.requests = []
    Handler.truncate = False
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        Handler.url = f"http://127.0.0.1:{running.server_address[1]}"
        yield Handler
        running.shutdown()
        thread.join()


def files_below(folder):
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
    new, old = (target.with_name(f"x.{digit * 12}.part.npz") for digit in "ab")
    for part in (new, old):
        part.write_bytes(CONTENT[:100])
    yesterday = time.time() - 25 * 3600
    os.utime(old, (yesterday, yesterday))
    assert Path(downloading.fetch(url)).read_bytes() == CONTENT
    assert new.exists() and not old.exists()  # another process may still be writing the new file


def test_failed_download_error_names_url_and_cache_path(server, monkeypatch, tmp_path):
    url = f"{server.url}/missing/ViT-B_16.npz"
    with pytest.raises(ConnectionError) as raised:
        downloading.fetch(url)
    message = str(raised.value)
    assert (
        url in message
        and str(downloading.cache_path(url)) in message
        and "KERAS_VIT_WEIGHTS" in message
    )
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path / "mirror"))
    with pytest.raises(
        ConnectionError, match=str(tmp_path / "mirror" / "127.0.0.1" / "missing" / "ViT-B_16.npz")
    ):
        downloading.fetch(url)


def test_manually_cached_file_is_used(server):
    url = f"{server.url}/missing/x.npz"
    target = downloading.cache_path(url)
    target.parent.mkdir(parents=True)
    target.write_bytes(CONTENT)
    assert downloading.fetch(url) == str(target)


def test_files_are_read_from_the_mirror(monkeypatch, tmp_path, home):
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path / "mirror"))
    for path in ("imagenet21k/R50+ViT-B_16.npz", "bit_models/BiT-M-R50x1.npz"):
        file = tmp_path / "mirror" / path
        file.parent.mkdir(parents=True)
        file.write_bytes(CONTENT)
    path = downloading.fetch(
        "https://storage.googleapis.com/vit_models/imagenet21k/R50%2BViT-B_16.npz"
    )
    assert path == str(tmp_path / "mirror/imagenet21k/R50+ViT-B_16.npz")
    path = downloading.fetch("gs://bit_models/BiT-M-R50x1.npz")
    assert path == str(tmp_path / "mirror/bit_models/BiT-M-R50x1.npz")
    # The mirror is unchanged.
    assert files_below(tmp_path / "mirror") == [
        "BiT-M-R50x1.npz",
        "R50+ViT-B_16.npz",
    ]


def test_gs_url_maps_to_https():
    url = downloading.https("gs://vit_models/imagenet21k/R50+ViT-B_16.npz")
    assert url == "https://storage.googleapis.com/vit_models/imagenet21k/R50%2BViT-B_16.npz"
    assert downloading.https("https://x/y.npz") == "https://x/y.npz"


def test_mirror_paths_stay_inside_the_mirror(monkeypatch, tmp_path):
    (tmp_path / "mirror").mkdir()
    (tmp_path / "secret.npz").write_bytes(CONTENT)
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path / "mirror"))
    inside = downloading.in_mirror("https://storage.googleapis.com/vit_models/..%2F../secret.npz")
    assert inside == tmp_path / "mirror" / "secret.npz"
