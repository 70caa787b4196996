"""python experiments/convert_checkpoint.py SOURCE TARGET [--verify=CASE.npz]

Converts a checkpoint. SOURCE is a path, an https or gs URL, of the original's or big_vision's .npz, a timm or Hugging
Face .safetensors, a BiT .npz, or a .keras file; the model is recognised from the file. TARGET ends in .keras,
.weights.h5 or .npz (the original's layout). --verify compares the result with `inputs` and `logits` of a file.
"""

import os
import sys

import keras
import numpy as np
from absl import app, flags

import keras_vit

FLAGS = flags.FLAGS
flags.DEFINE_string("verify", None, "An .npz file with `inputs` (B, H, W, C) and the `logits` they must give.")
flags.DEFINE_float("tolerance", 2e-5, "Largest absolute difference of a logit that --verify lets pass.", lower_bound=0)
flags.DEFINE_integer("num_heads", None, "Attention heads, where the file does not show them.", lower_bound=1)
flags.DEFINE_list("grid", None, "Rows,columns of the patches, where the file does not show them.")
flags.DEFINE_list("input_shape", None, "Height,width,channels of the model's images, if not the file's.")

ENDINGS = (".keras", ".weights.h5", ".npz")


def read(source):
    """The model of a file, loaded."""
    if source.endswith(".keras"):
        return keras.saving.load_model(source, compile=False)
    grid = _integers("grid", FLAGS.grid, 2)
    constructor, arguments = keras_vit.checkpoints.recognise(source, num_heads=FLAGS.num_heads, grid=grid)
    arguments["input_shape"] = _integers("input_shape", FLAGS.input_shape, 3) or arguments.get("input_shape")
    model = getattr(keras_vit, constructor)(**{k: v for k, v in arguments.items() if k != "input_shape" or v})
    print(keras_vit.checkpoints.load(model, source, source_grid=grid).full())
    return model


def write(model, target):
    """Writes beside the target and renames, so that no half file ever has its name."""
    ending = next(ending for ending in ENDINGS if target.endswith(ending))
    part = f"{target.removesuffix(ending)}.{os.getpid()}.part{ending}"
    try:
        {
            ".keras": lambda: model.save(part),
            ".weights.h5": lambda: model.save_weights(part),
            ".npz": lambda: keras_vit.checkpoints.save(model, part),
        }[ending]()
        os.replace(part, target)
    finally:
        if os.path.exists(part):
            os.unlink(part)


def verify(model, case):
    """The largest difference of the model's logits from those in a file."""
    try:
        with np.load(case, allow_pickle=False) as file:
            inputs, logits = file["inputs"], file["logits"]
    except (OSError, ValueError, KeyError) as error:
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
