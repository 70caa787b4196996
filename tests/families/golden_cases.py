"""Reads and writes the golden files of model families. A case is the name of a golden file."""

import json
import shutil

import numpy as np
from safetensors.numpy import load_file, save_file

from ..shared import FAMILY_FILES, read_arrays

# The config of a case that has no config.json, but whose arrays do not determine the model.
CONFIGS = {"timm_eva02": {"model_args": {"ref_feat_shape": [4, 4]}}}


def read_case(case):
    """Returns the arrays of a case."""
    return load_file(FAMILY_FILES / f"{case}.safetensors")


def read_config(case):
    """Returns the config of a case, which is empty for most cases of timm."""
    path = FAMILY_FILES / f"{case}.config.json"
    if path.exists():
        return json.loads(path.read_text())
    return CONFIGS.get(case, {})


def read_outputs(case):
    """Returns the images of a case and the outputs of the reference implementation."""
    return read_arrays(FAMILY_FILES / f"{case}.io.npz")


def write_case(case, folder, arrays=None, config=None):
    """Writes the weights and configs of a case to a folder, and returns the folder.

    `arrays` and `config` replace those of the case.
    """
    folder.mkdir(exist_ok=True)
    arrays = read_case(case) if arrays is None else arrays
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file(arrays, folder / "model.safetensors")
    config = read_config(case) if config is None else config
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    open_clip_config = FAMILY_FILES / f"{case}.open_clip_config.json"
    if open_clip_config.exists():
        shutil.copy(open_clip_config, folder / "open_clip_config.json")
    return folder
