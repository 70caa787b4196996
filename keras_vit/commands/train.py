"""Trains a Vision Transformer on the devices that are there (TPU, GPUs, CPU), exports it, and predicts with the export.

keras-vit train
keras-vit train --config=digits --workdir=runs/mine --config.seed=1
keras-vit train --config=finetune:ViT-B/16,cifar10
"""

import os
import re
import shlex
import tempfile

import numpy as np
import tensorflow as tf
from absl import flags

from keras_vit import evaluation, export, families, files, tasks, training
from keras_vit.commands import command_line
from keras_vit.evaluation.collecting import load_run_inputs, spread_of_classes
from keras_vit.evaluation.plots import predictions
from keras_vit.plots import to_pictures
from keras_vit.training import preemption
from keras_vit.training.plots import training_curve
from keras_vit.training.progress import format_metrics
from keras_vit_cli import START

FLAGS = flags.FLAGS


def define_flags():
    command_line.define_config()
    flags.DEFINE_string("workdir", "", "Folder of the run; runs/<name of the config file> if not given.")
    flags.DEFINE_bool(
        "change", False, "Continue from the last checkpoint with another config; changes.json of the run records it."
    )


def main():
    config = FLAGS.config
    path = FLAGS.workdir or f"runs/{command_line.run_name()}"
    workdir = training.Workdir(path, config.to_dict(), change=FLAGS.change)
    results = workdir.results()
    if results:
        metrics = {name.removeprefix("test/"): value for name, value in results.items() if name.startswith("test/")}
        metrics = {name: value for name, value in metrics.items() if not name.endswith("examples")}
        print(f"This run is done: {format_metrics(metrics)}. Everything is in {workdir.path}.")
        draw_missing(config, workdir)
        print_next(config, workdir)
        return
    task = tasks.get(config)
    engine = training.choose_engine(config)
    workdir.is_chief = engine.host_index == 0
    with workdir.lock():
        train_and_export(config, task, workdir, engine)
    # The other hosts wait for the chief's export: it would log that they have crashed.
    engine.gather_hosts([0])


def train_and_export(config, task, workdir, engine):
    """Trains, exports and draws."""
    options = task.export_options()

    def check(model, inputs):
        if options is not None:
            export.check(model, class_names=inputs.test.class_names, **options)
            if "serving_default" not in export.default_signatures(model):
                channels = model.input_shape[-1]
                print(f"the export will have the signature `tensor` alone: image files do not have {channels} channels")

    evaluators = evaluation.get(config.evals, config.data.max_bad_share)
    run = training.run(config, workdir, task=task, evaluators=evaluators, engine=engine, check=check, start=START)
    if workdir.is_chief:
        with preemption.raise_on_stop_signals("the export"):
            finish(config, options, workdir, run)


def finish(config, options, workdir, run):
    """Exports and writes the results of a finished training, then its pictures."""
    version = None if options is None else export_model(config, options, workdir, run)
    workdir.write_results(run.metrics)
    draw_curve(workdir)
    if version is not None:
        draw(workdir.path / "predictions.png", lambda path: predict(version, run.inputs, path))
    print(f"Everything is in {workdir.path}.")
    print_next(config, workdir)


def print_next(config, workdir):
    """Prints the commands for the model of a run that is done."""
    if not export.newest_version(workdir.export):
        return
    model = shlex.quote(str(workdir.path))
    commands = [f"evaluate --model={model} --pages --output={model}/evaluation"]
    if not (families.is_bit(config.architecture) or config.data.max_patches):
        commands.append(f"inspect --model={model} --output={model}/inspection")
    commands += [f"predict --model={model} IMAGES...", f"demo --model={model}"]
    print("\n  keras-vit ".join(["Next:", *commands]))


def draw_missing(config, workdir):
    """Draws the pictures of a run that is done and was killed before it had them."""
    version = export.newest_version(workdir.export)
    names = ["curve.png"] + ["predictions.png"] * (version is not None)
    missing = [name for name in names if not files.exists(workdir.path / name)]
    if not missing or not workdir.is_chief:
        return
    with workdir.lock():
        if "curve.png" in missing:
            draw_curve(workdir)
        if "predictions.png" in missing:
            load = lambda: load_run_inputs(export.load(version), config.data.to_dict())  # noqa: E731
            draw(workdir.path / "predictions.png", lambda path: predict(version, load(), path))


def draw_curve(workdir):
    def curve(path):
        tables = (training.read_metrics(workdir.path / name) for name in ("metrics.csv", "evaluations.csv"))
        training_curve(path, *tables)

    draw(workdir.path / "curve.png", curve)


def export_model(config, options, workdir, run):
    """Exports the model of a run, unless the newest version has it; returns the version's path, None if its weights or
    outputs are not finite."""
    weights = run.model.get_weights()
    if not np.isfinite(run.metrics["test/loss"]) or not all(np.isfinite(weight).all() for weight in weights):
        print("the model is not exported: its weights or its test loss are not finite")
        return None
    names = run.inputs.test.class_names
    newest = export.newest_version(workdir.export)
    if newest and export.has_model(newest, run.model, names):
        print(f"{newest} was exported before and stays as it is")
        return newest
    version = export.saved_model(
        run.model,
        str(workdir.export),
        name=re.sub(r"[^\w.-]", "_", os.path.basename(str(workdir.path))),
        class_names=names,
        **options,
        recipe=config.to_dict(),
        metrics=run.metrics,
    )
    print(f"exported to {version}")
    return version


def predict(version, inputs, picture, number=32):
    """Predicts up to four times as many test images with the exported model; prints some, and draws a spread of classes
    and then the worst mistakes."""
    images, labels, files_of = spread_of_classes(inputs, 4 * number)
    signature = tf.saved_model.load(version).signatures["tensor"]
    parts = [tf.constant(images[i : i + number]) for i in range(0, len(images), number)]
    probabilities = np.concatenate([signature(images=part)["probabilities"].numpy() for part in parts])
    names = inputs.test.class_names
    for label, row in zip(labels[:5], probabilities):
        best = np.argsort(-row)[:3]
        right = " or ".join(names[i] for i in np.flatnonzero(label)) or "no class"
        print(f"image of {right}: " + ", ".join(f"{names[i]} {100 * row[i]:.1f} %" for i in best))
    # Of several right labels, the picture names the one that the model finds the most probable.
    most_probable = np.where(labels > 0, probabilities, -1).argmax(-1)
    rows = pick(probabilities, most_probable, number)
    pictures = to_pictures(images[rows], inputs.model_preprocessing())
    shown = pictures, most_probable[rows], probabilities[rows]
    predictions(picture, *shown, names, names=[files_of[row] for row in rows])


def pick(probabilities, labels, number):
    """The rows of `number` images: half of them a spread of classes, then the worst mistakes, then others."""
    margins = probabilities[np.arange(len(labels)), labels] - probabilities.max(-1)
    turns = [np.count_nonzero(labels[:row] == label) for row, label in enumerate(labels)]
    spread = np.argsort(turns, kind="stable").tolist()
    worst = [row for row in np.argsort(margins, kind="stable").tolist() if margins[row] < 0]
    first = spread[: number // 2]
    worst = [row for row in worst if row not in first][: number - len(first)]
    return list(dict.fromkeys([*first, *worst, *spread]))[:number]


def draw(picture, function):
    """Calls `function(path)` and copies the picture, whose folder may be remote; a failure does not end the run."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            function(f"{folder}/picture.png")
            files.copy(f"{folder}/picture.png", picture)
        print(f"drew {picture}")
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        print(f"{picture} was not drawn: {lines[0]}")
