"""Contrastive losses of pairs of images and texts."""

import dataclasses
from collections.abc import Callable

import keras
from keras import ops

from keras_vit.layers.validation import check_choice

BLOCK_ROWS = 1024  # rows of a matrix of similarities in memory at a time
_ROUNDING = 1e-6  # equal texts may have slightly different embeddings


@dataclasses.dataclass(frozen=True)
class Pairs:
    """The n pairs of a device, and all N pairs of the batch. Embeddings have norm 1.

    Attributes:
        images, texts: float32 `(n, E)`, the embeddings of this device.
        all_images, all_texts: float32 `(N, E)`, the embeddings of all devices.
        first: number of this device's first pair among all pairs.
        weights: float32 `(N,)`, 0 for pairs that do not count.
    """

    images: keras.KerasTensor
    texts: keras.KerasTensor
    all_images: keras.KerasTensor
    all_texts: keras.KerasTensor
    first: int | keras.KerasTensor
    weights: keras.KerasTensor

    @property
    def numbers(self) -> keras.KerasTensor:
        """The numbers of this device's pairs, integers `(n,)`."""
        return self.first + ops.arange(self.images.shape[0])

    def own(self, numbers: keras.KerasTensor) -> keras.KerasTensor:
        """Returns a Boolean matrix `(rows, N)`, True at the number of each row."""
        return ops.equal(numbers[:, None], ops.arange(self.all_texts.shape[0])[None])


def softmax(
    pairs: Pairs, scale: keras.KerasTensor, bias: float | keras.KerasTensor = 0.0
) -> keras.KerasTensor:
    """Returns CLIP's loss of each pair, float32 `(n,)`, in nats; it does not depend on `bias`.

    It is half the cross-entropy of the image's text among all texts, plus half that of the text's
    image. The matrix of logits, `(n, N)`, is in memory.

    Reference: Radford et al., 2021.
    """
    own = pairs.own(pairs.numbers)
    ignored = ops.logical_and(ops.equal(pairs.weights, 0), ops.logical_not(own))
    total = 0.0
    for rows, columns in ((pairs.images, pairs.all_texts), (pairs.texts, pairs.all_images)):
        logits = scale * ops.matmul(rows, ops.transpose(columns))
        others = ops.logsumexp(ops.where(ignored, -1e30, logits), axis=1)
        total += others - ops.sum(ops.where(own, logits, 0.0), axis=1)
    return total / 2


def sigmoid(
    pairs: Pairs, scale: keras.KerasTensor, bias: float | keras.KerasTensor = 0.0
) -> keras.KerasTensor:
    """Returns SigLIP's loss of each image, float32 `(n,)`: the sum of the sigmoid cross-entropies
    of all texts, in nats.

    Blocks of rows are computed one after the other, and again in the backward pass, so that memory
    grows linearly with the batch.

    Reference: Zhai et al., 2023.
    """
    bias = ops.convert_to_tensor(bias, "float32")

    def losses_of(block):
        rows, numbers = block

        def row_losses(rows, columns, scale, bias):
            logits = scale * ops.matmul(rows, ops.transpose(columns)) + bias
            signed = ops.where(pairs.own(numbers), -logits, logits)
            return ops.sum(pairs.weights * ops.softplus(signed), axis=1)

        return keras.remat(row_losses)(rows, pairs.all_texts, scale, bias)

    return _by_blocks(losses_of, pairs.images, pairs.numbers)


def right_texts(pairs: Pairs) -> keras.KerasTensor:
    """Returns 1.0 for each image whose text is the most similar one in the batch, float32 `(n,)`.

    If k texts are equally similar, as k equal captions are, the value is 1 / k.
    """
    all_texts = ops.stop_gradient(pairs.all_texts)

    def shares_of(block):
        rows, numbers = block
        similarities = ops.matmul(rows, ops.transpose(all_texts))
        own = ops.where(pairs.own(numbers), similarities, 0.0)
        others = ops.where(ops.equal(pairs.weights, 0), -2.0, similarities)
        difference = others - ops.sum(own, axis=1, keepdims=True)
        is_best = ops.all(difference <= _ROUNDING, axis=1)
        ties = ops.sum(ops.cast(ops.abs(difference) <= _ROUNDING, "float32"), axis=1)
        return ops.where(is_best, 1 / ops.maximum(ties, 1.0), 0.0)

    return _by_blocks(shares_of, ops.stop_gradient(pairs.images), pairs.numbers)


def _by_blocks(function, rows, numbers):
    """Applies `function((rows, numbers))` to blocks of up to `BLOCK_ROWS` rows; returns its outputs
    `(n,)`."""
    count = rows.shape[0]
    blocks = next(k for k in range(-(-count // BLOCK_ROWS), count + 1) if count % k == 0)
    if blocks == 1:
        return function((rows, numbers))
    # Block i of k has the rows i, i + k, i + 2k, ..., so that sharded rows stay on their devices.
    parts = tuple(
        ops.swapaxes(ops.reshape(part, (-1, blocks, *part.shape[1:])), 0, 1)
        for part in (rows, numbers)
    )
    return ops.reshape(ops.transpose(ops.map(function, parts)), (-1,))


LOSSES = {"softmax": softmax, "sigmoid": sigmoid}
"""Maps the value of `config.loss` to a loss."""


def get(name: str) -> Callable[..., keras.KerasTensor]:
    """Returns the loss for `name`, a key of `LOSSES`; raises a `ValueError` for another name."""
    check_choice("loss", name, LOSSES)
    return LOSSES[name]
