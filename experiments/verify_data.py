"""Reads every image of a dataset before training and lists what is wrong with it.

    python experiments/verify_data.py --folder=DIR --report=report.json
    python experiments/verify_data.py --config=experiments/configs/finetune.py:ViT-B/16,cifar10 --config.data.path=DIR
    python experiments/verify_data.py --data=name=tfrecords --data=path=DIR --data=train_split='train-*' ...

Bad files, images that are there twice, also in two splits, and classes without examples. All splits of `--folder` are
read, of other data those of training and testing. Exits with 1 if anything is wrong, and with 2 if the data cannot be
looked at.
"""

import os
import sys

import command_line
import data_flags
from absl import flags

from keras_vit import data, files

data_flags.define()
for name in ("config", "data"):
    flags.declare_key_flag(name)  # for --help
flags.DEFINE_string("folder", "", "A folder of images, DIR/<class>/* or DIR/<split>/<class>/*, of which all is read.")
flags.DEFINE_integer("threads", 2 * (os.cpu_count() or 1), "Images read at a time.", lower_bound=1)
flags.DEFINE_string("report", "", "A JSON file to write the findings to.")
FLAGS = flags.FLAGS


def main(_):
    from tqdm import tqdm

    folder = os.path.dirname(FLAGS.report) or "."
    if FLAGS.report and not files.is_dir(folder):
        raise ValueError(f"The report needs a folder that exists. Received: --report={FLAGS.report}")
    fields = data_flags.fields()
    sources = _sources(fields)
    total = sum(source.num_examples for source in sources.values())
    show_progress = lambda examples: tqdm(examples, total=total, unit=" images")  # noqa: E731
    report = data.verify(sources, show_progress, **{**data.option_fields(fields), "threads": FLAGS.threads})
    if FLAGS.report:
        files.write_json(FLAGS.report, report)
    for name, reason in report["reasons"].items():
        print(f"bad: {name}: {reason}")
    for names in report["duplicates"]:
        print(f"the same: {', '.join(names)}")
    for name in report["empty_classes"]:
        print(f"no examples: {name}")
    counts = {key: len(report[key]) for key in ("bad", "duplicates", "empty_classes")}
    summary = ", ".join(f"{count} {key.replace('_', ' ')}" for key, count in counts.items())
    print(f"{report['examples']} examples: {summary}")
    if any(counts.values()):
        sys.exit(1)


def _sources(fields):
    """`{split: Source}` of what the flags name."""
    if FLAGS.folder:
        return data.folder_splits(FLAGS.folder)
    if not data_flags.names_data():
        raise ValueError("Data must be named, by --folder, --config or --data. Received: none of them")
    return data.load_splits(fields)


if __name__ == "__main__":
    command_line.run(main)
