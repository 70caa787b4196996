"""Trains a Vision Transformer on whatever is there (TPU, GPUs, CPU), exports it and asks it.

python experiments/run_tpu.py
python experiments/run_tpu.py --config=experiments/configs/digits.py --workdir=runs/mine --config.seed=1
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides TensorFlow's start-up messages; must precede its import

import command_line
import numpy as np
import tensorflow as tf
from absl import flags

from keras_vit import data, export, training
from keras_vit.inspection import plots

HERE = Path(__file__).parent
CONFIG = command_line.define_config(HERE / "configs/digits.py")
WORKDIR = flags.DEFINE_string("workdir", "", "Folder of the run; runs/<name of the config file> if not given.")


def main(_):
    config = CONFIG.value
    workdir = training.Workdir(WORKDIR.value or f"runs/{command_line.run_name()}", config.to_dict())
    results = workdir.results()
    if results:
        print(f"This run is done: {100 * results['test/accuracy']:.2f} % right. Everything is in {workdir.path}.")
        return
    try:
        model, results = training.run(config, workdir)
    except training.Interrupted as interrupted:
        print(interrupted)
        sys.exit(training.EXIT_CODE)
    if not training.is_chief():
        return
    tables = (training.read_metrics(workdir.path / name) for name in ("metrics.csv", "evaluations.csv"))
    draw(workdir.path / "curve.png", plots.training_curve, *tables)
    made = data.from_config(config.data, batch_size=32, seed=config.seed)
    version = workdir.export / "1"
    if tf.io.gfile.exists(str(version)):
        print(f"{version} was exported before and stays as it is")
    else:
        export.saved_model(
            model,
            str(workdir.export),
            version=1,
            name=re.sub(r"[^\w.-]", "_", os.path.basename(str(workdir.path))),
            class_names=made.test.class_names,
            activation=config.loss,
            rounding=config.data.rounding,
            exif=config.data.exif,
            recipe=config.to_dict(),
            metrics=results,
        )
        print(f"exported to {version}")
    ask(version, made, workdir.path / "predictions.png")
    workdir.write_results(results)
    print(f"Everything is in {workdir.path}.")


def ask(version, made, picture):
    """Asks the exported model, in a process of its own, about the first test images; prints and draws its answers."""
    images, labels, _ = (array.numpy() for array in next(iter(made.eval_batches())))
    labels = labels.argmax(-1)
    with tempfile.TemporaryDirectory() as folder:
        questions, answers = f"{folder}/images.npy", f"{folder}/answers.npy"
        np.save(questions, images)
        command = [sys.executable, str(HERE / "predict_saved_model.py"), str(version), questions, answers]
        subprocess.run(command, check=True)
        probabilities = np.load(answers, allow_pickle=False)
    names = made.test.class_names
    for label, row in zip(labels[:5], probabilities):
        best = np.argsort(-row)[:3]
        print(f"image of {names[label]}: " + ", ".join(f"{names[i]} {100 * row[i]:.1f} %" for i in best))
    draw(picture, plots.predictions, images, labels, probabilities, names)


def draw(picture, function, *arguments):
    """StepSeeds a picture, if matplotlib is there; the workdir may be on another machine."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            function(f"{folder}/picture.png", *arguments)
            tf.io.gfile.copy(f"{folder}/picture.png", str(picture), overwrite=True)
        print(f"drew {picture}")
    except ImportError as error:
        print(f"{picture} was not drawn: {error}")


if __name__ == "__main__":
    command_line.run(main)
