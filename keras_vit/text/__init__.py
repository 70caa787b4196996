"""Tokenizers of CLIP, SigLIP and SigLIP 2, and templates of class names for zero-shot
classification."""

from keras_vit.text.templates import CLIP_TEMPLATES, TEMPLATES, fill
from keras_vit.text.tokenizers import Tokenizer

__all__ = ["CLIP_TEMPLATES", "TEMPLATES", "Tokenizer", "fill"]
