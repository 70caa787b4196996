"""Accuracy on ImageNet-v2, photographs that were collected again."""

from keras_vit.evaluation import top1

METRICS = top1.METRICS
SPLITS = ("test",)
check = top1.check
DATASET = "imagenet_v2"


def evaluate(model, inputs, engine=None):
    """As `top1.evaluate`, on the test split of TFDS' `imagenet_v2`.

    Reference: Recht et al., "Do ImageNet Classifiers Generalize to ImageNet?" (2019).
    """
    return top1.evaluate(model, inputs, engine)
