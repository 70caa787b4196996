"""ObjectNet, of whose 313 classes the 113 that ImageNet has too are scored with ImageNet's labels."""

import dataclasses
import posixpath

import numpy as np
import tensorflow as tf

from keras_vit import files as file_system
from keras_vit.data.sources import folder, read_text_file


def objectnet(path):
    """A source of the photographs of ObjectNet that an ImageNet classifier can name.

    Several ImageNet classes may stand for one of ObjectNet; each of them is right.

    Args:
        path: the unpacked `objectnet-1.0`, with `images` and `mappings`.

    Returns:
        A `Source` of 1,000 classes, in ImageNet's order, with vectors of labels.

    Raises:
        ValueError: a mapping or the images are missing, or a mapping names what another one does not have.

    Reference: Barbu et al., "ObjectNet"; the mappings are those of its archive.
    """
    names = _read(path, "folder_to_objectnet_label.json")  # folder to ObjectNet's name
    imagenet = _read(path, "objectnet_to_imagenet_1k.json")  # ObjectNet's name to ImageNet's, "; " between them
    lines = _read(path, "pytorch_to_imagenet_2012_id.json")  # label to line of the next
    line_of = {name: line for line, name in enumerate(_read(path, "imagenet_to_label_2012_v2"))}
    try:
        label_of = {int(line): int(label) for label, line in lines.items()}
        labels = {
            place: [label_of[line_of[name]] for name in imagenet[title].split("; ")]
            for place, title in names.items()
            if title in imagenet
        }
    except KeyError as error:
        raise ValueError(f"ObjectNet's mappings must agree. Received: {error} in one of them alone") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"ObjectNet's mappings must be those of its archive. Received: {error}") from error
    root = posixpath.join(str(path), "images")
    source = folder(root, class_names=sorted(names))
    # Of the 313 classes, keep those with an answer.
    order = sorted(names)
    kept = np.flatnonzero([order[label] in labels for label in source.labels])
    if not len(kept):
        raise ValueError(f"No photograph is of a class that ImageNet has. Received: path={str(path)!r}")
    index_of = tf.constant(kept, tf.int64)
    answers = tf.ragged.constant([labels.get(name, []) for name in order], dtype=tf.int64)
    values, starts = answers.values, answers.row_splits

    def read(index):
        example = source.read(index_of[index])
        label = example["label"]
        return {"image": example["image"], "label": values[starts[label] : starts[label + 1]]}

    by_label = {label: name for name, line in line_of.items() if (label := label_of.get(line)) is not None}
    return dataclasses.replace(
        source,
        read=read,
        num_examples=len(kept),
        class_names=tuple(by_label.get(label, str(label)) for label in range(1000)),
        name_of=lambda index: source.name_of(int(kept[index])),
        labels=None,
        label_groups=tuple(sorted({tuple(sorted(group)) for group in labels.values()})),
    )


def _read(path, name):
    file = posixpath.join(str(path), "mappings", name)
    if not file_system.exists(file):
        raise ValueError(f"ObjectNet has a file of mappings here. Received: {file!r}, which is missing")
    if name.endswith(".json"):
        return file_system.read_json(file)
    return [line.strip() for line in read_text_file(file).splitlines()]
