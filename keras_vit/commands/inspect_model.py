"""Draws a model's attention, filters and embeddings for some images, in an HTML report.

    keras-vit inspect --model=runs/digits --output=inspection
    keras-vit inspect --model=mine.keras --data=FOLDER --output=inspection
    keras-vit inspect --variant=ViT_B16 --weights=augreg --data=FOLDER --output=inspection

The plots show attention (rollout, last layer, relevance), attention distances, position embeddings,
filters and patches. Images are preprocessed for the model. The command uses evenly spaced images of
a folder, or test images of a dataset. Damaged image files are skipped.
"""

import os

import numpy as np
from absl import flags

from keras_vit import data, files
from keras_vit.commands import command_line, shared_flags
from keras_vit.commands.image_files import (
    Classifier,
    evenly_spaced,
    find_images,
    reader_of,
)
from keras_vit.data.loading import name_and_path
from keras_vit.data.sources.listing import IMAGE_ENDINGS, printable
from keras_vit.evaluation.samples import read_test_examples, sample_indices
from keras_vit.inspection.report import write_report

FLAGS = flags.FLAGS


def define_flags():
    shared_flags.define_model()
    shared_flags.define_class_names()
    shared_flags.define_data()
    flags.DEFINE_list(
        "others", [], "Additional models whose position embeddings are drawn for comparison."
    )
    flags.DEFINE_integer("count", 128, "Maximum number of images to read.", lower_bound=1)
    flags.DEFINE_integer("shown", 8, "Maximum number of images to draw.", lower_bound=1)
    flags.DEFINE_string("output", "inspection", "Folder to write to.")


def main():
    command_line.check_folder(FLAGS.output)
    model, details, title = shared_flags.chosen_model()
    others = {path: shared_flags.load_model(path)[0] for path in FLAGS.others}
    classifier = find_classifier(model, details)
    images, names = read_images(model, details, FLAGS.count)
    print(f"images of {FLAGS.data or 'the run'}: {len(images)}")
    shown = FLAGS.shown
    texts = predictions(classifier, images[:shown])
    captions = [f"{text}\n{name}" for text, name in zip(texts, names)]
    page = write_report(model, images, FLAGS.output, title, others, shown, captions=captions)
    print(f"wrote {page}")


def find_classifier(model, details):
    """Returns the `Classifier`, or None if the model is no classifier and `--class_names` is not
    set."""
    try:
        return Classifier(model, details, FLAGS.class_names)
    except ValueError:
        if FLAGS.class_names:
            raise
        return None


def predictions(classifier, images):
    """Returns a text for each image: its predicted class and probability, or "" if `classifier` is
    None."""
    if classifier is None:
        return [""] * len(images)
    rows = classifier.probabilities(images)
    return [f"{classifier.class_names[row.argmax()]} {100 * row.max():.0f} %" for row in rows]


def read_images(model, details, count):
    """Returns up to `count` preprocessed images `(N, H, W, C)` of `--data` or of the run, and their
    names."""
    name, path = name_and_path(FLAGS.data)
    is_file = os.path.isfile(name) or os.sep in name or name.lower().endswith(IMAGE_ENDINGS)
    if is_file and name.partition(":")[0] not in data.dataset_names():
        path = name
    if not path or FLAGS.data_path or files.is_remote(path):
        inputs, _, _ = shared_flags.load_data(model, details, splits=("test",))
        if inputs is None:
            raise ValueError(
                "--data must name an image file, a folder or a dataset. Received: data=''"
            )
        indices = _spread_first(list(sample_indices(inputs, count)))
        images, _, names = read_test_examples(inputs, np.array(indices))
        return images, names
    paths = find_images([path])
    chosen = _spread_first(evenly_spaced(paths, count))
    images, paths = reader_of(model, details).read_all(chosen)
    return images, [printable(path.name) for path in paths]


def _spread_first(items):
    """Moves evenly spaced items to the front, because the report draws the first images, and
    folders sort by class."""
    drawn = min(FLAGS.shown, len(items))
    return list(dict.fromkeys([*(items[i * len(items) // drawn] for i in range(drawn)), *items]))
