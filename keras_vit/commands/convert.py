"""Converts a checkpoint to another format; `--verify` first compares the model's logits with expected logits.

    keras-vit convert vit.safetensors vit.keras --num_heads=12
    keras-vit convert ViT-B_16.npz ViT-B_16.keras --verify=CASE.npz

SOURCE is the path or URL (https or gs) of an .npz file of vit_jax, big_vision or BiT or of a .safetensors file of timm
or Hugging Face, or the path of a .keras file. The model is inferred from the file. TARGET must end in .keras,
.weights.h5 or .npz (the layout of vit_jax).
"""

import sys

import keras
import numpy as np
from absl import flags

from keras_vit import checkpoints, files
from keras_vit.checkpoints.readers import NpzFile
from keras_vit.families.registry import build_and_load
from keras_vit.models import load_keras_file

ENDINGS = (".keras", ".weights.h5", ".npz")
POSITIONAL = ("SOURCE", "TARGET")
FLAGS = flags.FLAGS


def define_flags():
    flags.DEFINE_string("verify", "", "An .npz file with `inputs` (B, H, W, C) and expected `logits` (B, classes).")
    flags.DEFINE_float("tolerance", 2e-5, "Maximum difference between logits that --verify accepts.", lower_bound=0)
    flags.DEFINE_integer(
        "num_heads", None, "Number of attention heads, if the file does not specify it.", lower_bound=1
    )
    flags.DEFINE_list("grid", None, "Rows,columns of patches, if the file does not specify them.")
    flags.DEFINE_enum("channels", None, ["sum", "tile"], "How to adapt the first kernel to another number of channels.")
    flags.DEFINE_list("input_shape", None, "Height,width,channels of the model's images; the file's by default.")


def main(source, target):
    ending = next((ending for ending in ENDINGS if target.endswith(ending)), None)
    if ending is None:
        raise ValueError(f"TARGET must end in {', '.join(ENDINGS)}. Received: {target}")
    model = read(source)
    if FLAGS.verify:
        difference = verify(model, FLAGS.verify)
        print(f"largest difference between logits: {difference:.3g} (tolerance {FLAGS.tolerance:g})")
        if not difference <= FLAGS.tolerance:
            sys.exit("The logits differ from the expected logits, so nothing was written.")
    try:
        if ending == ".npz":
            checkpoints.save(model, target)
        else:
            with files.atomic_path(target, ending) as part:
                model.save(part) if ending == ".keras" else model.save_weights(part)
    except OSError as error:
        raise ValueError(f"TARGET cannot be written ({error}). Received: {target}") from error
    print(f"wrote {target}: {model.count_params():,} parameters")


def read(source):
    """Loads a model with its weights from a file."""
    if source.endswith(".keras"):
        return load_keras_file(source, compile=False)
    grid = _integers("grid", FLAGS.grid, 2)
    overrides = {"num_heads": FLAGS.num_heads, "input_shape": _integers("input_shape", FLAGS.input_shape, 3)}
    overrides = {name: value for name, value in overrides.items() if value is not None}
    model, report = build_and_load(source, channels=FLAGS.channels, source_grid=grid, **overrides)
    print(report.full())
    return model


def verify(model, case):
    """Returns the largest absolute difference between the model's logits and the expected logits in a file."""
    try:
        with NpzFile(case) as file:
            inputs, logits = (file.arrays[name].read() for name in ("inputs", "logits"))
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"--verify must be an .npz file with `inputs` and `logits` ({error}). Received: {case}"
        ) from error
    results = keras.ops.convert_to_numpy(model(inputs))
    if results.shape != logits.shape:
        raise ValueError(
            f"`logits` must have the model's shape {results.shape}. Received: shape={logits.shape} in {case}"
        )
    return float(np.abs(results - logits).max())


def _integers(flag, values, count):
    if values is None:
        return None
    if len(values) != count or not all(value.isdigit() and int(value) > 0 for value in values):
        raise ValueError(f"--{flag} must be {count} positive integers. Received: --{flag}={','.join(values)}")
    return tuple(int(value) for value in values)
