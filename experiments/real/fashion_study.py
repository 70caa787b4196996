"""Compares a pre-trained DINOv2 ViT-S/14 with models trained from scratch, on subsets of
Fashion-MNIST.

    python experiments/real/fashion_study.py --model=dinov2_small --output=fashion_study
    python experiments/real/fashion_study.py --output=fashion_study --methods=hybrid,vit,bit \\
        --counts=10,100 --seeds=0
    python experiments/real/fashion_study.py --output=search --methods=vit --counts=100 \\
        --rate=3e-3 --held_out

`extract_dinov2.py` writes the model, and Debian's package dataset-fashion-mnist has the images.
Each seed draws its own training images, which all methods share. Accuracy is measured on all 10,000
test images. With `--held_out`, the accuracy of fine-tuned models and of models trained from scratch
is measured on training images that were not drawn. Each command adds the missing rows to table.csv
in the output folder, draws picture.png and prints a table. Features are computed once, at 112
pixels in float32, and stored in train.npy and test.npy.
"""

import itertools
import statistics

import accuracy_table
import dinov2
import fashion_data
import numpy as np
from absl import app, flags, logging
from output_folder import open_output

import keras_vit
from keras_vit import training
from keras_vit.configs import fashion, small_data
from keras_vit.evaluation import frozen
from keras_vit.plots import figure_class

FLAGS = flags.FLAGS
COLUMNS = {"method": str, "images per class": int, "seed": int}
WIDTH = 384  # size of a feature vector
FROZEN = ("linear probe", "few-shot", "20 neighbors")
_VIT_SIZES = {"num_layers": 4, "hidden_size": 128, "mlp_dim": 256, "num_heads": 4}
SCRATCH = {  # {method: (architecture, image size, fields of the model)}
    "hybrid": (
        "VisionTransformer",
        40,
        {"stem": "resnet", "resnet_blocks": (1,), "patch_size": 2, **_VIT_SIZES},
    ),
    "vit": ("VisionTransformer", 28, {"patch_size": 4, **_VIT_SIZES}),
    "bit": ("BiTResNet", 48, {"depth": 8}),  # as in configs/fashion.py
}
FINE_TUNED = "fine-tuned"
DINOV2 = {"architecture": "DINOv2-S/14", "model": {"stochastic_depth": 0.1}}
METHODS = (*FROZEN, FINE_TUNED, *SCRATCH)
# {images per class: (batch size, steps)}. Other numbers use the epochs of configs/fashion.py and up
# to its batch size.
STEPS = {10: (50, 200), 100: (64, 500), 1000: (128, 500)}
FINE_TUNING_STEPS = {10: (32, 50), 100: (32, 150), 1000: (32, 600)}
RATES = {"hybrid": 1e-3, "vit": 3e-3, "bit": 3e-3, FINE_TUNED: 3e-4}
HELD_OUT = 100  # maximum number of held-out images per class with --held_out


def features_of(model, images):
    """Returns class tokens `(N, 384)` of images, uint8 `(N, 28, 28)`."""
    return keras_vit.features(
        model, dinov2.normalized(fashion_data.enlarged(images)), batch_size=50
    )


def read_features(path, images, indices, weights):
    """Returns the features of the images at `indices`; computes the features that the file
    lacks."""
    if not path.exists():
        np.save(path, np.full((len(images), WIDTH), np.nan, "float32"))
    stored = np.load(path, mmap_mode="r+")
    missing = indices[np.isnan(stored[indices, -1])]
    if len(missing):
        shape = (fashion_data.SIZE, fashion_data.SIZE, 3)
        model = keras_vit.from_pretrained(weights, input_shape=shape, include_top=False)
    for start in range(0, len(missing), 1000):
        rows = missing[start : start + 1000]
        stored[rows] = features_of(model, images[rows])
        stored.flush()
        print(
            f"{path.name}: {min(start + 1000, len(missing)):,} of {len(missing):,} images",
            flush=True,
        )
    return stored[indices]


def frozen_accuracy(method, features, labels, test_features, test_labels):
    if method == "linear probe":
        return frozen.fit_and_score(features, labels, test_features, test_labels)["accuracy"]
    if method == "few-shot":
        scores = frozen.ridge_scores(features, labels, test_features, fashion_data.CLASSES)
        classes = scores.argmax(1)
    else:
        classes = frozen.nearest_classes(features, labels, test_features, fashion_data.CLASSES)
    return float(np.mean(classes == test_labels))


def config_of(method, count, weights="", size=fashion_data.SIZE, rate=0.0):
    """Returns the config for fine-tuning or for training from scratch.

    Fine-tuning uses the optimizer of configs/small_data.py.

    Args:
        method: "fine-tuned" or a key of `SCRATCH`.
        count: images per class.
        weights: path of the weights to fine-tune.
        size: image size for fine-tuning, in pixels.
        rate: peak learning rate; 0 for the method's rate in `RATES`.
    """
    config = fashion.get_config()
    steps = FINE_TUNING_STEPS if method == FINE_TUNED else STEPS
    if method == FINE_TUNED:
        tuning = small_data.get_config("DINOv2-S/14,idx")
        config.update(DINOV2)
        config.model = DINOV2["model"]
        config.optimizer = tuning.optimizer
        config.weights = weights
        config.steps_per_call = 5
        config.data.update(image_size=size, channels=3, shift=size // 14)
    else:
        config.architecture, config.data.image_size, config.model = SCRATCH[method]
    if count in steps:
        config.batch_size, config.total_steps = steps[count]
        config.total_epochs = 0.0
        config.schedule.warmup_steps = config.total_steps // 10
    config.batch_size = min(config.batch_size, 5 * count)
    config.schedule.base = rate or RATES[method]
    return config


def trained_accuracy(config, folder, workdir, seed):
    """Trains a model on the IDX files in a folder and returns its test accuracy."""
    config.seed = seed
    config.data.path = str(folder)
    result = training.run(config, training.Workdir(workdir, config.to_dict()))
    return result.metrics["test/accuracy"]


def held_out_indices(labels, drawn, count, seed):
    """Returns the indices of up to `HELD_OUT` images per class that were not drawn for training."""
    return np.setdiff1d(
        frozen.draw_shots(labels, count + HELD_OUT, fashion_data.CLASSES, seed), drawn
    )


def by_method(rows):
    """Returns `{method: {images per class: [accuracy of each seed]}}`, in the order of
    `METHODS`."""

    def place(row):
        (method, count, seed), _ = row
        return METHODS.index(method), count, seed

    table = {}
    for (method, count, _), accuracy in sorted(rows.items(), key=place):
        table.setdefault(method, {}).setdefault(count, []).append(accuracy)
    return table


def label_of(method):
    return f"from scratch: {method}" if method in SCRATCH else f"DINOv2: {method}"


def draw(path, table):
    figure = figure_class()(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for method, points in table.items():
        means = [statistics.fmean(values) for values in points.values()]
        below = [mean - min(values) for mean, values in zip(means, points.values())]
        above = [max(values) - mean for mean, values in zip(means, points.values())]
        style = "s--" if method in SCRATCH else "o-"
        axes.errorbar(
            list(points), means, (below, above), fmt=style, capsize=3, label=label_of(method)
        )
    axes.set(
        xscale="log",
        xlabel="training images per class",
        ylabel="accuracy",
        title="Fashion-MNIST",
    )
    counts = sorted({count for points in table.values() for count in points})
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=100)


def print_table(table):
    counts = sorted({count for points in table.values() for count in points})
    print("| | " + " | ".join(f"{count:,}" for count in counts) + " |")
    print("|---" * (len(counts) + 1) + "|")
    for method, points in table.items():
        cells = [accuracy_table.span(points.get(count)) for count in counts]
        print(f"| {label_of(method)} | " + " | ".join(cells) + " |")


def measured_accuracy(method, count, seed, train, test, output):
    """Returns the accuracy of a method that learns from `count` images of each class.

    Args:
        method: a member of `METHODS`.
        count: number of training images per class.
        seed: seed of the draw and of the training.
        train, test: the images and labels of a split.
        output: folder for features and runs.
    """
    images, labels = train
    test_images, test_labels = test
    drawn = frozen.draw_shots(labels, count, fashion_data.CLASSES, seed)
    if len(drawn) < count * fashion_data.CLASSES:
        raise ValueError(
            f"--counts must not exceed the training images of a class. Received: --counts={count}"
        )
    if method in FROZEN:
        all_indices = np.arange(len(test_images))
        test_features = read_features(output / "test.npy", test_images, all_indices, FLAGS.model)
        features = read_features(output / "train.npy", images, drawn, FLAGS.model)
        return frozen_accuracy(method, features, labels[drawn], test_features, test_labels)
    if FLAGS.held_out:
        others = held_out_indices(labels, drawn, count, seed)
        test = images[others], labels[others]
    folder = output / f"{count}-{seed}"
    fashion_data.write(folder, "train", images[drawn], labels[drawn])
    fashion_data.write(folder, "t10k", *test)
    config = config_of(method, count, FLAGS.model, FLAGS.size, FLAGS.rate)
    return trained_accuracy(config, folder, folder / method, seed)


def main(_):
    logging.set_verbosity(logging.ERROR)
    if any(method not in METHODS for method in FLAGS.methods):
        raise ValueError(
            f"--methods must be among {', '.join(METHODS)}. Received: "
            f"--methods={','.join(FLAGS.methods)}"
        )
    if FLAGS.held_out and set(FLAGS.methods) & set(FROZEN):
        raise ValueError(f"--held_out does not apply to the --methods {', '.join(FROZEN)}")
    if set(FLAGS.methods) & {*FROZEN, FINE_TUNED}:
        dinov2.check_model(FLAGS.model)
    train, test = (fashion_data.read(FLAGS.data, split) for split in ("train", "t10k"))
    output = open_output(FLAGS, "rate", "size", "held_out", "model")
    rows = accuracy_table.read(output / "table.csv", COLUMNS)
    for count, seed, method in itertools.product(
        map(int, FLAGS.counts), map(int, FLAGS.seeds), FLAGS.methods
    ):
        if (method, count, seed) in rows:
            continue
        accuracy = measured_accuracy(method, count, seed, train, test, output)
        rows[method, count, seed] = accuracy
        accuracy_table.write(output / "table.csv", COLUMNS, rows)
        print(f"{method}, {count} images per class, seed {seed}: {accuracy:.4f}", flush=True)
    draw(output / "picture.png", by_method(rows))
    print_table(by_method(rows))


if __name__ == "__main__":
    flags.DEFINE_string("model", "dinov2_small", "Folder that extract_dinov2.py wrote.")
    flags.DEFINE_string("data", fashion_data.FOLDER, "Folder of the four IDX files.")
    flags.DEFINE_string("output", "fashion_study", "Folder to write to, and to resume from.")
    flags.DEFINE_list("methods", list(FROZEN), f"Methods to run, among {', '.join(METHODS)}.")
    flags.DEFINE_list("counts", ["10", "100", "1000", "6000"], "Training images per class.")
    flags.DEFINE_list("seeds", ["0", "1", "2"], "Seeds of the draws and of the training.")
    flags.DEFINE_float("rate", 0.0, "Peak learning rate; 0 uses the study's rate for each method.")
    flags.DEFINE_integer(
        "size", 56, "Height and width of the images for fine-tuning, in pixels, a multiple of 14."
    )
    flags.DEFINE_bool(
        "held_out",
        False,
        "Measure accuracy on training images that were not drawn, to choose a recipe.",
    )
    app.run(main)
