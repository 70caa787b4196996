"""The flags by which commands that look at data name it, as the main job does."""

import ast
from pathlib import Path

import command_line
from absl import flags

from keras_vit import data

FLAGS = flags.FLAGS


def define():
    """Defines `--config`, of which the `data` group counts, and `--data`."""
    command_line.define_config(Path(__file__).parent / "configs/digits.py")
    flags.DEFINE_multi_string(
        "data", [], "A field of a config's `data` group, FIELD=VALUE, instead of that of --config, or of the default."
    )


def names_data():
    """Whether any of these flags was used."""
    return bool(FLAGS.data) or _has_config()


def fields():
    """Every field of the `data` group with its value, a dict.

    Raises:
        ValueError: there is no such field, or a value is not of its type.
    """
    known = data.defaults()
    values = {**known, **FLAGS.config.to_dict()["data"]} if _has_config() else known
    for word in FLAGS.data:
        name, _, value = word.partition("=")
        if name not in known:
            raise ValueError(f"The fields of `data` are {', '.join(known)}. Received: --data={word}")
        try:
            values[name] = _parse(value, type(known[name]))
        except (ValueError, SyntaxError):
            kind = type(known[name]).__name__
            raise ValueError(f"`{name}` must be of the type {kind}. Received: --data={word}") from None
    return values


def _has_config():
    return any(FLAGS[name].present for name in FLAGS if name == "config" or name.startswith("config."))


def _parse(text, kind):
    if kind is bool:
        return text.lower() in ("true", "1", "on")
    if kind is tuple:
        value = ast.literal_eval(text if text.startswith("(") else f"({text},)")
        return value if isinstance(value, tuple) else (value,)
    return kind(text)
