"""Reads what a checkpoint says about its model: its zip comment, and the JSON files next to it."""

import contextlib
import dataclasses
import json
import os

from keras_vit.checkpoints.dialects.facts import Facts
from keras_vit.checkpoints.dialects.transformers import read_preprocessor
from keras_vit.preprocessing import Preprocessing

# `save` adds a zip comment to .npz files: this prefix, then JSON with facts about the model. Other
# libraries ignore the comment.
COMMENT = "keras_vit "
_DEFAULTS = Preprocessing().to_config()


def stated_facts(dialect, config, comment, path):
    """Returns the facts in the zip comment, the config of a dialect and the preprocessor's file."""
    facts = _parse_comment(comment, path).over(_facts_of(dialect, config, path))
    return facts.over(_preprocessing_of(dialect, path))


@contextlib.contextmanager
def reading(name, path):
    """Converts errors in the block to a `ValueError` that names the JSON file or zip comment."""
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"The {name} of the weights is invalid: {error}. Received: {path}"
        ) from error


def read_json(path, name):
    """Returns the JSON object in a file next to the weights, or {} if the file does not exist."""
    json_path = os.path.join(os.path.dirname(path), name)
    if path.endswith(".npz") or not os.path.exists(json_path):
        return {}
    with reading(name, path), open(json_path, encoding="utf-8") as file:
        config = json.load(file)
        if not isinstance(config, dict):
            raise ValueError("it is not a JSON object")
        return config


def _facts_of(dialect, config, path):
    """Returns the facts in the config next to a file."""
    if dialect.read_config is None or not config:
        return Facts()
    with reading(dialect.config, path):
        facts = dialect.read_config(config)
        for name, types in (("num_heads", (int,)), ("epsilon", (int, float))):
            value = getattr(facts, name)
            if value is not None and (type(value) not in types or not value > 0):
                raise ValueError(f"`{name}` must be a positive number, not {value!r}")
        if config.get("problem_type") == "multi_label_classification":
            facts = dataclasses.replace(facts, logits_activation="sigmoid")
        return facts


def read_class_names(path):
    """Returns the class names in the config.json next to a file, or None.

    The result is None if the names are missing or placeholders.
    """
    config = read_json(path, "config.json")
    with reading("config.json", path):
        if id2label := config.get("id2label"):
            by_index = {int(index): name for index, name in id2label.items()}
            labels = [by_index[index] for index in range(len(by_index))]
        else:
            pretrained = config.get("pretrained_cfg") or {}
            labels = config.get("label_names") or pretrained.get("label_names")
        class_names = [str(name) for name in labels] if isinstance(labels, list) else []
    # An empty list is a list of placeholders too.
    is_placeholder = class_names == [f"LABEL_{index}" for index in range(len(class_names))]
    return None if is_placeholder else class_names


def _preprocessing_of(dialect, path):
    """Returns the preprocessing in the JSON files next to PyTorch weights, as `Facts`."""
    if dialect.layout != "pytorch":
        return Facts()
    # As in transformers 5, the processor's file takes precedence if it describes the images.
    name = "processor_config.json"
    config = read_json(path, name).get("image_processor")
    if config is None:
        name = "preprocessor_config.json"
        config = read_json(path, name)
    if config == {}:
        return Facts()
    with reading(name, path):
        defaults = {**_DEFAULTS, **(dialect.facts.preprocessing or {})}
        fields = read_preprocessor(config, defaults, name)
        Preprocessing(**fields)  # raises a `ValueError` for invalid fields
        return Facts(preprocessing=fields)


def _parse_comment(comment, path):
    """Returns the facts in a zip comment; none if the comment is not from keras_vit."""
    if not comment.startswith(COMMENT):
        return Facts()
    with reading("zip comment", path):
        stored = json.loads(comment.removeprefix(COMMENT))
        arguments = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in stored.get("arguments", {}).items()
        }
        facts = {**arguments, **stored, "arguments": arguments}
        if "grid" in facts:
            facts["grid"] = tuple(map(int, facts["grid"]))
        if "preprocessing" in facts:
            facts["preprocessing"] = Preprocessing.from_config(facts["preprocessing"]).to_config()
        return Facts(**{name: facts[name] for name in facts.keys() & vars(Facts())})
