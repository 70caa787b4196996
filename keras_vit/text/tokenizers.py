"""Tokenizers: the vocabulary from a file, and around it the rules of CLIP, SigLIP and SigLIP 2."""

import functools
import os
import string
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from keras_vit.checkpoints import hub

# Names of the files that are looked for, in this order. All but the first are files of
# SentencePiece.
FILES = ("tokenizer.json", "spiece.model", "sentencepiece.model", "tokenizer.model")
_NO_PUNCTUATION = str.maketrans({**dict.fromkeys(string.punctuation, ""), "_": " "})


class _Vocabulary(NamedTuple):
    """The vocabulary in a file of either library."""

    sizes: tuple[int, ...]  # without and with added tokens
    id_of: Callable[[str], int | None]
    encode: Callable[[list[str]], list[list[int]]]
    decode: Callable[[list[int]], str]


class _Rules(NamedTuple):
    """How a family surrounds the ids of a text."""

    end: str  # the end token, which marks the family
    start: str | None = None
    pad: str | None = None  # None for the end token
    without_punctuation: bool = False


# A family is recognized by its end token. Families are tried in this order, because a vocabulary
# may have the tokens of several.
_FAMILIES = {
    "CLIP": _Rules("<|endoftext|>", start="<|startoftext|>"),
    "SigLIP 2": _Rules("<eos>", pad="<pad>"),
    "SigLIP": _Rules("</s>", without_punctuation=True),
}


class Tokenizer:
    """Converts texts to token ids, int32 `(N, length)`, as the text towers were trained with.

    All texts are lower-cased. Texts that are too long are cut; the last id is then the end token.

    - CLIP: start token, text, end token; padded with end tokens.
    - SigLIP (c4_en and mC4): punctuation is removed and `_` becomes a space, as big_vision does for
      class names; text, end token; padded with end tokens.
    - SigLIP 2 (Gemma's vocabulary): text, end token; padded with `<pad>`.

    Args:
        source: path of a `tokenizer.json` or of a SentencePiece `.model` file, of a folder with
            either, or a repository on the Hugging Face Hub. The libraries `tokenizers` and
            `sentencepiece` read them (`pip install "keras_vit[text]"`).
        length: number of ids of every text.
        vocabulary_size: number of ids that the model knows; None to accept any vocabulary.

    Attributes:
        family: "CLIP", "SigLIP" or "SigLIP 2", by the end token of the vocabulary.
        start_id, end_id, pad_id: ids; `start_id` is None if the family has no start token.
        vocabulary_size: number of ids, with added tokens.
        checksum: CRC-32 of the file.

    Raises:
        ValueError: the file does not exist or cannot be read, is of another family, or its
            vocabulary has another size.
        ImportError: the library that reads the file is not installed.

    Reference: the tokenizers of open_clip, transformers and big_vision.
    """

    def __init__(
        self, source: str | os.PathLike, length: int = 64, vocabulary_size: int | None = None
    ) -> None:
        self.length = length
        path = find_file(source)
        with open(path, "rb") as file:
            self.checksum = zlib.crc32(file.read())
        self._vocabulary = _read(path)
        sizes = self._vocabulary.sizes
        if vocabulary_size is not None and vocabulary_size not in sizes:
            raise ValueError(
                f"The tokenizer has {sizes[-1]} ids, but the model embeds {vocabulary_size}; it "
                f"belongs to another model. Received: {path}"
            )
        self.vocabulary_size = sizes[-1]
        id_of = self._vocabulary.id_of
        known = [name for name, rules in _FAMILIES.items() if id_of(rules.end) is not None]
        if not known:
            ends = ", ".join(rules.end for rules in _FAMILIES.values())
            raise ValueError(
                f"The vocabulary must have an end token of CLIP or SigLIP ({ends}). Received: "
                f"{path}"
            )
        self.family = known[0]
        rules = _FAMILIES[self.family]
        self.end_id = id_of(rules.end)
        self.start_id = id_of(rules.start) if rules.start else None
        self.pad_id = id_of(rules.pad or rules.end)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Returns the ids of texts, int32 `(N, length)`.

        Raises:
            ValueError: `texts` is one string instead of a list, or contains other values.
        """
        texts = texts if isinstance(texts, str) else list(texts)
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"`texts` must be a list of strings. Received: {texts!r:.200}")
        cleaned = [text.lower() for text in texts]
        if _FAMILIES[self.family].without_punctuation:
            cleaned = [" ".join(text.translate(_NO_PUNCTUATION).split()) for text in cleaned]
        ids = np.full((len(cleaned), self.length), self.pad_id, "int32")
        start = [] if self.start_id is None else [self.start_id]
        for row, found in zip(ids, self._vocabulary.encode(cleaned)):
            body = [*start, *found][: self.length - 1]
            row[: len(body) + 1] = [*body, self.end_id]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids, lower-cased and without start, end and padding tokens."""
        special = (self.start_id, self.end_id, self.pad_id)
        return self._vocabulary.decode([int(i) for i in ids if i not in special]).strip()


def find_file(source: str | os.PathLike) -> str:
    """Returns the path of the tokenizer in a file, folder or repository; raises a `ValueError` if
    there is none."""
    text = os.fspath(source)
    found = None
    if os.path.isfile(text) and text.endswith((".json", ".model")):
        found = text
    elif os.path.isdir(text):
        paths = [os.path.join(text, name) for name in FILES]
        found = next((path for path in paths if os.path.exists(path)), None)
    elif hub.is_repository(text):
        found = next((path for name in FILES if (path := hub.fetch_file(text, name))), None)
    if found is None:
        raise ValueError(
            f"No tokenizer was found there: none of {', '.join(FILES)}. Pass the path of the "
            f"model's tokenizer (`tokenizer=`, --tokenizer). Received: tokenizer={text!r}"
        )
    return found


@functools.lru_cache(maxsize=2)
def _read(path):
    """Returns the `_Vocabulary` in a file."""
    reader = _read_json if path.endswith(".json") else _read_sentencepiece
    try:
        return reader(path)
    except ImportError as error:
        raise ImportError(
            f"This tokenizer needs {error.name}, which is not installed: pip install "
            f'"keras_vit[text]". Received: {path}',
            name=error.name,
        ) from error
    except Exception as error:  # both libraries raise `Exception` or `RuntimeError`
        raise ValueError(f"The tokenizer cannot be read ({error}). Received: {path}") from error


def _read_json(path):
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(texts):
        return [found.ids for found in tokenizer.encode_batch(texts, add_special_tokens=False)]

    sizes = [tokenizer.get_vocab_size(with_added_tokens=added) for added in (False, True)]
    return _Vocabulary(tuple(sizes), tokenizer.token_to_id, encode, tokenizer.decode)


def _read_sentencepiece(path):
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=path)

    def id_of(piece):
        number = processor.piece_to_id(piece)
        return None if number == processor.unk_id() else number

    sizes = (processor.get_piece_size(),)
    return _Vocabulary(sizes, id_of, processor.encode, processor.decode)
