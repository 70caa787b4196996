"""Scores a Vision Transformer on VTAB-1k: fine-tunes it on 1,000 examples of each of 19 tasks.

    keras-vit vtab --variant=ViT_B16 --weights=imagenet21k --workdir=runs/vtab --data_path=/data/tfds
    keras-vit vtab --model=mine.keras --tasks=cifar100,svhn --workdir=runs/vtab

The same command resumes where it stopped. The accuracies, the means of the three groups and the mean of all tasks are
printed and written to `results.json`.
"""

import sys

from absl import flags

from keras_vit import files, training
from keras_vit.commands import command_line, shared_flags
from keras_vit.evaluation import vtab

FLAGS = flags.FLAGS


def define_flags():
    shared_flags.define_model()
    flags.DEFINE_list("tasks", list(vtab.TASKS), "The tasks.")
    flags.DEFINE_string("data_path", "", "Where TFDS has the datasets, unless it is in the usual place.")
    flags.DEFINE_integer("seed", 0, "The seed of the runs.", lower_bound=0)
    flags.DEFINE_string("workdir", "runs/vtab", "The folder of the runs.")


def main():
    model, *_ = shared_flags.chosen_model()
    try:
        metrics = vtab.run_tasks(model, FLAGS.workdir, path=FLAGS.data_path, tasks=FLAGS.tasks, seed=FLAGS.seed)
    except training.Preempted as preempted:
        print(f"{preempted}:\n  {command_line.this_command()}")
        sys.exit(training.EXIT_CODE)
    for name in (*vtab.GROUPS, "mean"):
        if name in metrics:
            print(f"{name:12} {metrics[name]:.4f}")
    files.write_json(files.as_path(FLAGS.workdir) / "results.json", metrics)
    print(f"Everything is in {FLAGS.workdir}.")
