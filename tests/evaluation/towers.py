"""A small model with an image and a text tower, and its tokenizer, for tests."""

import json
from pathlib import Path

import keras_vit

SPECIAL = ("<pad>", "<eos>", "<unk>")  # those of SigLIP 2
WORDS = ("a", "photo", "of", "black", "white", "image")
LENGTH = 6


def write_tokenizer(path):
    """Writes a `tokenizer.json` with an id for each word."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": i, "content": name, "special": True, **flags} for i, name in enumerate(SPECIAL)]
    vocabulary = {word: i for i, word in enumerate((*SPECIAL, *WORDS))}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    Path(path).write_text(json.dumps(content))
    return str(path)


def make_towers(tokenizer, side=8):
    """Returns random towers for images of `side` pixels."""
    sizes = {"num_layers": 1, "hidden_size": 8, "mlp_dim": 12, "num_heads": 2}
    image = keras_vit.VisionTransformer(
        input_shape=(side, side, 3), patch_size=4, include_top=False, **sizes
    )
    text = keras_vit.TextTransformer(
        vocabulary_size=len(SPECIAL + WORDS),
        length=LENGTH,
        embedding_size=8,
        tokenizer=tokenizer,
        **sizes,
    )
    return keras_vit.TwoTowers(image, text, bias=-1.0)
