"""Draws a training batch and an evaluation batch as the model sees them.

    keras-vit show-batch --config=small_data:ViT-B/16,folder --config.data.path=DIR

Each title shows up to three labels of the image, with their proportions unless they are 1. If
images have more than three channels, the first three are drawn.
"""

from absl import flags

from keras_vit import files, tasks
from keras_vit.commands import command_line
from keras_vit.plots import figure_class, shortened, to_pictures
from keras_vit.training.weights import load_inputs

FLAGS = flags.FLAGS


def define_flags():
    command_line.define_config()
    flags.DEFINE_integer("batch_size", 16, "Number of images per batch.", lower_bound=1)
    flags.DEFINE_integer("seed", 0, "Seed of the training batch.")
    flags.DEFINE_integer("step", 0, "Step of the training batch.", lower_bound=0)
    flags.DEFINE_string("output", "batches.png", "Image file to write.")


def main():
    command_line.check_picture(FLAGS.output)
    config = FLAGS.config.copy_and_resolve_references()
    config.batch_size = FLAGS.batch_size
    config.seed = FLAGS.seed
    config.teacher = config.teacher or "any"  # the task requires one, but the batches need none
    inputs = load_inputs(config, print, tasks.get(config))
    train = inputs.train_batches(start_step=FLAGS.step)
    # Draw both batches, one below the other.
    columns = min(FLAGS.batch_size, 8)
    rows = -(-FLAGS.batch_size // columns)
    figure = figure_class()(figsize=(1.5 * columns, 3.6 * rows + 0.8), layout="constrained")
    upper, lower = figure.subfigures(2, 1)
    preprocessing = inputs.model_preprocessing()
    for part, split, step, dataset, kind in (
        (upper, "train", FLAGS.step, train, inputs.train_target),
        (lower, "test", 0, inputs.eval_batches(), inputs.test_target),
    ):
        images, targets, weights = (values.numpy() for values in next(iter(dataset)))
        inputs.bad_examples(split, print).update(step)
        pixels = preprocessing.layout.pixels(images)
        part.suptitle(f"{split}: {images.shape}, {pixels.min():.2f} to {pixels.max():.2f}")
        for axes in part.subplots(rows, columns, squeeze=False).flat:
            axes.set_axis_off()
        pictures = to_pictures(images, preprocessing)
        for axes, image, target, weight in zip(part.axes, pictures, targets, weights):
            axes.imshow(kind.picture(image, target) if weight else image)
            title = kind.title(target) if weight else "weight 0"
            axes.set_title(shortened(title, 30), fontsize=7)
    with files.atomic_path(FLAGS.output) as temporary:
        figure.savefig(temporary, dpi=100)
    print(f"wrote {FLAGS.output}")
