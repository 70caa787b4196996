"""Scores a Vision Transformer on VTAB-1k: fine-tunes it on 1,000 examples of each of 19 tasks.

    python experiments/vtab.py --variant=ViT_B16 --weights=imagenet21k --workdir=runs/vtab --data_path=/data/tfds
    python experiments/vtab.py --model=mine.keras --tasks=cifar100,svhn --workdir=runs/vtab

Run again, it goes on where it stopped. The accuracies, the means of the three groups and the mean of all tasks are
printed and written to `results.json`.
"""

import sys

import command_line
from absl import flags
from model_flags import build_model, load_model

from keras_vit import files, training
from keras_vit.evaluation import vtab

FLAGS = flags.FLAGS
flags.DEFINE_string("model", "", "A run's workdir, the folder of an export, or a .keras file.")
flags.DEFINE_string("variant", "", "Instead of a model: a constructor of keras_vit, such as ViT_B16, for --weights.")
flags.DEFINE_string("weights", "", "The name of published weights, a path, or a URL; random ones if not given.")
flags.DEFINE_list("tasks", list(vtab.TASKS), "The tasks.")
flags.DEFINE_string("data_path", "", "Where TFDS has the datasets, unless it is in the usual place.")
flags.DEFINE_integer("seed", 0, "The seed of the runs.", lower_bound=0)
flags.DEFINE_string("workdir", "runs/vtab", "The folder of the runs.")


def main(_):
    if bool(FLAGS.model) == bool(FLAGS.variant):
        raise ValueError(
            f"Either --model or --variant is needed. Received: model={FLAGS.model!r}, variant={FLAGS.variant!r}"
        )
    model = load_model(FLAGS.model)[0] if FLAGS.model else build_model(FLAGS.variant, FLAGS.weights)
    options = {"path": FLAGS.data_path, "tasks": FLAGS.tasks, "seed": FLAGS.seed}
    try:
        metrics = vtab.run_tasks(model, FLAGS.workdir, **options)
    except training.Preempted as preempted:
        print(preempted)
        sys.exit(training.EXIT_CODE)
    for name in (*vtab.GROUPS, "mean"):
        if name in metrics:
            print(f"{name:12} {metrics[name]:.4f}")
    files.write_json(files.as_path(FLAGS.workdir) / "results.json", metrics)
    print(f"Everything is in {FLAGS.workdir}.")


if __name__ == "__main__":
    command_line.run(main)
