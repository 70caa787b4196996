"""Draws what there is to see of a model on some images, with a page, `index.html`, to look at.

    keras-vit inspect --model=runs/digits --images=digits --output=inspection
    keras-vit inspect --model=mine.keras --images=FOLDER --output=inspection
    keras-vit inspect --variant=ViT_B16 --weights=augreg --images=FOLDER --output=inspection

Attention (rollout, last layer, relevance) and its distance, position embeddings, filters, and patches. Image files are
prepared as the model's own preprocessing says; of a dataset, the first test images are taken.
"""

import os
from pathlib import Path

import numpy as np
from absl import flags

import keras_vit
from keras_vit import evaluation
from keras_vit.commands import shared_flags
from keras_vit.commands.image_files import ImageFileReader
from keras_vit.inspection.report import write_report

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")
FLAGS = flags.FLAGS


def define_flags():
    shared_flags.define_model()
    flags.DEFINE_list("others", [], "Further models, whose position embeddings are drawn side by side.")
    flags.DEFINE_string("images", "", "An image file, a folder of them, or the name of a dataset: digits, cifar10, ...")
    flags.DEFINE_string("data_path", "", "Where the dataset lies, unless it is in the usual place.")
    flags.DEFINE_integer("count", 128, "How many images are read at most.", lower_bound=1)
    flags.DEFINE_integer("shown", 8, "How many of them are drawn.", lower_bound=1)
    flags.DEFINE_string("output", "inspection", "The folder to write to.")


def main():
    if not FLAGS.images:
        raise ValueError("--images is needed: an image file, a folder, or a dataset. Received: images=''")
    model, _, title = shared_flags.chosen_model()
    images = read_images(model, FLAGS.images, FLAGS.count)
    print(f"{len(images)} images of {FLAGS.images}")
    others = {path: shared_flags.load_model(path)[0] for path in FLAGS.others}
    print(f"wrote {write_report(model, images, FLAGS.output, title, others, FLAGS.shown)}")


def read_images(model, source, count):
    """The first images of a folder or of a dataset, as the model takes them: float32 `(N, H, W, C)`."""
    if not os.path.exists(source):
        if os.sep in source or source.lower().endswith(ENDINGS):
            raise ValueError(f"There is no such file or folder. Received: images={source!r}")
        inputs = evaluation.load_inputs(model, source, FLAGS.data_path, splits=("test",))
        images = np.zeros((0, *inputs.image_shape), "float32")
        for batch, _, weights in inputs.eval_batches().as_numpy_iterator():
            images = np.concatenate([images, batch[weights > 0]])
            if len(images) >= count:
                break
        return images[:count]
    if model.input_shape[-1] > 4:
        raise ValueError(
            f"Image files have 1 to 4 channels, and the images of the model {model.input_shape[-1]}; name a dataset "
            f"instead. Received: images={source!r}"
        )
    paths = [Path(source)]
    if os.path.isdir(source):
        found = (path for path in Path(source).rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())
        paths = sorted(found)[:count]
    if not paths:
        raise ValueError(f"The folder holds no image ({', '.join(ENDINGS)}). Received: images={source!r}")
    reader = ImageFileReader(tuple(model.input_shape[1:]), keras_vit.preprocessing_of(model))
    return np.stack([reader.read(str(path), path.read_bytes())[0] for path in paths])
