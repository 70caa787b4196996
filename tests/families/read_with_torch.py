"""Computes the outputs of models in timm or transformers: `python read_with_torch.py FOLDER...`.

Each folder contains a model and `images.npy`. The script writes `outputs.npz` or `error.txt` into
it. It runs in a separate process, because importing both PyTorch and TensorFlow can fail.
"""

import json
import sys
from pathlib import Path

import numpy as np
import timm
import torch
import transformers


def timm_outputs(folder, images):
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    return {"encoded": model.forward_features(images), "output": model(images)}


def transformers_outputs(folder, images, architecture):
    loader = getattr(transformers, architecture)
    model, info = loader.from_pretrained(folder, output_loading_info=True)
    assert not info["unexpected_keys"], info
    for name in info["missing_keys"]:
        assert "pooler" in name or "mask" in name, info
    result = model.eval()(images)
    if "CLIP" in architecture:
        return {"last_block": result.last_hidden_state, "output": result.image_embeds}
    outputs = {"encoded": result.get("last_hidden_state")}
    if "Siglip" in architecture:
        outputs["output"] = result.pooler_output
    else:
        outputs["output"] = result.get("logits")
    return {name: output for name, output in outputs.items() if output is not None}


def write_outputs(folder):
    config = json.loads((folder / "config.json").read_text())
    images = torch.tensor(np.load(folder / "images.npy").transpose(0, 3, 1, 2))
    with torch.no_grad():
        if "architecture" in config:
            outputs = timm_outputs(folder, images)
        else:
            outputs = transformers_outputs(folder, images, config["architectures"][0])
    arrays = {name: output.numpy() for name, output in outputs.items()}
    np.savez(folder / "outputs.npz", **arrays)


for path in sys.argv[1:]:
    try:
        write_outputs(Path(path))
    except Exception as error:
        (Path(path) / "error.txt").write_text(repr(error))
