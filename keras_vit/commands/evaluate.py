"""Evaluates a model, prints a table and writes `results.json`; run again, it does what is missing.

    keras-vit evaluate --model=runs/digits --evals=top1,calibration,fewshot:digits --output=evaluation
    keras-vit evaluate --variant=ViT_B16 --weights=augreg:FILE --evals=real,fewshot:cifar100@/data/tfds

What is evaluated is NAME, on the data of the run or of `--data`, or NAME:DATASET, or NAME:DATASET@FOLDER for a local
copy; `keras_vit/evaluation/__init__.py` has the names. Images are prepared as the model's own preprocessing says. With
`--pages`, a page shows calibration, confusions and the worst-classified images.
"""

import math

from absl import flags

from keras_vit import evaluation, files
from keras_vit.commands import shared_flags
from keras_vit.evaluation.collecting import load_run_inputs
from keras_vit.evaluation.report import write_report

FLAGS = flags.FLAGS


def define_flags():
    shared_flags.define_model()
    flags.DEFINE_list("evals", ["top1"], f"Some of {', '.join(evaluation.EVALUATORS)}, each alone or with :DATASET.")
    flags.DEFINE_string("data", "", "The dataset of those that name none; that of the run if not given.")
    flags.DEFINE_string("data_path", "", "Where it lies, unless it is in the usual place.")
    flags.DEFINE_float("max_bad_share", 0.01, "The share of the images of a dataset that may be unreadable.", 0, 1)
    flags.DEFINE_bool("force", False, "Evaluate again what was evaluated, such as on data that changed in place.")
    flags.DEFINE_bool("pages", False, "Whether to write a page of calibration, confusions and the worst images.")
    flags.DEFINE_string("output", "evaluation", "The folder to write to.")


def main():
    if not FLAGS.evals:
        raise ValueError(f"--evals must name an evaluator, such as top1. Received: evals={FLAGS.evals}")
    evaluators = evaluation.get(FLAGS.evals, FLAGS.max_bad_share)
    model, details, _ = shared_flags.chosen_model()
    output = files.as_path(FLAGS.output)
    files.make_dirs(output)
    what = {
        "model": FLAGS.model or f"{FLAGS.variant} {FLAGS.weights}",
        "data": f"{FLAGS.data} {FLAGS.data_path}".strip(),
        "model_sha256": evaluation.model_digest(model),
    }
    results = read_results(output / "results.json", what)
    shares = results["max_bad_share"]
    inputs = None
    for name, evaluator in evaluators.items():
        if name in results["metrics"] and shares[name] <= FLAGS.max_bad_share and not FLAGS.force:
            print(f"{name} was evaluated before; --force evaluates it again")
            continue
        inputs = inputs or load_inputs(model, details)
        results["metrics"][name] = evaluator.evaluate(model, inputs)
        shares[name] = FLAGS.max_bad_share
        files.write_json(output / "results.json", results)
        print(f"evaluated {name}", flush=True)
    print_table({name: results["metrics"][name] for name in evaluators})
    if FLAGS.pages:
        inputs = inputs or load_inputs(model, details)
        if inputs is None:
            raise ValueError("The page needs a dataset: --data=digits. Received: data=''")
        print(f"wrote {write_report(model, inputs, output, FLAGS.model or FLAGS.variant)}")
    print(f"wrote {output / 'results.json'}")


def read_results(path, what):
    """What was evaluated before: `{"of": what, "metrics": {...}, "max_bad_share": {...}}`, by evaluator."""
    results = files.read_json(path)
    if results is None:
        return {"of": what, "metrics": {}, "max_bad_share": {}}
    if not isinstance(results, dict) or results.get("of") != what or "max_bad_share" not in results:
        raise ValueError(
            f"The folder has the results of another model or data; another --output keeps them. Received: {path}"
        )
    return results


def load_inputs(model, details):
    """The dataset of `--data`, or that of the run, or None where neither is known."""
    config = (details.get("recipe") or {}).get("data") or {}
    if FLAGS.data or not config:
        share = {"max_bad_share": FLAGS.max_bad_share}
        return evaluation.load_inputs(model, FLAGS.data, FLAGS.data_path, **share) if FLAGS.data else None
    path = {"path": FLAGS.data_path} if FLAGS.data_path else {}
    return load_run_inputs(model, {**config, **path, "max_bad_share": FLAGS.max_bad_share})


def print_table(metrics_of):
    width = max(len(name) for name in metrics_of)
    for name, metrics in metrics_of.items():
        for index, (metric, value) in enumerate(metrics.items()):
            print(f"{name if not index else '':{width}}  {metric:28} {math.nan if value is None else value:.4f}")
