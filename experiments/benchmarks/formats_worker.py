"""Serves one format to `formats.py`: loads the format, then measures batches on request.

To run timm, `formats.py` calls this file as a script, `formats_worker.py NAME FOLDER THREADS`. The
Python that runs the script needs only numpy, torch and timm.
"""

import importlib
import importlib.util
import json
import resource
import sys
import time
from pathlib import Path

import numpy as np


def serve(load, folder):
    """Prints facts about a format, then answers each request `[precision, batch size]` with
    `[seconds, peak MB]`.

    If the format fails before the first request, prints the error and returns.

    `load()` returns `(function, versions)`. If `versions` is empty, `function` takes a precision
    and a batch size. Otherwise, `function` maps images to logits, and the precision of a request is
    ignored.
    """
    # keep the libraries' output out of the answers
    answers = sys.stdout
    sys.stdout = sys.stderr
    images = np.load(folder / "images.npy")
    logits = np.load(folder / "logits.npy")
    try:
        function, versions = load()
        facts = {"versions": versions, **(compare(logits, function(images)) if versions else {})}
    except Exception as error:  # a library that fails must not stop the others
        print(
            json.dumps({"error": f"{type(error).__name__}: {error}"[:300]}),
            file=answers,
            flush=True,
        )
        return
    print(json.dumps(facts), file=answers, flush=True)
    for line in sys.stdin:
        precision, size = json.loads(line)
        start = time.perf_counter()
        function(images[:size]) if versions else function(precision, size)
        seconds = time.perf_counter() - start
        kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # on Linux
        memory = kibibytes * 1024 / 1e6
        print(json.dumps([seconds, memory]), file=answers, flush=True)


def compare(ours, theirs):
    """Returns the largest logit difference, relative to the range of `ours`, and the fraction of
    equal classes.

    The mean logit of each image is subtracted, because a SavedModel's logits are known only up to a
    constant.
    """
    ours, theirs = (values - values.mean(1, keepdims=True) for values in (ours, theirs))
    difference = np.abs(theirs - ours).max() / np.ptp(ours)
    same = theirs.argmax(1) == ours.argmax(1)
    return {"difference": float(difference), "same class": float(same.mean())}


def load_timm(name, folder, threads):
    """Returns `(function, versions)` for a model in timm. For "write_timm_onnx", only writes an
    ONNX file."""
    import timm
    import torch

    torch.set_num_threads(threads)
    model = timm.create_model(f"local-dir:{folder / 'timm_weights'}", pretrained=True).eval()
    if name == "write_timm_onnx":
        shape = timm.data.resolve_model_data_config(model)["input_size"]
        # Without the package onnx, skip the step that adds onnxscript functions, because the model
        # has none.
        if not importlib.util.find_spec("onnx"):
            onnx_proto_utils = importlib.import_module(
                "torch.onnx._internal.torchscript_exporter.onnx_proto_utils"
            )
            onnx_proto_utils._add_onnxscript_fn = lambda content, _: content
        names = {
            "input_names": ["images"],
            "output_names": ["logits"],
            "dynamic_axes": {"images": {0: "batch"}},
        }
        torch.onnx.export(
            model,
            torch.zeros(2, *shape),
            folder / "timm_onnx",
            dynamo=False,
            opset_version=17,
            **names,
        )
        return None
    run = model
    if name.endswith(("compile", "frozen")):
        mode = "max-autotune" if name.endswith("frozen") else None
        run = torch.compile(model, dynamic=False, mode=mode)
    reduced = "bfloat16" in name

    def logits(images):
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=reduced):
            return run(torch.from_numpy(images).permute(0, 3, 1, 2)).float().numpy()

    return logits, f"timm {timm.__version__}, PyTorch {torch.__version__}"


if __name__ == "__main__":
    name = sys.argv[1]
    folder = Path(sys.argv[2])
    threads = int(sys.argv[3])
    if name == "write_timm_onnx":
        load_timm(name, folder, threads)
    else:
        serve(lambda: load_timm(name, folder, threads), folder)
