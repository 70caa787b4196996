"""Converts a checkpoint to another format; `--verify` first compares the model's logits with
expected logits.

    keras-vit convert vit.safetensors vit.keras --num_heads=12
    keras-vit convert ViT-B_16.npz ViT-B_16.keras --verify=CASE.npz
    keras-vit convert runs/photos for_timm --format=timm

SOURCE is the workdir of a run, the folder of an export, a .keras file, or weights. Weights are the
path or URL of an .npz (vit_jax or big_vision) or .safetensors file (timm or transformers), a folder
with a .safetensors file, a repository on the Hugging Face Hub, or the name of a published file.
Without --format, TARGET must end in .keras, .weights.h5 or .npz (the layout of vit_jax). With
--format, TARGET is a folder; its config.json contains the class names of the source, if they are
known.
"""

import sys

import keras
import numpy as np
from absl import flags

from keras_vit import checkpoints, files, terminal
from keras_vit.checkpoints.readers import NpzFile
from keras_vit.commands import shared_flags
from keras_vit.families.pretrained import build_and_load
from keras_vit.training.stored_models import is_stored

ENDINGS = (".keras", ".weights.h5", ".npz")
POSITIONAL = ("SOURCE", "TARGET")
OF_WEIGHTS = ("input_shape", "num_heads", "grid", "channels")  # flags for weights only
FLAGS = flags.FLAGS


def define_flags():
    flags.DEFINE_enum(
        "format",
        None,
        ["timm", "huggingface"],
        "Library whose format to write to the folder TARGET.",
    )
    shared_flags.define_class_names()
    flags.DEFINE_string(
        "verify", "", "An .npz file with `inputs` (B, H, W, C) and expected `logits` (B, classes)."
    )
    flags.DEFINE_float(
        "tolerance", 2e-5, "Maximum difference between logits that --verify accepts.", lower_bound=0
    )
    flags.DEFINE_integer(
        "num_heads",
        None,
        "Number of attention heads, if the file does not specify it.",
        lower_bound=1,
    )
    flags.DEFINE_list("grid", None, "Rows,columns of patches, if the file does not specify them.")
    flags.DEFINE_enum(
        "channels",
        None,
        ["sum", "tile"],
        "How to adapt the first kernel to another number of channels.",
    )
    flags.DEFINE_list(
        "input_shape",
        None,
        "Height,width,channels of the model's images; by default, as in the file.",
    )


def main(source, target):
    ending = next((ending for ending in ENDINGS if target.endswith(ending)), None)
    if ending is None and not FLAGS.format:
        raise ValueError(
            f"TARGET must end in {', '.join(ENDINGS)}; --format=timm or --format=huggingface "
            f"writes a folder. Received: {target}"
        )
    if FLAGS.format and (ending or target.endswith(".safetensors")):
        raise ValueError(
            f"With --format, TARGET is a folder. Received: {target} with --format={FLAGS.format}"
        )
    if FLAGS.class_names and not FLAGS.format:
        raise ValueError(
            f"--class_names requires --format. Received: class_names={FLAGS.class_names!r} for "
            f"{target}"
        )
    if FLAGS["tolerance"].present and not FLAGS.verify:
        raise ValueError(f"--tolerance requires --verify. Received: tolerance={FLAGS.tolerance}")
    model, class_names = read(source)
    if FLAGS.verify:
        difference = verify(model, FLAGS.verify)
        print(
            f"largest difference between logits: {difference:.3g} (tolerance {FLAGS.tolerance:g})"
        )
        if not difference <= FLAGS.tolerance:
            sys.exit("The logits differ from the expected logits, so nothing was written.")
    with files.explained_errors("TARGET cannot be written", "Choose another path.", target):
        if FLAGS.format:
            checkpoints.save(model, target, FLAGS.format, class_names)
        elif ending == ".npz":
            checkpoints.save(model, target)
        else:
            with files.atomic_path(target, ending) as part:
                model.save(part) if ending == ".keras" else model.save_weights(part)
    named = f", {len(class_names)} class names" if FLAGS.format and class_names else ""
    print(f"wrote {target}: {model.count_params():,} parameters{named}")


def read(source):
    """Returns the model and the class names of SOURCE; the names are None if they are unknown."""
    if is_stored(source):
        given = [f"--{name}" for name in OF_WEIGHTS if FLAGS[name].value is not None]
        if given:
            raise ValueError(
                "Only weights take these flags; the model of a run, an export or a .keras file is "
                f"complete. Received: {', '.join(given)} with {source}"
            )
        model, details = shared_flags.load_model(source)
        return model, class_names_for(model, details.get("class_names"))
    grid = _integers("grid", 2)
    overrides = {"num_heads": FLAGS.num_heads, "input_shape": _integers("input_shape", 3)}
    overrides = {name: value for name, value in overrides.items() if value is not None}
    model, report = build_and_load(source, channels=FLAGS.channels, source_grid=grid, **overrides)
    print(report.full())
    return model, class_names_for(model, checkpoints.find_class_names(source))


def class_names_for(model, found):
    """Returns the names selected by --class_names, else `found` if it has one name per class, else
    None."""
    if FLAGS.class_names:
        return shared_flags.read_class_names(FLAGS.class_names, model.output_shape[-1])
    has_head = getattr(model, "arguments", {}).get("include_top", True)
    return list(found) if found and has_head and len(found) == model.output_shape[-1] else None


def verify(model, case):
    """Returns the largest absolute difference between the model's logits and the expected logits in
    a file."""
    try:
        with NpzFile(case) as file:
            inputs, logits = (file.arrays[name].read() for name in ("inputs", "logits"))
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"--verify must be an .npz file with `inputs` and `logits` ({error}). Received: {case}"
        ) from error
    try:
        results = keras.ops.convert_to_numpy(model(inputs))
    except ValueError as error:
        raise ValueError(
            f"`inputs` must be images of the model ({terminal.first_line(error)}). Received: "
            f"shape={inputs.shape} in {case}"
        ) from error
    if results.shape != logits.shape:
        raise ValueError(
            f"`logits` must have the model's output shape {results.shape}. Received: "
            f"shape={logits.shape} in {case}"
        )
    return float(np.abs(results - logits).max())


def _integers(flag, count):
    """Returns the value of a flag as a tuple of `count` positive integers, or None."""
    values = FLAGS[flag].value
    if values is None:
        return None
    if len(values) != count or not all(value.isdigit() and int(value) > 0 for value in values):
        raise ValueError(
            f"--{flag} must be {count} positive integers. Received: --{flag}={','.join(values)}"
        )
    return tuple(map(int, values))
