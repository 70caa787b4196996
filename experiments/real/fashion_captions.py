"""Trains two towers on Fashion-MNIST with captions, and tests zero-shot classification.

    python experiments/real/fashion_captions.py --output=fashion_captions

The captions of the 60,000 training images are made from their labels, with several templates and
names for each class. Zero-shot classification of the 10,000 test images uses templates that are not
in the training captions. For comparison, the same image tower is trained on the labels for the same
number of steps with the same batch size. The results are in results_LOSS.json in the output folder.
"""

import json
from pathlib import Path

import fashion_data
import numpy as np
import tensorflow as tf
from absl import app, flags, logging
from ml_collections import ConfigDict

import keras_vit
from keras_vit import data, evaluation, files, recipes, training

FLAGS = flags.FLAGS
NAMES = (
    ("t-shirt", "top", "short sleeved shirt"),
    ("pair of trousers", "pair of pants"),
    ("pullover", "sweater"),
    ("dress", "gown"),
    ("coat", "jacket"),
    ("sandal", "open shoe"),
    ("shirt", "blouse"),
    ("sneaker", "sports shoe"),
    ("bag", "handbag"),
    ("ankle boot", "boot"),
)
TEMPLATES = (
    "a {}",
    "a photo of a {}",
    "a picture of a {}",
    "this is a {}",
    "the photo shows a gray {}",
    "a small picture of a {} for sale",
    "one {} in the shop",
    "here is a {} on black",
    "an image of the {}",
    "a {} that is for sale",
)
TEST_TEMPLATES = (
    "the picture shows a {}",
    "this is a photo of the {}",
    "here is an image of one {} for sale",
    "a gray {} in the photo",
)
SPECIAL = ("<pad>", "<eos>", "<unk>")
LENGTH = 16
SIZE = {"hidden_size": 64, "num_layers": 4, "mlp_dim": 128, "num_heads": 4}
IMAGE = {"patch_size": 4, "classifier": "gap", **SIZE}


def captions_of(labels, seed=0):
    """Returns a caption for each label, drawn from the templates and the names of the class."""
    random = np.random.default_rng(seed)
    templates = random.integers(len(TEMPLATES), size=len(labels))
    names = random.random(len(labels))
    return [
        TEMPLATES[template].format(NAMES[label][int(draw * len(NAMES[label]))])
        for template, draw, label in zip(templates, names, labels)
    ]


def write_tokenizer(path):
    """Writes a `tokenizer.json` that maps each word of the training captions to an id.

    Its special tokens are those of SigLIP 2.
    """
    texts = [*TEMPLATES, *(name for names in NAMES for name in names)]
    words = sorted({word for text in texts for word in text.replace("{}", "").split()})
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *words])}
    fields = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": name, "special": True, **fields} for i, name in enumerate(SPECIAL)
        ],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    Path(path).write_text(json.dumps(content))


def captioned(split, *, path=""):
    """Loads a split of Fashion-MNIST with captions instead of labels; a source of `data`."""
    source = data.load_split("idx", split, path=path)
    captions = tf.constant(captions_of(source.labels, seed=int(split.startswith("test"))))

    def read(index):
        return {"image": source.read(index)["image"], "caption": captions[index]}

    return data.Source(
        read,
        source.num_examples,
        (),
        source.max_value,
        options=source.options,
        checksum=source.checksum,
        stored=source.stored,
    )


def config_of(**changes):
    """Returns the config that both trainings share."""
    fields = {
        "batch_size": 200,
        "total_steps": FLAGS.steps,
        "steps_per_call": 10,
        "clip_norm": 1.0,
        "optimizer": {"name": "adamw", "weight_decay": 0.05, "decay_mask": "kernels"},
        "schedule": {"decay": "cosine", "base": 2e-3, "warmup_steps": FLAGS.steps // 10},
    }
    fields["data"] = data.defaults(
        train_split=FLAGS.train_split,
        path=FLAGS.data,
        channels=1,
        shift=2,
        flip="on",
        train_crop="none",
        **changes.pop("data"),
    )
    return ConfigDict(recipes.defaults(**{**fields, **changes}))


def train(config, workdir):
    return training.run(config, training.Workdir(workdir, config.to_dict()))


def zero_shot_accuracy(model, inputs, templates):
    """Returns the accuracy of the classifier with the first name of each class."""
    classifier = keras_vit.zero_shot(model, [names[0] for names in NAMES], templates)
    return evaluation.evaluate(classifier, ["top1"], inputs)["top1/accuracy"]


def captions_config(tokenizer):
    """Returns the config of the training on captions."""
    config = config_of(
        data={
            "name": "fashion_captions",
            "tokenizer": str(tokenizer),
            "text_length": LENGTH,
        },
        task="image_text",
        loss=FLAGS.loss,
        model={
            **IMAGE,
            "text": {**SIZE, "num_layers": 2, "vocabulary_size": 0},
            "bias": -5.0 if FLAGS.loss == "sigmoid" else 0.0,
        },
    )
    config.optimizer.no_decay = "similarity"  # the layer of the scale and the bias
    return config


def main(_):
    logging.set_verbosity(logging.ERROR)
    output = Path(FLAGS.output)
    output.mkdir(parents=True, exist_ok=True)
    data.SOURCES["fashion_captions"] = captioned
    write_tokenizer(output / "tokenizer.json")
    supervised = train(
        config_of(data={"name": "idx"}, model={"input_shape": (28, 28, 1), **IMAGE}),
        output / "labels",
    )
    pair = train(captions_config(output / "tokenizer.json"), output / FLAGS.loss)
    results = {
        "steps": FLAGS.steps,
        "loss": FLAGS.loss,
        "supervised accuracy": supervised.metrics["test/accuracy"],
    }
    for name, templates in (("new", TEST_TEMPLATES), ("training", TEMPLATES)):
        accuracy = zero_shot_accuracy(pair.model, supervised.inputs, templates)
        results[f"zero-shot accuracy, {name} templates"] = accuracy
    files.write_json(output / f"results_{FLAGS.loss}.json", results)
    for name, value in results.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    flags.DEFINE_string("data", fashion_data.FOLDER, "Folder of the four IDX files.")
    flags.DEFINE_string("output", "fashion_captions", "Folder to write to, and to resume from.")
    flags.DEFINE_string("train_split", "train", "Training images, such as train[:2000].")
    flags.DEFINE_integer("steps", 900, "Number of steps of each training.")
    flags.DEFINE_enum("loss", "softmax", ["softmax", "sigmoid"], "Loss of the two towers.")
    app.run(main)
