"""Tests of the `keras-vit demo` page, its server and the command's errors."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

import keras_vit

from ..shared import ROOT, TWO_LAYERS
from .conftest import error_line, random_pixels, write_image

CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1300,1400",
)
# A script that runs the command and reports attempts to reach another machine.
WATCHED = """
import runpy, sys

def watch(event, arguments):
    place = {"socket.connect": 1, "socket.getaddrinfo": 0}.get(event)
    address = None if place is None else arguments[place]
    host = address[0] if isinstance(address, tuple) else address
    if host not in (None, "", "127.0.0.1", "::1", "localhost") and event.startswith("socket."):
        print(f"outside: {event} {address}", file=sys.stderr, flush=True)

sys.addaudithook(watch)
runpy.run_module("keras_vit", run_name="__main__", alter_sys=True)
"""


def _free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.keras"
    keras_vit.VisionTransformer(**TWO_LAYERS, input_shape=(16, 24, 3)).save(path)
    return path


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    """Serves a small model and yields the page's URL. Afterwards, checks that the server stops
    cleanly."""
    pytest.importorskip("gradio")
    port = _free_port()
    errors = tmp_path_factory.mktemp("server") / "errors.txt"
    flags = (f"--model={model}", f"--port={port}")
    command = [sys.executable, "-c", WATCHED, "demo", *flags]
    with (
        open(errors, "w") as file,
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=file, text=True
        ) as process,
    ):
        try:
            line = process.stdout.readline()
            assert line.startswith(f"the page is at http://127.0.0.1:{port} (only this machine"), (
                errors.read_text()
            )
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGINT)
            rest = process.stdout.read()
    assert process.returncode == 0
    assert rest == "stopped\n"
    # Other lines are allowed, because TensorFlow warns about every image that it cannot decode.
    assert not [
        line
        for line in errors.read_text().splitlines()
        if line.startswith(("outside", "Traceback"))
    ]


@pytest.fixture(scope="module")
def browser(server, tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver")
    if not CHROMIUM or not DRIVER:
        pytest.skip(
            "chromium or chromedriver is not installed (apt-get install chromium chromium-driver)"
        )
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for option in (*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    write_image(folder / "one.png", random_pixels(16, 24, 3))
    write_image(folder / "two.png", random_pixels(30, 20, 3))
    (folder / "broken.png").write_bytes((folder / "one.png").read_bytes()[:50])
    return folder


def _wait(browser, css, condition=lambda element: True):
    """Waits for an element that matches a CSS selector and fulfills a condition, and returns the
    element."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for element in browser.find_elements("css selector", css):
            try:
                if condition(element):
                    return element
            except Exception as error:  # the page replaced the element meanwhile
                if type(error).__name__ != "StaleElementReferenceException":
                    raise
    raise AssertionError(
        f"{css} did not appear: {browser.find_element('css selector', 'body').text}"
    )


def _wait_for_text(browser, css, text):
    _wait(browser, css, lambda element: text in element.text)


def _upload(browser, photos, name):
    _wait(browser, "#upload input[type=file]").send_keys(str(photos / name))
    _wait(browser, "#classes", lambda element: element.text.count("%") == 3)
    _wait(browser, "#rollout img", lambda image: image.get_property("naturalWidth"))
    _wait(browser, "#attention img", lambda image: image.get_property("naturalWidth"))


def _sources(browser):
    return [
        _wait(browser, f"#{name} img").get_attribute("src") for name in ("rollout", "attention")
    ]


def _click(browser, css, x, y):
    """Clicks an element at `(x, y)`, fractions of its width and height."""
    from selenium.webdriver import ActionChains

    element = _wait(browser, css)
    size = element.size
    offset = int((x - 0.5) * size["width"]), int((y - 0.5) * size["height"])
    ActionChains(browser).move_to_element_with_offset(element, *offset).click().perform()


def test_demo_shows_classes_and_patch_attention(browser, server, photos):
    browser.get(server)
    _upload(browser, photos, "one.png")
    image = _wait(browser, "#rollout img")
    assert image.get_property("naturalWidth") == 24 * 19
    assert image.get_property("naturalHeight") == 16 * 19
    # The width of the uploaded image.
    assert _wait(browser, "#original img").get_property("naturalWidth") == 24
    before = _sources(browser)
    _click(browser, "#attention img", 0.9, 0.7)
    _wait_for_text(browser, "#query", "patch in row 2, column 3")
    _wait(browser, "#rollout img", lambda image: image.get_attribute("src") != before[0])
    patch_sources = _sources(browser)
    field = _wait(browser, "#layer input[type=number]")
    field.send_keys("\ue009a\ue000" + "1\n")  # Control-A, then the new value
    _wait(browser, "#attention img", lambda image: image.get_attribute("src") != patch_sources[1])
    _wait(browser, "#output").click()
    _wait_for_text(browser, "#query", "Attention of the output")


def test_unreadable_file_error_names_the_file(browser, server, photos):
    browser.get(server)
    _wait(browser, "#upload input[type=file]").send_keys(str(photos / "broken.png"))
    _wait_for_text(browser, "body", "broken.png cannot be read: it is damaged.")


def test_browser_tabs_are_independent(browser, server, photos):
    browser.get(server)
    first = browser.current_window_handle
    _upload(browser, photos, "one.png")
    browser.switch_to.new_window("tab")
    browser.get(server)
    _upload(browser, photos, "two.png")
    browser.switch_to.window(first)
    _click(browser, "#rollout img", 0.1, 0.1)
    _wait_for_text(browser, "#query", "patch in row 1, column 1")
    browser.close()
    browser.switch_to.window(browser.window_handles[0])
    assert "Attention of the output" in _wait(browser, "#query").text


def test_page_contacts_no_other_host(browser, server):
    browser.get(server)
    _wait(browser, "#upload input[type=file]")
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = {
        m["params"]["request"]["url"]
        for m in messages
        if m["method"] == "Network.requestWillBeSent"
    }
    assert any(url.startswith(server) for url in urls)
    assert not [
        url for url in urls if not url.startswith((server, "data:", "blob:", "chrome", "about:"))
    ]


def test_server_rejects_other_hosts_and_local_files(server):
    import http.client

    def status(path, host=None):
        connection = http.client.HTTPConnection(server.removeprefix("http://"), timeout=60)
        connection.request("GET", path, headers={"Host": host} if host else {})
        response = connection.getresponse()
        response.read()
        connection.close()
        return response.status, response.headers.get("content-security-policy", "")

    code, policy = status("/")
    assert code == 200
    assert "default-src 'self'" in policy
    assert "http" not in policy
    assert status("/", "another.host")[0] == 400
    for path in ("/etc/passwd", ROOT / "keras_vit" / "commands" / "demo.py"):
        assert status(f"/gradio_api/file={path}")[0] == 403
    port = int(server.rpartition(":")[2])
    for family, *_, address in socket.getaddrinfo(socket.gethostname(), port):
        if not address[0].startswith(("127.", "::1")):
            with socket.socket(family) as other:
                assert other.connect_ex(address) != 0, address


@pytest.mark.slow
def test_taken_port_is_an_error(model, cli):
    pytest.importorskip("gradio")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = cli("demo", f"--model={model}", f"--port={taken.getsockname()[1]}")
    assert error_line(done).startswith("The page cannot be served (")
