"""Texts: the caption of each image, as token ids."""

import functools
from typing import ClassVar

import tensorflow as tf

from keras_vit.data.targets.pixels import apply_to_bytes
from keras_vit.data.targets.target import Target
from keras_vit.text import Tokenizer


class Texts(Target):
    """A target is int32 `(text_length,)`, the token ids of an image's caption.

    An empty caption gets weight 0. If an image has several captions, the first one is used.

    Args:
        source, options: as for `Target`.

    Attributes:
        tokenizer: where the tokenizer is: a `tokenizer.json`, or a folder or repository with one.
        text_length: number of tokens of a text, including padding.
    """

    defaults: ClassVar = {"tokenizer": "", "text_length": 64}

    key = "caption"
    rule = "a text in UTF-8"
    source_name = "captions"

    @staticmethod
    def check(options):
        if options.text_length < 1:
            raise ValueError(
                f"`text_length` must be 1 or more. Received: text_length={options.text_length}"
            )

    @functools.cached_property
    def tokenizer(self):
        """The tokenizer, which is loaded on first use."""
        return tokenizer_of(self.options.tokenizer, self.options.text_length)

    def spec(self):
        return tf.TensorSpec([self.options.text_length], tf.int32)

    def decode(self, example):
        caption = example["caption"]
        if caption.shape.rank:  # several captions, or none
            caption = tf.concat([caption, [""]], 0)[0]
        tokenizer = self.tokenizer
        text = tf.strings.unicode_transcode(caption, "UTF-8", "UTF-8", errors="ignore")
        ids = apply_to_bytes(lambda text: tokenizer([text.decode()])[0], text, tf.int32)
        ids = tf.ensure_shape(ids, self.spec().shape)
        weight = tf.cast(tf.strings.length(tf.strings.strip(caption)) > 0, tf.float32)
        return ids * tf.cast(weight, tf.int32), weight, text == caption

    def check_splits(self, test):
        for target in (self, test):
            target.check_stored()
        # Fail before the first step if the tokenizer cannot be read.
        tokenizer_of(self.options.tokenizer, self.options.text_length)

    def fingerprint(self, source):
        return self.tokenizer.checksum.to_bytes(4, "little")  # `Source.checksum` covers captions

    def title(self, target):
        return self.tokenizer.decode(target)


def tokenizer_of(place: str, length: int) -> Tokenizer:
    """Returns the tokenizer at a path or in a repository; raises a `ValueError` if it is not
    set."""
    if not place:
        raise ValueError(
            "A task that learns from texts needs a tokenizer, as in "
            "--config.data.tokenizer=tokenizer.json. Received: tokenizer=''"
        )
    return Tokenizer(place, length=length)
