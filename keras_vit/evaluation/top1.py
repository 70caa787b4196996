"""Top-1 and top-5 accuracy."""

from keras import ops

from keras_vit.evaluation.collecting import check_classes, mean_over_examples

METRICS = ("accuracy", "top5_accuracy")
SPLITS = ("test",)
check = check_classes


def evaluate(model, inputs, engine=None):
    """The accuracies of a model over all test examples that can be read and have a label, each counted once.

    Args:
        model: a `keras.Model` whose outputs are logits or probabilities `(B, classes)`.
        inputs: the `data.InputPipeline`.
        engine: the `training.Engine` of a run, whose devices share the batches; None to compute with the model alone.

    Returns:
        `accuracy`, the share of examples whose largest logit is that of a right label (several may be right), and
        `top5_accuracy`, the share of those where a right label is among the five largest (or among all, where there
        are fewer).

    Raises:
        ValueError: the model has other classes than the data, or no example can be read and has a label.
    """
    check_classes(model, inputs)
    return mean_over_examples(model, inputs, top_k_accuracy, engine)


def top_k_accuracy(model, batch):
    """Whether the largest logit, and any of the five largest, is of a right label: a dict of float32 `(B,)`, NaN for an
    example with a NaN among its logits."""
    images, labels, _ = batch
    logits = ops.cast(model(images, training=False), "float32")
    _, best = ops.top_k(logits, min(5, logits.shape[-1]))  # (B, 5), best first
    right = ops.cast(ops.take_along_axis(labels, best, axis=-1) > 0, "float32")
    right = ops.where(ops.any(ops.isnan(logits), axis=-1, keepdims=True), float("nan"), right)
    return {"accuracy": right[:, 0], "top5_accuracy": ops.max(right, axis=-1)}
