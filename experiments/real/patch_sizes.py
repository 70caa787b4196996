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
SIZES = {"tiny": (2, 4, 8), "small": (2, 4, 7)}  # patch sizes


def config_of(steps, folder):
    """Returns the config, without the patch sizes."""
    config = recipes.defaults(
        recipe="patch sizes: ours",
        batch_size=32,
        total_steps=steps,
        clip_norm=1.0,
        checkpoint_every_steps=400,
        model={
            "num_layers": 2,
            "hidden_size": 48,
            "mlp_dim": 96,
            "num_heads": 2,
            "position_resampling": "bilinear_antialias",
            "class_token_position": False,
        },
        data=data.defaults(
            name="idx",
            path=folder,
            channels=1,
            image_size=28,
            shift=2,
            label_smoothing=0.1,
            train_crop="resize",
            flip="on",
        ),
        optimizer={"name": "adamw", "weight_decay": 0.1},
        schedule={"decay": "cosine", "base": 2e-3, "warmup_steps": steps // 10},
    )
    return ConfigDict(config)


def make_tiny(config):
    """Changes the config to a small model and a few steps on digits."""
    config.update(batch_size=8, total_steps=3, checkpoint_every_steps=0)
    config.model.update(num_layers=1, hidden_size=8, mlp_dim=16)
    config.data = data.defaults(name="digits", train_split="train[:32]", test_split="test[:32]")
    config.schedule.warmup_steps = 1


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
    config = config_of(FLAGS.steps, FLAGS.data)
    sizes = SIZES[FLAGS.scale]
    if FLAGS.scale == "tiny":
        make_tiny(config)
    output = Path(FLAGS.output)
    single = []
    for size in sizes:
        config.model.patch_size = size
        single += rows_of(config, (size,), output / f"patch{size}")
    config.model.patch_size = sizes[1]
    config.patch_sizes = sizes
    flexible = rows_of(config, sizes, output / "flexible")
    lines = {"one model": flexible, "a model for each size": single}
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
