"""Top-1 and top-5 accuracy."""

from keras import ops

METRICS = ("accuracy", "top5_accuracy")


def evaluate(engine, inputs):
    """The accuracies of the engine's model over all test examples that can be read and have a label.

    Args:
        engine: a `training.Engine`, built, whose model gives logits `(B, classes)`.
        inputs: its `data.InputPipeline`.

    Returns:
        `accuracy`, the share of examples whose largest logit is that of the largest label, and `top5_accuracy`, the
        share of those where the label's logit is among the five largest (or among all, where there are fewer).
    """
    return engine.evaluate(_top_k_accuracy)


def _top_k_accuracy(model, batch):
    images, labels, _ = batch
    logits = ops.cast(model(images, training=False), "float32")
    label = ops.argmax(labels, axis=-1)
    _, best = ops.top_k(logits, min(5, logits.shape[-1]))  # (B, 5), best first
    right = ops.cast(ops.equal(ops.cast(best, label.dtype), label[:, None]), "float32")
    return {"accuracy": right[:, 0], "top5_accuracy": ops.sum(right, axis=-1)}
