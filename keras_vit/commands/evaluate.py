"""Evaluates a model, prints a table of metrics and writes `results.json`.

    keras-vit evaluate --model=runs/digits --evals=top1,calibration,fewshot:digits
    keras-vit evaluate --variant=ViT_B16 --weights=augreg:FILE --evals=real,fewshot:cifar100

The evaluators real, imagenet_v2 and objectnet have their own datasets; the others use `--data`, by
default the run's. NAME:DATASET uses another dataset, and NAME:DATASET@FOLDER reads that dataset
from a folder. If a folder of images has no subfolders for splits, all its images are tested. If an
evaluator needs training images, or if it is the folder of the run, only the held-out images are
tested. Images are preprocessed for the model. `--pages` adds an HTML report with calibration,
confusion matrix and worst mistakes.
"""

import dataclasses

from absl import flags

from keras_vit import evaluation, files
from keras_vit.commands import command_line, shared_flags
from keras_vit.data.loading import name_and_path
from keras_vit.data.sources.source import joined
from keras_vit.evaluation.checks import check_class_names, check_one_label
from keras_vit.evaluation.collecting import reuse_compiled
from keras_vit.evaluation.loading import is_data_of_run

FLAGS = flags.FLAGS


def define_flags():
    shared_flags.define_model()
    flags.DEFINE_list(
        "evals",
        ["top1"],
        f"Evaluators, NAME or NAME:DATASET; the names are {', '.join(evaluation.EVALUATORS)}.",
    )
    shared_flags.define_data()
    flags.DEFINE_enum(
        "data_split", "test", ["test", "all"], "Images to test: the test split, or both splits."
    )
    flags.DEFINE_float(
        "max_bad_share", 0.01, "Maximum share of a dataset's images that may be unreadable.", 0, 1
    )
    flags.DEFINE_bool(
        "pages",
        False,
        "Write an HTML report with calibration, confusion matrix and worst mistakes.",
    )
    flags.DEFINE_string("output", "evaluation", "Folder to write to.")


def main():
    if not FLAGS.evals:
        raise ValueError(
            f"--evals must name at least one evaluator, such as top1. Received: evals={FLAGS.evals}"
        )
    evaluation.get(FLAGS.evals)  # rejects unknown names before the model is loaded
    command_line.check_folder(FLAGS.output)
    output = files.as_path(FLAGS.output)
    check_not_a_run(output)
    model, details, title = shared_flags.chosen_model(takes_towers=True)
    class_names = details.get("class_names") or ()
    config = shared_flags.run_data(details)
    evaluators = evaluation.get(FLAGS.evals, FLAGS.max_bad_share, class_names, config)
    inputs, data = load_data(model, details, evaluators, config)
    if FLAGS.pages:
        check_pages(inputs, class_names)
    for evaluator in evaluators.values():
        evaluator.check(model, inputs)
    files.make_dirs(output)
    results = {
        "model": title,
        "data": data,
        "model_sha256": evaluation.model_digest(model),
        "metrics": {},
    }
    with reuse_compiled():
        for name, evaluator in evaluators.items():
            results["metrics"][name] = evaluator.evaluate(model, inputs)
            # Write the file after each evaluator, because some take long.
            files.write_json(output / "results.json", results)
            print(f"evaluated {name}", flush=True)
        table = metrics_table(results["metrics"], model.output_shape[-1])
        print("\n".join(table))
        if FLAGS.pages:
            write_report = evaluation.REPORTS[inputs.target]
            page = write_report(model, inputs, output, f"{title} on {data}", table)
            print(f"wrote {page}")
    print(f"wrote {output / 'results.json'}")


def load_data(model, details, evaluators, config):
    """Returns the inputs and the name of the data of `--data` or the run; `(None, "")` if nothing
    needs them."""
    shared = [evaluator for evaluator in evaluators.values() if not evaluator.dataset]
    if FLAGS.data_split == "all" and len(shared) < len(evaluators):
        raise ValueError(
            "--data_split=all does not apply to evaluators with their own dataset; evaluate these "
            f"without it. Received: evals={','.join(FLAGS.evals)}, data_split='all'"
        )
    if not shared and not FLAGS.pages:
        if FLAGS.data or FLAGS.data_path:
            raise ValueError(
                "--data and --data_path do not apply, because each evaluator has its own dataset. "
                f"Received: evals={','.join(FLAGS.evals)}, data={FLAGS.data!r}, "
                f"data_path={FLAGS.data_path!r}"
            )
        return None, ""
    trains = any("train" in evaluator.kind.splits for evaluator in shared)
    splits = ("train", "test") if trains or FLAGS.data_split == "all" else ("test",)
    inputs, data, note = shared_flags.load_data(model, details, splits, FLAGS.max_bad_share)
    if inputs is None:
        return None, ""
    if FLAGS.data_split == "all":
        inputs = with_all_images(inputs, trains, config)
        note = " (all images)"
    data += note
    print(f"{inputs.test.num_examples:,} test images of {data}", flush=True)
    return inputs, data


def check_pages(inputs, class_names):
    """Raises a `ValueError` unless there is a report for the data."""
    if inputs is None:
        raise ValueError("--pages requires a dataset, such as --data=digits. Received: data=''")
    if inputs.target not in evaluation.REPORTS:
        raise ValueError(
            f"--pages is for images with {' or '.join(evaluation.REPORTS)}. Received: "
            f"{inputs.target} as targets"
        )
    if inputs.target == "classes":
        check_one_label(inputs)
    check_class_names(class_names, inputs)


def check_not_a_run(output):
    """Raises a `ValueError` if `output` is the folder of a run, whose `results.json` must stay."""
    if files.exists(output / "config.json"):
        raise ValueError(
            f"--output must be a folder that is not a run's, such as {output / 'evaluation'}. "
            f"Received: output={str(output)!r}"
        )


def with_all_images(inputs, trains, run):
    """Returns inputs that test the images of both splits; warns if the run was trained on some.

    `trains` tells whether an evaluator trains on the training images; `run` has the `data` fields
    of the run's config.
    """
    if trains or inputs.target != "classes":
        raise ValueError(
            "--data_split=all needs images with classes, and evaluators that do not train. "
            f"Received: evals={','.join(FLAGS.evals)}"
        )
    name, path = name_and_path(FLAGS.data)
    path = FLAGS.data_path or path or run.get("path", "")
    if run and (not name or is_data_of_run(name, path, run)):
        print("warning: the images include the training images of the run", flush=True)
    return dataclasses.replace(inputs, test=joined(inputs.train, inputs.test))


def metrics_table(metrics_of, classes):
    """Returns the lines of a table of metrics, without top-5 accuracy for five or fewer classes."""
    width = max(len(name) for name in metrics_of)
    lines = []
    for name, metrics in metrics_of.items():
        for metric, value in metrics.items():
            if metric == "top5_accuracy" and classes and classes <= 5:
                continue
            lines.append(f"{name:{width}}  {metric:28} {value:.4f}")
            name = ""  # only the first line of an evaluator has its name
    return lines
