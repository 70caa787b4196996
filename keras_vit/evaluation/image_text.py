"""Evaluates models with an image and a text tower: retrieval and zero-shot classification."""

import keras
import numpy as np

from keras_vit import text
from keras_vit.data import InputPipeline
from keras_vit.evaluation import accuracy
from keras_vit.evaluation.collecting import collect
from keras_vit.models import TwoTowers
from keras_vit.models.zero_shot import zero_shot as classifier_of

RANKS = (1, 5, 10)
RETRIEVAL = tuple(
    f"{direction}_recall_at_{rank}"
    for direction in ("image_to_text", "text_to_image")
    for rank in RANKS
)
_ROWS = 1024  # rows of the similarity matrix in memory at a time
_ROUNDING = 1e-6  # equal texts may have slightly different embeddings


def check_retrieval(model: keras.Model, inputs: InputPipeline) -> None:
    """Raises a `ValueError` unless the model has two towers and the data have captions."""
    if not isinstance(model, TwoTowers) or inputs.target != "texts":
        raise ValueError(
            "`retrieval` needs a model with an image and a text tower, and images with captions. "
            f"Received: model={model.name!r}, targets={inputs.target!r}"
        )


def retrieval(model, inputs, engine=None):
    """Computes the recall at 1, 5 and 10 over the whole test split, in both directions.

    Examples of the same name, such as several lines with one image file, are one image with several
    texts; any of them is right for the image. If others are as similar as the right one, as with
    equal captions, the recall is the one to expect when their order is drawn.
    """
    arrays = collect(model, embeddings_of, inputs)
    counted = np.flatnonzero(arrays["weights"] > 0)
    names = [inputs.test.name_of(int(index)) for index in counted]
    _, first, image_of_text = np.unique(names, return_index=True, return_inverse=True)
    images = arrays["images"][counted][first]
    texts = arrays["texts"][counted]
    ranks = {
        "image_to_text": ranks_of(images, texts, np.arange(len(images)), image_of_text),
        "text_to_image": ranks_of(texts, images, image_of_text, np.arange(len(images))),
    }
    return {
        f"{direction}_recall_at_{rank}": float(np.clip((rank - more) / (equal + 1), 0, 1).mean())
        for direction, (more, equal) in ranks.items()
        for rank in RANKS
    }


def check_zero_shot(model: keras.Model, inputs: InputPipeline) -> None:
    """Raises a `ValueError` unless the model has two towers and the dataset has classes."""
    if not isinstance(model, TwoTowers) or inputs.target != "classes":
        raise ValueError(
            "`zero_shot` needs a model with an image and a text tower, and a dataset with classes, "
            f"as in zero_shot:cifar10. Received: model={model.name!r}, targets={inputs.target!r}"
        )


def zero_shot(model, inputs, engine=None):
    """Computes the accuracy of the classifier that `keras_vit.zero_shot` builds from the dataset's
    class names and CLIP's 80 templates; `_` in a name becomes a space."""
    names = [name.replace("_", " ") for name in inputs.test.class_names]
    return accuracy.top1(classifier_of(model, names, text.CLIP_TEMPLATES), inputs)


def embeddings_of(model, batch):
    """Computes the normalized embeddings of a batch: "images" and "texts", float32 `(B, E)`."""
    return {"images": model.encode_image(batch[0]), "texts": model.encode_text(batch[1])}


def ranks_of(queries, items, group_of_query, group_of_item):
    """Returns two arrays: the number of items that are more similar to each query than the best
    item of its group, and the number of items of other groups that are as similar."""
    counts = []
    for start in range(0, len(queries), _ROWS):
        rows = slice(start, start + _ROWS)
        similarities = queries[rows] @ items.T
        own = group_of_query[rows, None] == group_of_item
        best = np.where(own, similarities, -np.inf).max(1, keepdims=True)
        difference = np.where(own, -np.inf, similarities - best)
        more = difference > _ROUNDING
        equal = np.abs(difference) <= _ROUNDING
        counts.append((more.sum(1), equal.sum(1)))
    return np.concatenate(counts, axis=1)
