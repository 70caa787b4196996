"""Computes attention weighted by the gradient of a class output."""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_vit.inspection.scores import check_inputs, iterate_scores
from keras_vit.models.features import find_feature_model, tokens_read
from keras_vit.models.replaced_forward import replaced_forward


def attention_relevance(
    model: keras.Model, images: np.ndarray, targets: np.ndarray | Sequence[int] | None = None
) -> np.ndarray:
    """Computes the relevance of each input token to each output token for one class of each image.

    `R_l = R_(l-1) + A_l R_(l-1)`, starting with `R_0 = I`. `A_l` is the mean over heads of
    `max(0, gradient * attention)`, where `gradient` is the gradient of the class output with
    respect to the attention.

    Args:
        model, images: as in `attention_scores`; the model's outputs must be `(B, classes)`.
        targets: class of each image, integers `(B,)`, or None for the class with the largest
            output.

    Returns: `R - I`, nonnegative float64 `(B, N, N)`. The identity is subtracted because it does
        not depend on the image.

    Raises:
        ValueError: the outputs are not `(B, classes)`, a target is not a class, or
            `attention_scores` rejects the arguments.

    Reference: Chefer et al., "Generic Attention-model Explainability" (2021), equations 5 and 6.
    """
    vit, images = check_inputs(model, images)
    # Compute the outputs, and use the predicted classes by default.
    outputs = _outputs_of(model, images)
    classes = outputs.shape[-1]
    targets = np.asarray(outputs.argmax(-1) if targets is None else targets)
    is_valid = targets.dtype.kind in "iu" and np.isin(targets, np.arange(classes)).all()
    if targets.shape != (len(images),) or not is_valid:
        raise ValueError(
            f"`targets` must contain a class, 0 to {classes - 1}, for each of {len(images)} "
            f"images. Received: targets={targets.tolist()}"
        )
    # Accumulate the relevance over layers, one image at a time.
    gradients = _ScoreGradients(model, vit)
    identity = np.eye(vit.num_tokens)
    relevances = []
    for index, target in enumerate(targets):
        image = images[index : index + 1]
        one_hot = np.zeros((1, classes), "float32")
        one_hot[0, target] = 1
        gradients_of_layers = gradients.compute(image, one_hot)
        relevance = identity.copy()
        for number, scores in iterate_scores(model, image, last=len(gradients_of_layers)):
            scores = ops.convert_to_numpy(scores)[0]
            gradient = gradients_of_layers[number - 1][0]
            # If the output depends only on the class token, the last block may compute only that
            # token's row.
            positive = np.maximum(gradient * scores[:, : gradient.shape[1]], 0).mean(0)
            relevance[: len(positive)] += positive @ relevance
        relevances.append(relevance - identity)
    return np.stack(relevances)


def _outputs_of(model, images):
    """Returns the outputs `(B, classes)` as an array; raises a `ValueError` for another shape."""
    outputs = [model(images[i : i + 1], training=False) for i in range(len(images))]
    if any(len(getattr(output, "shape", ())) != 2 for output in outputs):
        shapes = keras.tree.map_structure(lambda part: tuple(part.shape), outputs[0])
        raise ValueError(f"The model's outputs must be (B, classes). Received: shape={shapes}")
    return np.concatenate([ops.convert_to_numpy(output) for output in outputs])


class _ScoreGradients(keras.Model):
    """Computes gradients of outputs with respect to attention scores, on any backend."""

    # Keras has no backend-agnostic gradient API, so we add a variable of zeros to the scores of
    # each layer and read the gradient from one SGD step with learning rate 1.

    def __init__(self, model, vit):
        super().__init__(dtype="float32", name="score_gradients")
        # A function hides the models from Keras, which would train their weights.
        self.models = lambda: (model, vit)
        reader = find_feature_model(model)
        needs_all = reader is not None and reader.tokens in ("registers", "patch", "all")
        self.changes = []
        for number, block in enumerate(vit.blocks[: tokens_read(model)[1]], start=1):
            rows = 1 if block.first_token_only and not needs_all else vit.num_tokens
            shape = (1, vit.num_heads, rows, vit.num_tokens)
            self.changes.append(
                self.add_weight(name=f"layer_{number}", shape=shape, initializer="zeros")
            )
        self.built = True
        # Run eagerly, because compilation would take longer than the few steps.
        self.compile(
            keras.optimizers.SGD(1.0), loss=_minus_output, run_eagerly=True, jit_compile=False
        )

    def call(self, images, training=False):
        model, vit = self.models()

        def forward(images, training):
            return vit.forward(images)  # adds the changes to the attention scores

        with replaced_forward(vit, forward, score_changes=self.changes):
            return model(images, training=False)

    def compute(self, image, target):
        """Returns the gradients `(1, heads, 1 or N, N)` of a class output; `target` is one-hot,
        `(1, classes)`.

        Each gradient is with respect to the attention scores of one layer.
        """
        for change in self.changes:
            change.assign(np.zeros(change.shape, "float32"))
        self.train_on_batch(image, target)
        return [np.array(ops.convert_to_numpy(change)) for change in self.changes]


def _minus_output(target, output):
    return -ops.sum(target * ops.cast(output, "float32"), axis=-1)
