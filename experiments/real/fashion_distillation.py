"""Measures what distillation gives a small Vision Transformer on Fashion-MNIST.

    python experiments/real/fashion_distillation.py --output=distillation

The teacher is a BiT ResNet at 20 pixels, and the student is a Vision Transformer with patches of 7
pixels at 28 pixels. With "all" labels, both learn from 60,000 images. With "1000" labels, the
teacher learns from 1,000 images, which each seed draws anew; the distilled student sees these
images and the 59,000 others without labels, and the other student sees only the 1,000. Both
students take the same number of steps with the same settings. Accuracy is measured on the 10,000
test images.

Debian's package dataset-fashion-mnist has the images. Each command adds the missing rows to
table.csv in the output folder and prints a table. A command that trains a teacher and a student
also times the inference of both in turns, on the machine's CPU.
"""

import statistics
import time
from pathlib import Path

import accuracy_table
import fashion_data
import numpy as np
import tensorflow as tf
from absl import app, flags, logging

from keras_vit import data, training
from keras_vit.configs import fashion
from keras_vit.evaluation import frozen

FLAGS = flags.FLAGS
COLUMNS = {"labels": str, "model": str, "seed": int}
LABELS = ("1000", "all")
MODELS = ("teacher", "student alone", "student distilled")
TEACHER = {"architecture": "BiTResNet", "model": {"depth": 8}}
STUDENT = {
    "architecture": "VisionTransformer",
    "model": {
        "patch_size": 7,
        "num_layers": 4,
        "hidden_size": 64,
        "mlp_dim": 128,
        "num_heads": 2,
    },
}
# Batch size and steps of each run, short enough for three seeds on one busy core.
STEPS = {("teacher", "all"): (64, 800), ("teacher", "1000"): (64, 300)}
STUDENT_STEPS = (128, 1000)
LABEL_WEIGHT = 0.5
TEMPERATURE = 2.0


def partly_labeled(split, *, path="", labeled=0, split_seed=0):
    """Loads IDX files of which only `labeled` training images keep their label; 0 for all."""
    whole = data.load_split("idx", split, path=path)
    keeps = np.full(whole.num_examples, not labeled or split != "train", "int64")
    if not keeps.all():
        keeps[drawn(whole.labels, labeled, split_seed)] = 1
    keeps = tf.constant(keeps)

    def read(index):
        example = whole.read(index)
        return {"image": example["image"], "label": example["label"][None][: keeps[index]]}

    return data.Source(read, whole.num_examples, whole.class_names, checksum=whole.checksum)


def drawn(labels, count, seed):
    """Returns the indices of `count` training images, with equally many of each class."""
    return frozen.draw_shots(labels, count // fashion_data.CLASSES, fashion_data.CLASSES, seed)


def config_of(model, labels, seed, teacher, folder):
    """Returns the config of one run.

    Args:
        model: a member of `MODELS`.
        labels: "all", or the number of training images with a label, as text.
        seed: seed of the run and of the drawn labels.
        teacher: workdir of the teacher, for "student distilled".
        folder: folder of the four IDX files.
    """
    config = fashion.get_config()
    fields = TEACHER if model == "teacher" else STUDENT
    config.update(fields)
    config.model = fields["model"]  # without the other fields of the model in `fashion`
    config.seed = seed
    config.total_epochs = 0.0
    config.batch_size, config.total_steps = STEPS.get((model, labels), STUDENT_STEPS)
    config.schedule.warmup_steps = config.total_steps // 10
    config.checkpoint_every_steps = 0
    size = 20 if model == "teacher" else 28  # height and width of the images in pixels
    config.data.update(path=str(folder), image_size=size, shift=size // 14, label_smoothing=0.0)
    if model == "student distilled":
        config.task = "distillation"
        config.teacher = str(teacher)
        config.distillation.update(label_weight=LABEL_WEIGHT, temperature=TEMPERATURE)
        changes = {
            "name": "partly_labeled",
            "labeled": 0 if labels == "all" else int(labels),
            "split_seed": seed,
        }
        config.data = data.defaults(**{**config.data.to_dict(), **changes})
    return config


def write_subset(folder, images, labels, tests, count, seed):
    """Writes the drawn training images and all test images as IDX files."""
    indices = drawn(labels, count, seed)
    fashion_data.write(folder, "train", images[indices], labels[indices])
    fashion_data.write(folder, "t10k", *tests)
    return folder


def images_per_second(models, batch_size=64, rounds=15):
    """Returns the median speed of each model's inference in float32, measured in turns."""
    seconds = {name: [] for name in models}
    functions = {}
    for name, model in models.items():
        images = tf.zeros((batch_size, *model.image_shape))
        function = tf.function(lambda x, model=model: model(x, training=False))
        function(images)
        functions[name] = function, images
    for _ in range(rounds):
        for name, (function, images) in functions.items():
            start = time.perf_counter()
            function(images)
            seconds[name].append(time.perf_counter() - start)
    return {name: batch_size / statistics.median(values) for name, values in seconds.items()}


def print_table(rows):
    print("| labels | " + " | ".join(MODELS) + " |")
    print("|---" * (len(MODELS) + 1) + "|")
    for labels in LABELS:
        cells = []
        for model in MODELS:
            values = [value for key, value in rows.items() if key[:2] == (labels, model)]
            cells.append(accuracy_table.span(values))
        print(f"| {labels} | " + " | ".join(cells) + " |")


def main(_):
    logging.set_verbosity(logging.ERROR)
    data.SOURCES["partly_labeled"] = partly_labeled
    output = Path(FLAGS.output)
    output.mkdir(parents=True, exist_ok=True)
    images, labels = fashion_data.read(FLAGS.data, "train")
    tests = fashion_data.read(FLAGS.data, "t10k")
    rows = accuracy_table.read(output / "table.csv", COLUMNS)
    trained = {}
    for seed in map(int, FLAGS.seeds):
        for count in LABELS:
            # One teacher learns from all images; each seed has its own teacher for 1,000 labels.
            teacher_seed = 0 if count == "all" else seed
            teacher = output / f"teacher-{count}-{teacher_seed}"
            for model in MODELS:
                run_seed = teacher_seed if model == "teacher" else seed
                key = count, model, run_seed
                if key in rows:
                    continue
                folder = FLAGS.data
                if count != "all" and model != "student distilled":
                    folder = output / f"images-{count}-{seed}"
                    write_subset(folder, images, labels, tests, int(count), seed)
                config = config_of(model, count, run_seed, teacher, folder)
                workdir = output / f"{model.replace(' ', '-')}-{count}-{run_seed}"
                result = training.run(config, training.Workdir(workdir, config.to_dict()))
                trained[model.split()[0]] = result.model
                rows[key] = result.metrics["test/accuracy"]
                accuracy_table.write(output / "table.csv", COLUMNS, rows)
                print(f"{', '.join(map(str, key))}: {rows[key]:.4f}", flush=True)
    print_table(rows)
    if len(trained) == 2:
        speeds = images_per_second(trained)
        print(", ".join(f"{name}: {speed:,.0f} images/s" for name, speed in speeds.items()))


if __name__ == "__main__":
    flags.DEFINE_string("data", fashion_data.FOLDER, "Folder of the four IDX files.")
    flags.DEFINE_string("output", "distillation", "Folder to write to, and to resume from.")
    flags.DEFINE_list("seeds", ["0", "1", "2"], "Seeds of the runs and of the drawn labels.")
    app.run(main)
