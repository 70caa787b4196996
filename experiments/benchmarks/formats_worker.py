"""Runs and measures one format in a child process of `formats.py`.

To run timm, `formats.py` calls this file as a script, `formats_worker.py NAME FOLDER THREADS`. The
Python that runs the script needs only numpy, torch and timm.
"""

import sys
from pathlib import Path

import numpy as np
from workers import peak_bytes, seconds, serve


def serve_format(load, folder):
    """Serves the facts of a format, and the seconds and peak MB of each `(precision, batch size)`.

    `load()` returns `(function, versions)`. If `versions` is empty, `function` takes a precision
    and a batch size. Otherwise, `function` maps images to logits, and the precision of a request is
    ignored.
    """
    images = np.load(folder / "images.npy")

    def loaded():
        function, versions = load()

        def measured(precision, size):
            batch = np.resize(images, (size, *images.shape[1:]))  # repeats the images
            arguments = (batch,) if versions else (precision, size)
            return seconds(function, *arguments), peak_bytes() / 1e6

        if not versions:
            return {}, measured
        logits = np.load(folder / "logits.npy")
        return {"versions": versions, **compare(logits, function(images))}, measured

    serve(loaded)


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
    """Returns `(function, versions)` for a model in timm."""
    import timm
    import torch

    torch.set_num_threads(threads)
    model = timm.create_model(f"local-dir:{folder / 'timm_weights'}", pretrained=True).eval()
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
    serve_format(lambda: load_timm(name, folder, threads), folder)
