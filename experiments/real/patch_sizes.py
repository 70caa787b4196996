"""Compares one model trained at several patch sizes with a model for each size, on Fashion-MNIST.

    python experiments/real/patch_sizes.py --output=patch_sizes
    python experiments/real/patch_sizes.py --scale=tiny --output=tiny  # a few steps on digits

Every run has the same number of steps, so the model with several sizes trains on each size in about
a third of its steps. Writes table.csv and picture.png to the output folder and prints the table. To
resume, run the same command again. The Debian package dataset-fashion-mnist contains the images.
"""

import csv
from pathlib import Path

import fashion_data
from absl import app, flags, logging
from ml_collections import ConfigDict

from keras_vit import data, files, recipes, training
from keras_vit.tasks.patch_sizes import patch_size_rows
from keras_vit.training.plots import accuracy_against_cost

FLAGS = flags.FLAGS
COLUMNS = ("patch size", "tokens", "multiply-accumulates", "accuracy")
ONE = "one model"
EACH = "a model for each size"


def config_of(scale, steps, folder):
    """Returns the config and the patch sizes. The config has the middle patch size."""
    tiny = scale == "tiny"
    sizes = (2, 4, 8) if tiny else (2, 4, 7)
    fashion = {
        "name": "idx",
        "path": folder,
        "channels": 1,
        "image_size": 28,
        "shift": 2,
        "label_smoothing": 0.1,
    }
    digits = {"name": "digits", "train_split": "train[:32]", "test_split": "test[:32]"}
    width = 8 if tiny else 48
    config = recipes.defaults(
        recipe="patch sizes: ours",
        batch_size=8 if tiny else 32,
        total_steps=3 if tiny else steps,
        clip_norm=1.0,
        checkpoint_every_steps=0 if tiny else 400,
        model={
            "patch_size": sizes[1],
            "num_layers": 1 if tiny else 2,
            "hidden_size": width,
            "mlp_dim": 2 * width,
            "num_heads": 2,
            "position_resampling": "bilinear_antialias",
            "class_token_position": False,
        },
        data=data.defaults(
            **(digits if tiny else {**fashion, "train_crop": "resize", "flip": "on"})
        ),
        optimizer={"name": "adamw", "weight_decay": 0.1},
        schedule={"decay": "cosine", "base": 2e-3, "warmup_steps": 1 if tiny else steps // 10},
    )
    return ConfigDict(config), sizes


def rows_of(config, sizes, folder):
    """Returns a row of results per patch size; trains the model first, unless the folder has the
    results."""
    workdir = training.Workdir(folder, config.to_dict())
    path = folder / "rows.json"
    if files.read_json(path) is None:
        result = training.run(config, workdir)
        files.write_json(path, patch_size_rows(result.model, sizes, result.metrics))
    return files.read_json(path)


def main(_):
    logging.set_verbosity(logging.ERROR)
    config, sizes = config_of(FLAGS.scale, FLAGS.steps, FLAGS.data)
    output = Path(FLAGS.output)
    single = []
    for size in sizes:
        config.model.patch_size = size
        single += rows_of(config, (size,), output / f"patch{size}")
    config.model.patch_size = sizes[1]
    config.patch_sizes = sizes
    lines = {ONE: rows_of(config, sizes, output / "flexible"), EACH: single}
    accuracy_against_cost(output / "picture.png", lines)
    with open(output / "table.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["model", *COLUMNS])
        table.writerows(
            [label, *map(row.get, COLUMNS)] for label, rows in lines.items() for row in rows
        )
    print((output / "table.csv").read_text(encoding="utf-8"))


if __name__ == "__main__":
    flags.DEFINE_string("data", fashion_data.FOLDER, "Folder of the four IDX files.")
    flags.DEFINE_enum("scale", "small", ["tiny", "small"], "Size of the runs.")
    flags.DEFINE_integer("steps", 5000, "Training steps of each run.", lower_bound=20)
    flags.DEFINE_string("output", "patch_sizes", "Folder to write to, and to resume from.")
    app.run(main)
