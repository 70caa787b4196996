"""A small model with an image and a text tower, and its tokenizer, for tests."""

import keras_vit

from ..shared import SIZES

SPECIAL = ("<pad>", "<eos>", "<unk>")  # those of SigLIP 2
WORDS = ("a", "photo", "of", "black", "white", "image")
LENGTH = 6


def write_tokenizer(path):
    """Writes a `tokenizer.json` with an id for each word, and returns its path."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: i for i, word in enumerate((*SPECIAL, *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(path))
    return str(path)


def make_towers(tokenizer, side=8):
    """Returns random towers for images of `side` pixels."""
    image = keras_vit.VisionTransformer(**SIZES, input_shape=(side, side, 3), include_top=False)
    text = keras_vit.TextTransformer(
        vocabulary_size=len(SPECIAL + WORDS),
        length=LENGTH,
        num_layers=1,
        hidden_size=8,
        mlp_dim=12,
        num_heads=2,
        embedding_size=8,
        tokenizer=tokenizer,
    )
    return keras_vit.TwoTowers(image, text, bias=-1.0)
