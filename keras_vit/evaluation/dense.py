"""Evaluates segmentation and depth at the size of each image, and writes a report."""

import functools
import itertools
import logging

import keras
import numpy as np

from keras_vit import terminal
from keras_vit.data import transforms
from keras_vit.data.bad_examples import decoder, examine, raise_wrong_label
from keras_vit.data.targets.masks import IGNORED, overlay
from keras_vit.data.targets.pixels import reader
from keras_vit.evaluation import plots
from keras_vit.evaluation.calibration import confusion_matrix
from keras_vit.models.any_model import check_images_known, output_shape_of
from keras_vit.models.resizing import resize_bilinear
from keras_vit.plots import Page, figure_class, image_axes, plain_text, to_pictures
from keras_vit.tasks.dense import depth_scores, segmentation_scores

log = logging.getLogger("keras_vit")

STRIDE = 2 / 3  # distance of neighboring windows, in window sides, as in DINOv3's protocol
_SHOWN = 8  # worst images in a report


def predict_pixels(model, image, preprocessing, windows=False):
    """Returns the outputs of a dense model at the size of an image, float32 `(H, W, C)`.

    Args:
        model: a model that maps images `(B, h, w, 3)` to `(B, rows, columns, C)` or to depths
            `(B, rows, columns)`.
        image: uint8 or float32 pixels `(H, W, 3)`, before normalization.
        preprocessing: the `Preprocessing` of the model, for pixels as in `image`.
        windows: False resizes the whole image to the model's size. True keeps its aspect ratio: the
            image is resized so that it covers the model's size, and outputs are averaged over
            windows of this size, each two thirds of a side from the next.
    """
    size = check_images_known(model)[:2]
    how = (preprocessing.rounding, preprocessing.interpolation)
    if not windows:
        resized = np.float32(transforms.resize(image, size, *how))
        outputs = _outputs(model, preprocessing.normalized(resized))
        return _resized(outputs, image.shape[:2])
    covering = transforms.resize_to_cover(image, size, *how, preprocessing.library)
    covering = preprocessing.normalized(np.float32(covering))
    shape = output_shape_of(model)
    channels = shape[3] if len(shape) == 4 else 1
    total = np.zeros((*covering.shape[:2], channels), "float32")
    counts = np.zeros((*covering.shape[:2], 1), "float32")
    for y, x in itertools.product(*map(_starts, covering.shape, size)):
        window = slice(y, y + size[0]), slice(x, x + size[1])
        total[window] += _resized(_outputs(model, covering[window]), size)
        counts[window] += 1
    return _resized(total / counts, image.shape[:2])


def _starts(length, side):
    """Returns the first pixels of the windows along an axis; the last window ends at the edge."""
    stride = max(int(STRIDE * side), 1)
    number = max(length - side + stride - 1, 0) // stride + 1
    return [min(index * stride, length - side) for index in range(number)]


def _outputs(model, image):
    outputs = np.asarray(model.predict_on_batch(np.asarray(image)[None]), "float32")[0]
    return outputs if outputs.ndim == 3 else outputs[..., None]


def _resized(outputs, size):
    return keras.ops.convert_to_numpy(resize_bilinear(outputs[None], size))[0]


def predictions(model, inputs, windows=False):
    """Yields `(index, picture, outputs, target)` of each readable test image at its own size.

    `picture` is float `(H, W, 3)` in [0, 1], and `target` is an array `(H, W)` of the target kind.
    """
    source, options, target = inputs.test, inputs.test_options, inputs.test_target
    if source.read is None:
        raise ValueError(
            "Evaluation at the size of each image needs a source that can be read by index. "
            "Received: a source that can only be read in order"
        )
    bad_examples = inputs.bad_examples("test")
    decode = decoder(source, options)
    read = reader(target, refuse=functools.partial(raise_wrong_label, target))
    is_empty = True
    with terminal.progress_bar("evaluating", source.num_examples, "images") as update:
        for index in range(source.num_examples):
            update(index + 1)
            *_, reason = examine(source, index, decode)
            if reason:
                bad_examples.check(0, 1)
                log.warning("skipped %s: %s", source.name_of(index), reason)
                continue
            image, white, values, weight = map(np.asarray, read(index))
            if weight:
                is_empty = False
                preprocessing = options.preprocessing(source, float(white))
                outputs = predict_pixels(model, image, preprocessing, windows)
                yield index, picture_of(image, float(white)), outputs, values
    if is_empty:
        raise ValueError(
            f"At least one image must be readable and have a {target.key} with known pixels. "
            f"Received: {source.num_examples} images"
        )


def picture_of(image, white):
    """Returns a picture, float32 `(H, W, 3)` in [0, 1], of pixels `(H, W, C)` in [0, white]."""
    return to_pictures(2 * (image[None] / white) - 1)[0]


def confusion(outputs, target, classes):
    """Returns the numbers of pixels by true class (rows) and predicted class: int64
    `(classes, classes)`; ignored pixels do not count."""
    counts = target != IGNORED
    return confusion_matrix(target[counts], outputs.argmax(-1)[counts], classes)


def scores_of(matrix):
    """Returns `segmentation_scores` of a matrix of `confusion`."""
    return segmentation_scores(np.diag(matrix), matrix.sum(0), matrix.sum(1))


def segmentation(model, inputs, engine=None, windows=False):
    """Computes the mean IoU and the pixel accuracy of the whole set at the size of each image."""
    _, matrix, _ = _totals(model, inputs, windows)
    scores, ious = scores_of(matrix)
    names = inputs.test.class_names
    return {**scores, **{f"iou/{name}": float(iou) for name, iou in zip(names, ious)}}


segmentation_windows = functools.partial(segmentation, windows=True)


def depth(model, inputs, engine=None):
    """Computes the metrics of the task `depth` at the size of each image."""
    scores = [
        depth_scores(outputs[None, ..., 0], target[None])[1]
        for _, _, outputs, target in predictions(model, inputs)
    ]
    return {
        name: np.mean([float(values[name][0]) for values in scores]).item() for name in scores[0]
    }


def check_masks(model, inputs):
    """Raises a `ValueError` unless a model has one output per pixel and class of the masks."""
    shape = output_shape_of(model)
    classes = len(inputs.test.class_names)
    if inputs.target != "masks" or len(shape) != 4 or shape[-1] != classes:
        raise ValueError(
            "Segmentation needs data with masks, and a model with outputs (B, rows, columns, "
            f"classes) for their {classes} classes. Received: output_shape={shape}, "
            f"target={inputs.target!r}"
        )


def check_depth(model, inputs):
    """Raises a `ValueError` unless a model predicts a depth for each pixel of data with depths."""
    shape = output_shape_of(model)
    if inputs.target != "depth" or len(shape) != 3:
        raise ValueError(
            "Depth needs data with depths, and a model with outputs (B, rows, columns). Received: "
            f"output_shape={shape}, target={inputs.target!r}"
        )


def write_report(model, inputs, output, title="model", table=()):
    """Writes a report on segmentation to the folder `output`: the IoU of each class, the confusion
    matrix and the worst images; returns the path of its `index.html`."""
    check_masks(model, inputs)
    names = inputs.test.class_names
    number, matrix, worst = _totals(model, inputs)
    scores, ious = scores_of(matrix)
    page = Page(output, title)
    page.draw(
        "iou.png",
        "Intersection over union",
        "Of each class, over the pixels of all test images.",
        _draw_ious,
        ious,
        names,
    )
    page.draw(
        "confusion.png",
        "Confusion matrix",
        "Number of pixels by true class (rows) and predicted class (columns).",
        plots.confusion,
        matrix,
        names,
    )
    page.draw(
        "worst.png",
        "Worst images",
        "The images with the lowest mean IoU, worst first: image, mask and prediction.",
        _draw_worst,
        [shown for *_, shown in worst],
        len(names),
        wide=True,
        columns=6,
    )
    items = [f"{inputs.test.name_of(index)}: mean IoU {score:.4f}" for score, index, _ in worst]
    facts = f"mean IoU {scores['mean_iou']:.4f}, pixel accuracy {scores['pixel_accuracy']:.4f}"
    return page.save(f"{number} images, {facts}", items, table)


def _totals(model, inputs, windows=False):
    """Returns the number of images, their confusion matrix, and `(mean IoU, index, (picture, mask,
    prediction))` of the worst images, worst first."""
    classes = len(inputs.test.class_names)
    matrix = np.zeros((classes, classes), np.int64)
    number = 0
    worst = []
    for index, picture, outputs, target in predictions(model, inputs, windows):
        number += 1
        matrix_of_image = confusion(outputs, target, classes)
        matrix += matrix_of_image
        score = scores_of(matrix_of_image)[0]["mean_iou"]
        worst.append((score, index, (picture, target, outputs.argmax(-1))))
        worst = sorted(worst, key=lambda row: row[:2])[:_SHOWN]
    return number, matrix, worst


def _draw_ious(path, ious, names):
    figure = figure_class()(figsize=(6, 1 + 0.3 * len(names)), layout="constrained")
    axes = figure.subplots()
    axes.barh([plain_text(name) for name in names], np.nan_to_num(ious))
    axes.set_xlim(0, 1)
    axes.invert_yaxis()
    figure.savefig(path, dpi=100)


def _draw_worst(path, shown, classes):
    rows = -(-len(shown) // 2)  # two images per row, each with its mask and its prediction
    figure, _ = image_axes(rows, 6, (12, 2.2 * rows))
    all_axes = iter(figure.axes)
    for picture, *masks in shown:
        for part in (picture, *(overlay(picture, mask, classes) for mask in masks)):
            next(all_axes).imshow(part)
    figure.savefig(path, dpi=100)
