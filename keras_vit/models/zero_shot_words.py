"""Class embeddings from words, with the text tower of the same model."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.models.two_towers import TwoTowers
from keras_vit.text import Tokenizer, fill

_BATCH = 64


def tokenizer_of(model: TwoTowers, tokenizer: Any = None) -> Tokenizer:
    """Returns the tokenizer of a model's text tower, from the place that its weights came from.

    Args:
        model: a model with both towers.
        tokenizer: a `Tokenizer`, or the path or repository of one; None for the argument
            `tokenizer` of the text tower.

    Raises:
        ValueError: the model has no text tower, no tokenizer is known, or it does not fit the
            model; see `text.Tokenizer`.
    """
    if not isinstance(model, TwoTowers):
        raise ValueError(
            "Words require a model with both towers, as from `keras_vit.from_pretrained(source, "
            f'tower="both")`. Received: model={getattr(model, "name", model)!r}'
        )
    if callable(tokenizer):
        return tokenizer
    arguments = model.text.arguments
    source = tokenizer or arguments["tokenizer"]
    if not source:
        raise ValueError(
            "The file of the weights has no tokenizer; pass the path of the model's tokenizer.json "
            "or SentencePiece file (`tokenizer=`, --tokenizer). Received: "
            f"model={model.name!r}"
        )
    return Tokenizer(source, arguments["length"], arguments["vocabulary_size"])


def embed_texts(model: TwoTowers, texts: Sequence[str], tokenizer: Any = None) -> np.ndarray:
    """Returns the normalized embeddings of texts, float32 `(N, E)`.

    Args:
        model, tokenizer: as for `tokenizer_of`.
        texts: the texts, before any preprocessing.
    """
    ids = tokenizer_of(model, tokenizer)(texts)
    # Pad the last batch, so that the model is compiled once.
    padded = np.resize(ids, (-(-len(ids) // _BATCH) * _BATCH, ids.shape[1]))
    batches = np.split(padded, len(padded) // _BATCH)
    embedded = np.concatenate([model.text.predict_on_batch(batch) for batch in batches])
    embedded = np.asarray(embedded, "float32")[: len(ids)]
    return embedded / np.linalg.norm(embedded, axis=1, keepdims=True)


def class_embeddings(
    model: TwoTowers, names: Sequence[str], templates: Sequence[str], tokenizer: Any = None
) -> np.ndarray:
    """Returns embeddings of classes, float32 `(K, E)`.

    Each one is the mean of the normalized embeddings of the class's texts, not normalized again.

    Raises:
        ValueError: there are no names or templates, or a name is empty or repeated.
    """
    templates = [templates] if isinstance(templates, str) else list(templates)
    is_named = all(isinstance(name, str) and name.strip() for name in names)
    if not names or not templates or not is_named or len(set(names)) < len(names):
        raise ValueError(
            "Class names must be different strings that are not empty, and there must be at least "
            f"one name and one template. Received: {names[:20]}, templates={templates[:5]}"
        )
    texts = [text for name in names for text in fill(templates, name)]
    embedded = embed_texts(model, texts, tokenizer)
    return embedded.reshape(len(names), len(templates), -1).mean(axis=1)


def scale_and_bias_of(model: TwoTowers) -> tuple[float, float | None]:
    """Returns the factor of the cosine, and the bias of the logits or None."""
    scale = float(np.exp(keras.ops.convert_to_numpy(model.logit_scale)))
    bias = model.logit_bias
    return scale, None if bias is None else float(keras.ops.convert_to_numpy(bias))
