"""Writes a picture of a training and of an evaluation batch, as the model sees them.

    python experiments/show_batch.py --data=name=folder --data=path=DIR --data=image_size=224 --output=batches.png

`--data` is repeated for each field of a config's `data` group. Above each image stand its labels with their shares.
"""

import command_line
import numpy as np
from absl import flags

from keras_vit import data

flags.DEFINE_multi_string("data", [], "A field of a config's `data` group, FIELD=VALUE.")
flags.DEFINE_integer("batch_size", 16, "Images in a batch.", lower_bound=1)
flags.DEFINE_integer("seed", 0, "The seed of the training batch.")
flags.DEFINE_integer("step", 0, "The step of the training batch.", lower_bound=0)
flags.DEFINE_string("output", "batches.png", "The picture to write.")
FLAGS = flags.FLAGS


def _fields(words):
    """`FIELD=VALUE` words to a dict, each value of the type of the field's default."""
    known, fields = data.defaults(), {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in known:
            raise ValueError(f"The fields of `data` are {', '.join(known)}. Received: {word!r}")
        kind = type(known[name])
        try:
            fields[name] = value.lower() in ("true", "1", "on") if kind is bool else kind(value)
        except ValueError:
            raise ValueError(f"`{name}` is of the type {kind.__name__}. Received: {word!r}") from None
    return fields


def _title(label, weight, class_names):
    if not weight:
        return "weight 0"
    shares = [f"{class_names[i]} {label[i]:.2f}" for i in np.argsort(-label) if label[i] > 0.5 / len(label)][:3]
    return "\n".join(share.removesuffix(" 1.00") for share in shares)


def main(_):
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError('There is no picture without matplotlib: pip install "keras_vit[plots]"') from None
    made = data.from_config(_fields(FLAGS.data), batch_size=FLAGS.batch_size, seed=FLAGS.seed)
    batches = [("training", made.train_batches(start_step=FLAGS.step)), ("evaluation", made.eval_batches())]
    columns = min(FLAGS.batch_size, 8)
    rows = -(-FLAGS.batch_size // columns)
    figure = Figure(figsize=(1.5 * columns, 3.6 * rows + 0.8), layout="constrained")
    for part, (name, dataset) in zip(figure.subfigures(2, 1), batches):
        images, labels, weights = (values.numpy() for values in next(iter(dataset)))
        part.suptitle(f"{name}: {images.shape}, {images.min():.2f} to {images.max():.2f}")
        for axes in part.subplots(rows, columns, squeeze=False).flat:
            axes.set_axis_off()
        for axes, image, label, weight in zip(part.axes, images, labels, weights):
            axes.imshow(np.clip((image + 1) / 2, 0, 1))
            axes.set_title(_title(label, weight, made.train.class_names), fontsize=7)
    try:
        figure.savefig(FLAGS.output, dpi=100)
    except (OSError, ValueError) as error:  # matplotlib's ValueError names the endings that it knows
        raise ValueError(f"The picture cannot be written ({error}). Received: --output={FLAGS.output}") from None
    print(f"wrote {FLAGS.output}")


if __name__ == "__main__":
    command_line.run(main)
