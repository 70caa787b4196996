"""Tests of the page of `keras-vit demo` in a browser, and of its server."""

import http.client
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
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1300,1400")
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
    """Serves a small model and yields the address of the page.

    Afterwards, checks that the server stops cleanly and has contacted no other machine.
    """
    pytest.importorskip("gradio")
    address = f"127.0.0.1:{_free_port()}"
    errors = tmp_path_factory.mktemp("server") / "errors.txt"
    flags = (f"--model={model}", f"--port={address.partition(':')[2]}")
    command = [sys.executable, "-c", WATCHED, "demo", *flags]
    with (
        open(errors, "w") as file,
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=file, text=True
        ) as process,
    ):
        try:
            line = process.stdout.readline()
            assert f"http://{address} (only this machine can open it)" in line, errors.read_text()
            yield address
        finally:
            process.send_signal(signal.SIGINT)
            rest = process.stdout.read()
    assert (process.returncode, rest) == (0, "stopped\n")
    # Other lines are allowed, because TensorFlow warns about every image that it cannot decode.
    lines = errors.read_text().splitlines()
    assert not [line for line in lines if line.startswith(("outside", "Traceback"))]


@pytest.fixture(scope="module")
def driver():
    webdriver = pytest.importorskip("selenium.webdriver")
    if not CHROMIUM or not DRIVER:
        pytest.skip(
            "chromium or chromedriver is not installed (apt-get install chromium chromium-driver)"
        )
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for option in OPTIONS:
        options.add_argument(option)
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def browser(driver, server):
    """Returns a browser with the page."""
    driver.get(f"http://{server}")
    return driver


def _wait(browser, css, condition=lambda element: True):
    """Waits for an element that matches a CSS selector and fulfills a condition, and returns the
    element."""
    from selenium.common import StaleElementReferenceException

    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for element in browser.find_elements("css selector", css):
            try:
                if condition(element):
                    return element
            except StaleElementReferenceException:  # the page has replaced the element
                pass
    page = browser.find_element("css selector", "body").text
    raise AssertionError(f"{css} did not appear: {page}")


def _wait_for_text(browser, css, text):
    _wait(browser, css, lambda element: text in element.text)


def _upload(browser, path):
    _wait(browser, "#upload input[type=file]").send_keys(str(path))


def _upload_image(browser, path, height, width):
    """Uploads a random image and waits for its three classes and its pictures."""
    write_image(path, random_pixels(height, width, 3))
    _upload(browser, path)
    _wait(browser, "#classes", lambda element: element.text.count("%") == 3)
    for name in ("rollout", "attention"):
        _wait(browser, f"#{name} img", lambda image: image.get_property("naturalWidth"))


def _size(browser, name):
    image = _wait(browser, f"#{name} img")
    return image.get_property("naturalHeight"), image.get_property("naturalWidth")


def _source(browser, name):
    return _wait(browser, f"#{name} img").get_attribute("src")


def _wait_for_new_picture(browser, name, source):
    _wait(browser, f"#{name} img", lambda image: image.get_attribute("src") != source)


def _click(browser, css, x, y):
    """Clicks an element at `(x, y)`, fractions of its width and height."""
    from selenium.webdriver import ActionChains

    element = _wait(browser, css)
    size = element.size
    offset = int((x - 0.5) * size["width"]), int((y - 0.5) * size["height"])
    ActionChains(browser).move_to_element_with_offset(element, *offset).click().perform()


def test_page_shows_classes_and_attention_of_the_clicked_patch(browser, tmp_path):
    _upload_image(browser, tmp_path / "one.png", 16, 24)
    # The pictures of attention are enlarged to about 448 pixels.
    assert _size(browser, "rollout") == (16 * 19, 24 * 19)
    assert _size(browser, "original") == (16, 24)
    rollout = _source(browser, "rollout")
    _click(browser, "#attention img", 0.9, 0.7)
    _wait_for_text(browser, "#query", "patch in row 2, column 3")
    _wait_for_new_picture(browser, "rollout", rollout)
    attention = _source(browser, "attention")
    field = _wait(browser, "#layer input[type=number]")
    field.send_keys("\ue009a\ue000" + "1\n")  # Control-A, then the new value
    _wait_for_new_picture(browser, "attention", attention)
    _wait(browser, "#output").click()
    _wait_for_text(browser, "#query", "Attention of the output")


def test_unreadable_file_error_names_the_file(browser, tmp_path):
    path = tmp_path / "broken.png"
    write_image(path, random_pixels(16, 24, 3))
    path.write_bytes(path.read_bytes()[:50])
    _upload(browser, path)
    _wait_for_text(browser, "body", "broken.png cannot be read: it is damaged.")


def test_browser_tabs_are_independent(browser, server, tmp_path):
    first = browser.current_window_handle
    _upload_image(browser, tmp_path / "one.png", 16, 24)
    browser.switch_to.new_window("tab")
    second = browser.current_window_handle
    browser.get(f"http://{server}")
    _upload_image(browser, tmp_path / "two.png", 30, 20)
    browser.switch_to.window(first)
    _click(browser, "#rollout img", 0.1, 0.1)
    _wait_for_text(browser, "#query", "patch in row 1, column 1")
    browser.close()
    browser.switch_to.window(second)
    assert "Attention of the output" in _wait(browser, "#query").text


def _get(server, path, **headers):
    """Requests a path and returns the status and the content security policy of the response."""
    connection = http.client.HTTPConnection(server, timeout=60)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status, response.headers.get("content-security-policy")


def test_page_must_not_contact_other_servers(server):
    status, policy = _get(server, "/")
    assert status == 200
    assert "default-src 'self'" in policy
    assert "http" not in policy


def test_server_refuses_other_names_of_this_machine(server):
    assert _get(server, "/", Host="another.host")[0] == 400


@pytest.mark.parametrize("path", ["/etc/passwd", ROOT / "keras_vit/commands/demo.py"])
def test_server_refuses_local_files(path, server):
    assert _get(server, f"/gradio_api/file={path}")[0] == 403


def test_other_machines_cannot_connect(server):
    port = int(server.partition(":")[2])
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
