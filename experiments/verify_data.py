"""Reads every image of a dataset before training and lists what is wrong with it.

    python experiments/verify_data.py --folder=DIR --report=report.json

Bad files, images that are there twice and classes without examples; exits with 1 if there are any, and with 2 if the
data cannot be looked at.
"""

import json
import os
import sys

import command_line
from absl import flags

from keras_vit import data

flags.DEFINE_string("folder", "", "A folder with one subfolder of images for each class.")
flags.DEFINE_string("tfds", "", "The name of a dataset of TensorFlow Datasets; with --split and --data_dir.")
flags.DEFINE_string("tfrecord", "", "The pattern of TFRecord files of tf.train.Example; with --classes.")
flags.DEFINE_string("list", "", "A CSV or text file of image files and labels.")
flags.DEFINE_string("split", "", "The split: a subfolder of --folder, or TFDS's words for --tfds (default: train).")
flags.DEFINE_string("data_dir", "", "Where the TFDS datasets lie, or where the relative names of --list start.")
flags.DEFINE_integer("classes", 0, "The number of classes of --tfrecord.")
flags.DEFINE_integer("label_offset", 0, "The label of the first class of --tfrecord.")
flags.DEFINE_float("max_megapixels", 100.0, "Larger images are bad.", lower_bound=0.0)
flags.DEFINE_integer("threads", 2 * (os.cpu_count() or 1), "Images read at a time.", lower_bound=1)
flags.DEFINE_string("report", "", "A JSON file to write the findings to.")
FLAGS = flags.FLAGS


def _source():
    given = [name for name in ("folder", "tfds", "tfrecord", "list") if FLAGS[name].value]
    if len(given) != 1:
        raise ValueError(f"One of --folder, --tfds, --tfrecord and --list is needed. Received: {given}")
    if FLAGS.folder:
        return data.load_split("folder", FLAGS.split, path=FLAGS.folder)
    if FLAGS.tfds:
        name = FLAGS.tfds if FLAGS.tfds in data.DATASETS else f"tfds:{FLAGS.tfds}"
        return data.load_split(name, FLAGS.split or "train", path=FLAGS.data_dir)
    if FLAGS.list:
        return data.load_split("list", FLAGS.list, path=FLAGS.data_dir)
    return data.load_split("tfrecords", FLAGS.tfrecord, classes=FLAGS.classes, label_offset=FLAGS.label_offset)


def main(_):
    from tqdm import tqdm

    source = _source()
    show = lambda found: tqdm(found, total=source.num_examples, unit=" images")  # noqa: E731
    report = data.verify(source, FLAGS.max_megapixels, FLAGS.threads, show)
    if FLAGS.report:
        _write(report)
    for name, reason in report["reasons"].items():
        print(f"bad: {name}: {reason}")
    for names in report["duplicates"]:
        print(f"the same: {', '.join(names)}")
    for name in report["empty_classes"]:
        print(f"no examples: {name}")
    found = {key: len(report[key]) for key in ("bad", "duplicates", "empty_classes")}
    print(
        f"{report['examples']} examples:", ", ".join(f"{count} {key.replace('_', ' ')}" for key, count in found.items())
    )
    if any(found.values()):
        sys.exit(1)


def _write(report):
    try:
        with open(FLAGS.report + ".part", "w") as file:
            json.dump(report, file, indent=1)
        os.replace(FLAGS.report + ".part", FLAGS.report)
    except OSError as error:
        raise ValueError(
            f"The report cannot be written ({error.strerror}). Received: --report={FLAGS.report}"
        ) from None


if __name__ == "__main__":
    command_line.run(main)
