"""Computes the accuracy of ImageNet classifiers on ObjectNet, for the classes that both datasets
have.

The evaluator `objectnet:folder@DIR` reads the unpacked archive `objectnet-1.0`, with its folders
`images` and `mappings`. Of ObjectNet's 313 classes, 113 correspond to one or more of ImageNet's.
Other images are skipped.

References: Barbu et al., "ObjectNet" (2019); the crop of Kolesnikov et al. (2020), which appendix
    D.9 follows.
"""

import dataclasses

import numpy as np

from keras_vit import data, files
from keras_vit.data.examples import decode_pixels
from keras_vit.data.sources.text_files import lines_of
from keras_vit.evaluation.collecting import counted_outputs
from keras_vit.evaluation.loading import load_inputs

METRICS = ("accuracy", "top5_accuracy", "mapped_accuracy", "mapped_top5_accuracy")
_BORDER = 2  # pixels to remove on each side, because the images have a thin red border
_RESIZE = 512 / 480  # Kolesnikov et al. resize the shorter side to 512 pixels and crop 480


@dataclasses.dataclass(frozen=True)
class ObjectNet(data.InputPipeline):
    """The images of the overlapping classes; `groups` has the ImageNet classes of each ObjectNet
    class, or ()."""

    groups: tuple[tuple[int, ...], ...] = ()


def load(model, name, path, splits=(), max_bad_share=0.01, **_):
    """Loads the images without their border; resizes and crops them as appendix D.9 does."""
    classes_of_folder = read_groups(path)
    whole = load_inputs(model, name, f"{path}/images", ("",), max_bad_share=max_bad_share)
    source = whole.test
    options = dict(whole.options)
    groups = tuple(classes_of_folder.get(folder, ()) for folder in source.class_names)
    kept = [index for index, label in enumerate(source.labels) if groups[label]]
    if not kept:
        raise ValueError(
            f"At least one image must have a class that ImageNet has. Received: path={path!r}"
        )
    source = data.subset(source, kept)
    read = source.read

    def without_border(index):
        example = read(index)
        image, _ = decode_pixels(example["image"], whole.test, whole.test_options)
        return {**example, "image": image[_BORDER:-_BORDER, _BORDER:-_BORDER]}

    source = dataclasses.replace(source, read=without_border)
    if "image_size" in options:  # other models read the whole image
        options |= {
            "eval_crop": "resize_small_crop",
            "resize_size": round(options["image_size"] * _RESIZE),
        }
    return ObjectNet(
        source, source, options, whole.batch_size, whole.seed, max_bad_share, groups=groups
    )


def read_groups(path):
    """Reads the archive's mappings; returns `{folder name: ImageNet classes}` for the overlapping
    classes."""
    label_of_folder = _read(path, "folder_to_objectnet_label.json")
    imagenet_names = _read(path, "objectnet_to_imagenet_1k.json")  # separated by "; "
    line_numbers = _read(path, "pytorch_to_imagenet_2012_id.json")  # {class: line of its name}
    names = lines_of(f"{path}/mappings/imagenet_to_label_2012_v2")
    try:
        class_of = {names[int(line)]: int(label) for label, line in line_numbers.items()}
        return {
            folder: tuple(sorted(class_of[name] for name in imagenet_names[label].split("; ")))
            for folder, label in label_of_folder.items()
            if label in imagenet_names
        }
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"The mappings must be those of ObjectNet's archive ({error}). Received: path={path!r}"
        ) from error


def _read(path, name):
    content = files.read_json(f"{path}/mappings/{name}")
    if not isinstance(content, dict):
        raise ValueError(
            f"The folder must contain ObjectNet's images and mappings/{name}. Received: "
            f"path={path!r}"
        )
    return content


def objectnet(model, inputs, engine=None):
    """Computes top-1 and top-5 accuracy among all classes and, as "mapped", among the overlapping
    classes only."""
    outputs, labels = counted_outputs(model, inputs)
    return score(outputs, labels.argmax(1), inputs.groups)


def score(outputs, labels, groups):
    """Computes the metrics from outputs `(N, 1000)`, ObjectNet classes `(N,)` and the groups of all
    classes.

    If several ImageNet classes correspond to a class, any of them is right. The paper does not say
    whether it ranks all classes or the overlapping ones, which get the largest output of their
    group.
    """
    overlapping = sorted(set(groups) - {()})
    right = np.stack([np.isin(np.arange(outputs.shape[1]), groups[label]) for label in labels])
    mapped = np.stack([outputs[:, list(group)].max(1) for group in overlapping], axis=1)
    number = np.array([overlapping.index(groups[label]) for label in labels])
    mapped_right = number[:, None] == np.arange(len(overlapping))
    pairs = ((outputs, right), (mapped, mapped_right))
    values = [_any_of_best(ranked, answers, count) for ranked, answers in pairs for count in (1, 5)]
    return dict(zip(METRICS, values))


def _any_of_best(values, right, count):
    """Returns the share of rows for which any of the `count` largest values is right."""
    best = np.argsort(-values, axis=1, kind="stable")[:, :count]
    return float(np.take_along_axis(right, best, axis=1).any(1).mean())
