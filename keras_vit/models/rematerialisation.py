"""Trading time for memory: what a block computes is forgotten, and computed again for its gradient."""

import keras

from keras_vit.layers import TransformerBlock
from keras_vit.layers.dropout import current_seeds, seed_scope


def rematerialise(model):
    """Lets every `TransformerBlock` of a model keep its input alone for the gradient, in training.

    The gradients stay exact under dropout inside `layers.dropout.seed_scope`, where the second computation draws
    what the first did. It cannot be undone, and leaves what is saved of the model as it is.

    Args:
        model: a built functional `keras.Model`.

    Returns:
        How many blocks it has.
    """
    blocks = [layer for layer in model.layers if isinstance(layer, TransformerBlock)]
    for block in blocks:
        block.call = _forgetful(block.call)
    return len(blocks)


def _forgetful(call):
    def forgetful(tokens, training=False):
        if not training:
            return call(tokens, training=False)
        draws = current_seeds()
        first = draws.count if draws else 0

        def compute(tokens):
            if draws:
                draws.count = first  # the second time, as the first
            with seed_scope(draws):
                return call(tokens, training=True)

        return keras.remat(compute)(tokens)

    return forgetful
