"""The lines in the README that an export brings along work as pasted, but for the port."""

import json
import re
import shutil
import subprocess
import sys

import pytest


def _blocks(exported, language):
    return re.findall(rf"```{language}\n(.*?)```", (exported / "1" / "README.md").read_text(), re.DOTALL)


def _best(served, exported):
    """The name of the best class of the example image."""
    return served.class_names[served.of_files([(exported / "1" / "assets.extra/example.jpg").read_bytes()])[0].argmax()]


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_lines_for_rest(exported, server, served):
    lines = [block for block in _blocks(exported, "sh") if "curl" in block]
    assert len(lines) == 2
    done = [
        subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line.replace("localhost:8501", f"localhost:{server.port}")],
            cwd=exported / "1", check=True, capture_output=True, text=True,
        ).stdout
        for line in lines
    ]  # fmt: skip
    assert json.loads(done[0])["model_version_status"][0]["state"] == "AVAILABLE"
    assert json.loads(done[1])["predictions"][0]["top_classes"][0] == _best(served, exported)


def test_the_lines_for_grpc(exported, grpc_port, served):
    (code,) = (block for block in _blocks(exported, "python") if "import grpc" in block)
    code = code.replace("localhost:8500", f"localhost:{grpc_port}")
    done = subprocess.run([sys.executable, "-c", code], cwd=exported / "1", check=True, capture_output=True, text=True)
    assert done.stdout.startswith(f"[[b'{_best(served, exported)}'")
