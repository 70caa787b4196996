"""Trains a model on the available devices (TPU, GPUs or CPU), exports it, and predicts test images
with the export.

    keras-vit train
    keras-vit train --config=digits --workdir=runs/mine --config.seed=1
    keras-vit train --config=finetune:ViT-B/16,cifar10

The same command resumes a run that was stopped.
"""

import functools
import os
import re

import numpy as np
from absl import flags

from keras_vit import evaluation, export, plots, tasks, terminal, training
from keras_vit.commands import command_line
from keras_vit.evaluation.collecting import reuse_compiled
from keras_vit.evaluation.plots import predictions
from keras_vit.evaluation.samples import read_test_examples, sample_indices
from keras_vit.export.comparison import saved_model_probabilities
from keras_vit.export.dense_signatures import predicts_of
from keras_vit.plots import to_pictures
from keras_vit.tasks.patch_sizes import patch_size_rows
from keras_vit.training import preemption
from keras_vit.training.plots import accuracy_against_cost, training_curve
from keras_vit.training.progress import format_metrics, metrics_of_test
from keras_vit_cli import START

FLAGS = flags.FLAGS


def define_flags():
    command_line.define_config()
    flags.DEFINE_string("workdir", "", "Folder of the run; runs/CONFIG if not given.")
    flags.DEFINE_bool(
        "change",
        False,
        "Continue from the last checkpoint with a changed config or test set; see changes.json.",
    )
    flags.DEFINE_string("tracker", "", "Also sends the metrics to mlflow or wandb.")


def main():
    config = FLAGS.config
    path = FLAGS.workdir or f"runs/{command_line.run_name()}"
    workdir = training.Workdir(path, config.to_dict(), change=FLAGS.change)
    # If the run is already finished, only print its results again.
    if results := workdir.results():
        metrics = metrics_of_test(results)
        metrics = {name: value for name, value in metrics.items() if not name.endswith("examples")}
        print(f"This run is done: {format_metrics(metrics)}. Everything is in {workdir.path}.")
        return
    task = tasks.get(config)
    engine = training.choose_engine(config)
    workdir.is_chief = engine.host_index == 0
    options = task.export_options()
    evaluators = evaluation.get(
        config.evals, config.data.get("max_bad_share", 0.01), run=config.data.to_dict()
    )
    check = None if options is None else functools.partial(check_export, options)
    with workdir.lock():
        with reuse_compiled():
            run = training.run(
                config,
                workdir,
                task=task,
                evaluators=evaluators,
                engine=engine,
                check=check,
                start=START,
                tracker=FLAGS.tracker,
            )
        if workdir.is_chief:
            finish(config, options, workdir, run)
    # The other hosts wait until process 0 has exported, because process 0 would otherwise log that
    # they crashed.
    engine.gather_hosts([0])


def check_export(options, model, inputs):
    """Raises a `ValueError` if the model cannot be exported, before it is trained."""
    export.check(model, class_names=inputs.test.class_names, **options)
    if "serving_default" not in export.default_signatures(model):
        reason = f"image files do not have {model.input_shape[-1]} channels"
        print(f"the export will have only the signature `tensor`, because {reason}")


def finish(config, options, workdir, run):
    """Exports a trained model, writes its results and draws plots."""
    with preemption.raise_on_stop_signals("the export"):
        version = None if options is None else export_model(config, options, workdir, run)
        workdir.write_results(run.metrics)  # marks the run as done, even if a plot fails
    tables = [workdir.path / f"{name}.csv" for name in ("metrics", "evaluations")]
    draw(
        workdir.path / "curve.png",
        lambda path: training_curve(path, *map(training.read_metrics, tables)),
    )
    if config.patch_sizes and "test/accuracy" in run.metrics:
        rows = patch_size_rows(run.model, config.patch_sizes, run.metrics)
        print("patch size  tokens  multiply-accumulates  accuracy")
        for size, tokens, cost, accuracy in map(dict.values, rows):
            print(f"{size:10}  {tokens:6}  {cost:20,}  {100 * accuracy:6.2f} %")
        draw(
            workdir.path / "patch_sizes.png",
            lambda path: accuracy_against_cost(path, {str(workdir.path): rows}),
        )
    if version is not None and not predicts_of(run.model):
        draw(workdir.path / "predictions.png", lambda path: predict(version, run.inputs, path))
    print(f"Everything is in {workdir.path}.")


def export_model(config, options, workdir, run):
    """Exports the model of a run, unless the newest version already contains it.

    Returns the path of the version, or None if the weights or the test loss are not finite.
    """
    values = [run.metrics["test/loss"], *run.model.get_weights()]
    if not all(np.isfinite(value).all() for value in values):
        print("the model is not exported, because its weights or its test loss are not finite")
        return None
    names = run.inputs.test.class_names
    newest = export.newest_version(workdir.export)
    if newest and export.has_model(newest, run.model, names):
        print(f"{newest} already contains this model and is not changed")
        return newest
    details = {"class_names": names, "recipe": config.to_dict(), "metrics": run.metrics, **options}
    name = re.sub(r"[^\w.-]", "_", os.path.basename(str(workdir.path)))
    version = export.saved_model(run.model, str(workdir.export), name=name, **details)
    print(f"exported to {version}")
    return version


def predict(version, inputs, picture, number=32):
    """Predicts test images with the exported model, prints a few predictions, and draws up to
    `number` of them."""
    images, labels, file_names = read_test_examples(inputs, sample_indices(inputs, number))
    probabilities = saved_model_probabilities(version, images)
    names = inputs.test.class_names
    # If an image has several labels, show the one with the highest probability.
    right = np.where(labels > 0, probabilities, -1).argmax(-1)
    for row in np.unique(np.linspace(0, len(right) - 1, 5).astype(int)):
        best = np.argsort(-probabilities[row])[:3]
        predicted = ", ".join(f"{names[i]} {100 * probabilities[row, i]:.1f} %" for i in best)
        print(f"image of {names[right[row]]}: {predicted}")
    pictures = to_pictures(images, inputs.model_preprocessing())
    predictions(picture, pictures, right, probabilities, names, names=file_names)


def draw(picture, function):
    """Draws the file `picture`, which may be remote, with `function(path)`; prints any error."""
    try:
        plots.draw(picture, function)
        print(f"drew {picture}")
    except Exception as error:
        print(f"{picture} was not drawn: {terminal.first_line(error)}")
