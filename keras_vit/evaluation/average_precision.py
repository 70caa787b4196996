"""Mean average precision, for one right class or several of each example."""

import numpy as np
from keras import ops
from sklearn.metrics import average_precision_score

from keras_vit.evaluation.collecting import check_classes, collect

METRICS = ("mean_average_precision",)
SPLITS = ("test",)
check = check_classes


def evaluate(model, inputs, engine=None):
    """The mean over classes of the average precision of ranking all examples by the logit of the class.

    Args:
        model: a `keras.Model` whose outputs are logits or probabilities `(B, classes)`.
        inputs: the `data.InputPipeline`.
        engine: of a run; not used.

    Returns:
        `mean_average_precision`, in [0, 1]: scikit-learn's `average_precision_score` of each class that is right for an
        example, and their mean. The labels above 0 are right; examples without any are left out. It needs the logits of
        all examples in memory.

    Raises:
        ValueError: the model has other classes than the data, or no example can be read and has a label.
    """
    check_classes(model, inputs)
    arrays = collect(model, _outputs, inputs)
    counted = arrays["weights"] > 0
    return {"mean_average_precision": mean_average_precision(arrays["outputs"][counted], arrays["labels"][counted] > 0)}


def mean_average_precision(scores, right):
    """The mean of the average precisions of the classes that are right for at least one example.

    Args:
        scores: float `(N, classes)`, of which only the order in each column counts.
        right: bool `(N, classes)`.
    """
    present = np.flatnonzero(right.any(0))
    return float(np.mean([average_precision_score(right[:, i], scores[:, i]) for i in present]))


def _outputs(model, batch):
    return {"outputs": ops.cast(model(batch[0], training=False), "float32")}
