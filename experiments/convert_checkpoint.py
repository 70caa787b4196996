"""python experiments/convert_checkpoint.py SOURCE TARGET [--verify=CASE.npz]

Converts a checkpoint. SOURCE is a path or an https or gs URL of an .npz file of vit_jax, big_vision or BiT or of a
.safetensors file of timm or Hugging Face, or the path of a .keras file; the model is inferred from the file. TARGET
ends in .keras, .weights.h5 or .npz (the layout of vit_jax). With --verify, nothing is written unless the model gives
the logits of a file.
"""

import sys

import banner_filter  # noqa: F401 before whatever imports TensorFlow
import keras
import numpy as np
from absl import app, flags

import keras_vit
from keras_vit import files
from keras_vit.checkpoints.npz import NpzFile
from keras_vit.families.registry import build_and_load
from keras_vit.models import load_keras_file

FLAGS = flags.FLAGS
flags.DEFINE_string("verify", None, "An .npz file with `inputs` (B, H, W, C) and the expected `logits` (B, classes).")
flags.DEFINE_float("tolerance", 2e-5, "Largest absolute difference of a logit that --verify accepts.", lower_bound=0)
flags.DEFINE_integer("num_heads", None, "Attention heads, where the file does not show them.", lower_bound=1)
flags.DEFINE_list("grid", None, "Rows,columns of the patches, where the file does not show them.")
flags.DEFINE_enum("channels", None, ["sum", "tile"], "How other channels than the file's are adapted: see `load`.")
flags.DEFINE_list("input_shape", None, "Height,width,channels of the model's images, where they are not the file's.")

ENDINGS = (".keras", ".weights.h5", ".npz")


def read(source):
    """The model that a file is of, with its weights."""
    if source.endswith(".keras"):
        return load_keras_file(source, compile=False)
    overrides = {"num_heads": FLAGS.num_heads, "input_shape": _integers("input_shape", FLAGS.input_shape, 3)}
    overrides = {name: value for name, value in overrides.items() if value is not None}
    grid = _integers("grid", FLAGS.grid, 2)
    model, report = build_and_load(source, channels=FLAGS.channels, source_grid=grid, **overrides)
    print(report.full())
    return model


def write(model, target):
    """Writes a model in the format that the target's ending names; the target appears when it is complete."""
    ending = next(ending for ending in ENDINGS if target.endswith(ending))
    if ending == ".npz":
        keras_vit.checkpoints.save(model, target)
        return
    with files.atomic_path(target, ending) as part:
        if ending == ".keras":
            model.save(part)
        else:
            model.save_weights(part)


def verify(model, case):
    """The largest absolute difference of the model's logits from those in a file."""
    try:
        with NpzFile(case) as file:
            inputs, logits = (file.arrays[name].read() for name in ("inputs", "logits"))
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"--verify needs an .npz file with `inputs` and `logits` ({error}). Received: {case}"
        ) from error
    results = keras.ops.convert_to_numpy(model(inputs))
    if results.shape != logits.shape:
        raise ValueError(f"The model's logits have the shape {results.shape}. Received: shape={logits.shape} in {case}")
    return float(np.abs(results - logits).max())


def main(argv):
    if len(argv) != 3:
        raise app.UsageError("SOURCE and TARGET are needed.")
    source, target = argv[1:]
    try:
        if not target.endswith(ENDINGS):
            raise ValueError(f"TARGET must end in {', '.join(ENDINGS)}. Received: {target}")
        model = read(source)
        if FLAGS.verify:
            difference = verify(model, FLAGS.verify)
            print(f"largest difference of a logit: {difference:.3g} (tolerance {FLAGS.tolerance:g})")
            if not difference <= FLAGS.tolerance:
                sys.exit("The logits are not those of the file: nothing was written.")
        write(model, target)
    except (ValueError, OSError) as error:
        print(f"convert_checkpoint: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"wrote {target}: {model.count_params():,} parameters")


def _integers(flag, values, count):
    if values is None:
        return None
    if len(values) != count or not all(value.isdigit() and int(value) > 0 for value in values):
        raise ValueError(f"--{flag} needs {count} positive integers. Received: --{flag}={','.join(values)}")
    return tuple(int(value) for value in values)


if __name__ == "__main__":
    app.run(main)
