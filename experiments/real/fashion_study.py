"""Compares features of a trained DINOv2 ViT-S/14 with models trained from scratch, on parts of Fashion-MNIST.

    python experiments/real/fashion_study.py --model=dinov2_small --output=fashion_study
    python experiments/real/fashion_study.py --output=fashion_study --methods=hybrid,vit,bit --counts=10,100 --seeds=0

`extract_dinov2.py` writes the model, and Debian's package dataset-fashion-mnist has the images. Each seed draws its own
training images, the same ones for every method; all 10,000 test images count. Adds rows to table.csv in the output
folder, leaves out the rows that it has, draws picture.png and prints a table. The features are computed once, at 112
pixels and kept in features.npz.
"""

import csv
import importlib.util
import itertools
import statistics
from pathlib import Path

import fashion_data
import numpy as np
from absl import app, flags, logging

import keras_vit
from keras_vit import files, training
from keras_vit.evaluation import frozen
from keras_vit.plots import figure_class

FLAGS = flags.FLAGS
COLUMNS = ("method", "images per class", "seed", "accuracy")
FROZEN = ("linear probe", "few-shot", "20 neighbors")
_WIDTHS = {"num_layers": 4, "hidden_size": 128, "mlp_dim": 256, "num_heads": 4}
SCRATCH = {  # (architecture, image size, fields of the model)
    "hybrid": None,  # as configs/fashion.py has it
    "vit": ("VisionTransformer", 28, {"patch_size": 4, **_WIDTHS}),
    "bit": ("BiTResNet", 32, {"depth": 8}),
}
# Training steps by images per class; the last one is that of configs/fashion.py.
STEPS = {10: 300, 100: 800, 1000: 2000}


def features_of(images):
    """Returns class tokens `(N, 384)` of images, uint8 `(N, 28, 28)`."""
    size = fashion_data.SIZE
    model = keras_vit.from_pretrained(FLAGS.model, input_shape=(size, size, 3), include_top=False)
    parts = []
    for start in range(0, len(images), 1000):
        pictures = fashion_data.enlarged(images[start : start + 1000])
        parts.append(keras_vit.features(model, fashion_data.normalized(pictures), batch_size=50))
        print(f"features of {start + len(pictures):,} of {len(images):,} images", flush=True)
    return np.concatenate(parts)


def read_features(output, images, test_images):
    """Returns the features of training and test images, computed unless the output folder has them."""
    path = output / "features.npz"
    if not path.exists():
        np.savez(output / "partial.npz", train=features_of(images), test=features_of(test_images))
        (output / "partial.npz").rename(path)
    with np.load(path) as stored:
        return stored["train"], stored["test"]


def frozen_accuracy(method, features, labels, test_features, test_labels):
    if method == "linear probe":
        return frozen.fit_and_score(features, labels, test_features, test_labels)["accuracy"]
    if method == "few-shot":
        classes = frozen.ridge_scores(features, labels, test_features, fashion_data.CLASSES).argmax(1)
    else:
        classes = frozen.nearest_classes(features, labels, test_features, fashion_data.CLASSES)
    return float(np.mean(classes == test_labels))


def write_idx(folder, split, images, labels):
    folder.mkdir(parents=True, exist_ok=True)
    for kind, values in (("images", images), ("labels", labels.astype("uint8"))):
        header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
        (folder / f"{split}-{kind}-idx{values.ndim}-ubyte").write_bytes(header + values.tobytes())


def scratch_accuracy(method, folder, count, seed):
    """Trains a model on the IDX files in a folder, with the recipe of configs/fashion.py."""
    path = Path(keras_vit.__file__).with_name("configs") / "fashion.py"
    spec = importlib.util.spec_from_file_location("fashion_config", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config()
    config.seed, config.data.path = seed, str(folder)
    if SCRATCH[method]:
        config.architecture, config.data.image_size, config.model = SCRATCH[method]
    if count in STEPS:
        config.total_steps, config.total_epochs = STEPS[count], 0.0
        config.schedule.warmup_steps = STEPS[count] // 10
    config.batch_size = min(config.batch_size, 5 * count)
    result = training.run(config, training.Workdir(folder / method, config.to_dict()))
    return result.metrics["test/accuracy"]


def read_table(path):
    if not path.exists():
        return {}
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        return {(row["method"], int(row["images per class"]), int(row["seed"])): float(row["accuracy"]) for row in rows}


def write_table(path, rows):
    lines = [
        ",".join(COLUMNS),
        *(f"{method},{count},{seed},{value:.4f}" for (method, count, seed), value in rows.items()),
    ]
    with files.atomic_write(path) as file:
        file.write("\n".join([*lines, ""]))


def by_method(rows):
    """Returns `{method: {images per class: [accuracy of each seed]}}`."""
    table = {}
    for (method, count, _), accuracy in sorted(rows.items(), key=lambda row: row[0][1:]):
        table.setdefault(method, {}).setdefault(count, []).append(accuracy)
    return table


def draw(path, table):
    figure = figure_class()(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for method, points in table.items():
        means = [statistics.fmean(values) for values in points.values()]
        errors = [
            [mean - min(v) for mean, v in zip(means, points.values())],
            [max(v) - mean for mean, v in zip(means, points.values())],
        ]
        axes.errorbar(list(points), means, errors, fmt="o-", capsize=3, label=method)
    axes.set(xscale="log", xlabel="training images per class", ylabel="test accuracy", title="Fashion-MNIST")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=100)


def print_table(table):
    counts = sorted({count for points in table.values() for count in points})
    print("| | " + " | ".join(f"{count:,}" for count in counts) + " |\n" + "|---" * (len(counts) + 1) + "|")
    for method, points in table.items():
        cells = [
            " to ".join(dict.fromkeys(f"{f(points[n]):.3f}" for f in (min, max))) if n in points else "" for n in counts
        ]
        print(f"| {method} | " + " | ".join(cells) + " |")


def main(_):
    logging.set_verbosity(logging.ERROR)
    output = Path(FLAGS.output)
    output.mkdir(parents=True, exist_ok=True)
    if set(FLAGS.methods) & set(FROZEN) and not (output / "features.npz").exists():
        fashion_data.check_model(FLAGS.model)
    images, labels = fashion_data.read(FLAGS.data, "train")
    test_images, test_labels = fashion_data.read(FLAGS.data, "t10k")
    if any(method not in (*FROZEN, *SCRATCH) for method in FLAGS.methods):
        raise ValueError(f"--methods must be of {', '.join((*FROZEN, *SCRATCH))}. Received: {','.join(FLAGS.methods)}")
    rows = read_table(output / "table.csv")
    for count, seed, method in itertools.product(map(int, FLAGS.counts), map(int, FLAGS.seeds), FLAGS.methods):
        if (method, count, seed) in rows:
            continue
        drawn = frozen.draw_shots(labels, count, fashion_data.CLASSES, seed)
        if method in FROZEN:
            features, test_features = read_features(output, images, test_images)
            accuracy = frozen_accuracy(method, features[drawn], labels[drawn], test_features, test_labels)
        else:
            folder = output / f"{count}-{seed}"
            write_idx(folder, "train", images[drawn], labels[drawn])
            write_idx(folder, "t10k", test_images, test_labels)
            accuracy = scratch_accuracy(method, folder, count, seed)
        rows[method, count, seed] = accuracy
        write_table(output / "table.csv", rows)
        print(f"{method}, {count} images per class, seed {seed}: {accuracy:.4f}", flush=True)
    draw(output / "picture.png", by_method(rows))
    print_table(by_method(rows))


if __name__ == "__main__":
    flags.DEFINE_string("model", "dinov2_small", "Folder that extract_dinov2.py wrote.")
    flags.DEFINE_string("data", fashion_data.FOLDER, "Folder of the four IDX files.")
    flags.DEFINE_string("output", "fashion_study", "Folder to write to, and to resume from.")
    flags.DEFINE_list("methods", list(FROZEN), f"Some of {', '.join((*FROZEN, *SCRATCH))}.")
    flags.DEFINE_list("counts", ["10", "100", "1000", "6000"], "Training images per class.")
    flags.DEFINE_list("seeds", ["0", "1", "2"], "Seeds of the draws and of the training.")
    app.run(main)
