"""Reads every image of a dataset and lists unreadable files, duplicates, invalid labels and empty
classes.

The command also counts JPEG files that EXIF rotates, files with a palette, gray files and files of
12 bits per value.

    keras-vit verify-data --data=DIR --output=report.json
    keras-vit verify-data --data=DIR --convert=CONVERTED
    keras-vit verify-data --config=finetune:ViT-B/16,cifar10 --config.data.path=DIR

The command reads all splits of `--data`, or the training and test splits of a config. It also finds
duplicates across splits. The exit code is 1 if it finds a problem, and 2 if the data cannot be
loaded.

With `--convert`, the command converts HEIC, AVIF and TIFF files to JPEG (quality 95), or to PNG for
TIFF files and images with transparency. It needs the packages of `keras_vit[heic]`.
"""

import functools
import os
import sys

from absl import flags

from keras_vit import data, files, terminal
from keras_vit.commands import command_line, conversion
from keras_vit.data.file_kinds import KINDS
from keras_vit.data.sources.listing import files_below, printable

FLAGS = flags.FLAGS


def define_flags():
    command_line.define_config()
    flags.DEFINE_string(
        "data", "", "Folder of images, DIR/CLASS/* or DIR/SPLIT/CLASS/*; all splits are read."
    )
    flags.DEFINE_integer(
        "threads", 2 * (os.cpu_count() or 1), "Number of images to read in parallel.", lower_bound=1
    )
    flags.DEFINE_string("output", "", "JSON file for the report.")
    flags.DEFINE_string(
        "convert",
        "",
        "Folder outside of --data for converted HEIC, AVIF and TIFF files, in the same subfolders.",
    )


def main():
    if FLAGS.output and FLAGS.convert:
        raise ValueError(
            f"--output cannot be combined with --convert. Received: output={FLAGS.output!r}"
        )
    command_line.check_output(FLAGS.output)
    if FLAGS.data and not files.is_dir(FLAGS.data):
        raise ValueError(
            "--data must be a folder with subfolders for classes; --config.data.name and "
            f"--config.data.path verify other datasets. Received: data={FLAGS.data!r}"
        )
    if FLAGS.convert:
        convert()
        return
    if FLAGS.data and (unread := files_below(FLAGS.data, conversion.ENDINGS)):
        print(
            f"not read: {len(unread)} HEIC, AVIF or TIFF files, such as {printable(unread[0])}; "
            f"--convert=FOLDER converts them ({conversion.INSTALL})"
        )
    fields = FLAGS.config.data.to_dict()
    sources = data.folder_splits(FLAGS.data) if FLAGS.data else data.load_splits(fields)
    total = sum(source.num_examples for source in sources.values())
    options = {**data.option_fields(fields), "threads": FLAGS.threads}
    show_progress = functools.partial(terminal.track, name="verifying", unit="images", total=total)
    report = data.verify(sources, show_progress, **options)
    if FLAGS.output:
        files.write_json(FLAGS.output, report)
    if print_report(report):
        sys.exit(1)


def print_report(report):
    """Prints a report of `data.verify`; returns whether it has a problem."""
    for name, reason in report["reasons"].items():
        print(f"bad: {name}: {reason}")
    for names in report["duplicates"]:
        print(f"duplicates: {', '.join(names)}")
    for name in report["empty_classes"]:
        print(f"no examples: {name}")
    for kind, text in KINDS.items():
        if report[kind]:
            print(f"{kind}: {len(report[kind])} files, such as {report[kind][0]}; {text}")
    counts = {key: len(report[key]) for key in ("bad", "duplicates", "empty_classes")}
    print(
        f"{report['examples']} examples: {counts['bad']} bad, {counts['duplicates']} groups of "
        f"duplicates, {counts['empty_classes']} empty classes"
    )
    return any(counts.values())


def convert():
    """Converts the files of `--data` into `--convert`."""
    if not FLAGS.data:
        raise ValueError(f"--convert needs --data=FOLDER. Received: convert={FLAGS.convert!r}")
    done, skipped = conversion.convert(FLAGS.data.rstrip("/"), FLAGS.convert)
    for name, reason in skipped.items():
        print(f"skipped: {name}: {reason}")
    print(f"{done} files converted, {len(skipped)} skipped")
    if skipped:
        sys.exit(1)
