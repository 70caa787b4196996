"""Attention weighted by the gradient of a class."""

import contextlib
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_vit.inspection.scores import iterate_scores
from keras_vit.models.encoder import Encoder
from keras_vit.models.replaced_method import replaced_method


def attention_relevance(
    model: keras.Model, images: np.ndarray, targets: np.ndarray | Sequence[int] | None = None
) -> np.ndarray:
    """How relevant each input token is to each token of the output, for one class of each image.

    Of each layer, `A = mean over heads of max(0, gradient * attention)`, where the gradient is that of the output of
    the class by the attention scores; then `R_l = R_(l-1) + A R_(l-1)`, from `R_0 = I`.

    Args:
        model: a `keras.Model` with a Vision Transformer in it, also wrapped, whose outputs are `(B, classes)`.
        images: `(B, H, W, C)`, as the model takes them.
        targets: integers `(B,)`, the class of each image; None for the one with the largest output.

    Returns:
        float64 `(B, N, N)` minus the identity, which says nothing of the image: 0 or more.

    Raises:
        ValueError: there is no Vision Transformer in the model, its outputs are not `(B, classes)`, a target is not a
            class, there is no image, or the images are not of the model's size.

    Reference: Chefer et al., "Generic Attention-model Explainability" (2021), equations 5 and 6, for self-attention.
    """
    encoder = Encoder(model)
    images = images if hasattr(images, "dtype") else np.asarray(images)
    encoder.check_images(images)
    tokens = encoder.grid[0] * encoder.grid[1] + encoder.num_prefix_tokens
    if not len(images):
        raise ValueError(f"There must be an image. Received: images of shape {tuple(images.shape)}")
    outputs = [model(images[i : i + 1], training=False) for i in range(len(images))]
    if any(len(getattr(output, "shape", ())) != 2 for output in outputs):
        shapes = keras.tree.map_structure(lambda part: tuple(part.shape), outputs[0])
        raise ValueError(f"The model's outputs must be (B, classes). Received: shape={shapes}")
    outputs = [ops.convert_to_numpy(output) for output in outputs]
    classes = outputs[0].shape[-1]
    targets = [output[0].argmax() for output in outputs] if targets is None else targets
    try:
        targets = np.asarray(targets)
    except ValueError:  # lists of different lengths
        targets = np.array(None)
    in_range = targets.dtype.kind in "iu" and ((targets >= 0) & (targets < classes)).all()
    if targets.shape != (len(images),) or not in_range:
        raise ValueError(
            f"`targets` must be a class, 0 to {classes - 1}, for each of {len(images)} images. "
            f"Received: targets={targets.tolist()}"
        )
    gradients = _ScoreGradients(encoder, tokens)
    relevances = []
    for index, target in enumerate(targets):
        image = images[index : index + 1]
        of_layers = gradients.compute(image, np.eye(classes, dtype="float32")[None, target])
        relevance = np.eye(tokens)
        for number, scores in iterate_scores(encoder, image):
            scores, gradient = ops.convert_to_numpy(scores)[0], of_layers[number - 1][0]
            # The last block may compute the first row alone; nothing depends on the others.
            positive = np.maximum(gradient * scores[:, : gradient.shape[1]], 0).mean(0)
            relevance[: len(positive)] += positive @ relevance
        relevances.append(relevance - np.eye(tokens))
    return np.stack(relevances)


class _ScoreGradients(keras.Model):
    """The gradient of outputs by attention scores, on any backend.

    Keras has no gradients of its own, but every backend trains: to the scores of each layer a variable of zeros is
    added, and one step of gradient descent with learning rate 1 leaves the gradient in it.
    """

    def __init__(self, encoder, tokens):
        super().__init__(dtype="float32", name="score_gradients")
        self.encoder = encoder
        self.changes = [
            self.add_weight(
                name=f"layer_{number}",
                shape=(1, block.num_heads, 1 if block.first_token_only else tokens, tokens),
                initializer="zeros",
            )
            for number, block in enumerate(encoder.blocks, start=1)
        ]
        self.built = True
        # Eagerly: it runs once or a few times, and compiling takes longer.
        self.compile(keras.optimizers.SGD(1.0), loss=_minus_output, run_eagerly=True, jit_compile=False)

    def call(self, images, training=False):
        with contextlib.ExitStack() as stack:
            for block, change in zip(self.encoder.blocks, self.changes):
                stack.enter_context(_changed_scores(block.attention, change))
            return self.encoder.model(images, training=False)

    def compute(self, image, target):
        """The gradient of the output of a class, `target` one-hot `(1, classes)`: a list of `(1, heads, M, N)`."""
        for change in self.changes:
            change.assign(np.zeros(change.shape, "float32"))
        self.train_on_batch(image, target)
        return [np.array(ops.convert_to_numpy(change)) for change in self.changes]


def _minus_output(target, output):
    return -ops.sum(target * ops.cast(output, "float32"), axis=-1)


@contextlib.contextmanager
def _changed_scores(attention, change):
    """While it is open, `change` is added to the scores of an attention layer."""

    def changed(query, key):
        result = scores(query, key)
        return result + ops.cast(change, result.dtype)

    with (
        replaced_method(attention, "scores", changed) as scores,
        # A change is of all queries at once, of a long sequence too.
        replaced_method(attention, "_attend_without_scores", attention._attend),
    ):
        yield
