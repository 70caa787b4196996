"""Trains at several learning rates, compares them on held-out data, and trains with the best rate
on all data.

    keras-vit sweep --config=finetune:ViT-B/16,cifar10 --workdir=runs/cifar10
    keras-vit sweep --config=digits --rates=1e-3,3e-3 --seeds=0,1
    keras-vit sweep --config=digits --config.data.name=folder --config.data.path=photos --folds=5

Every run is a `keras-vit train` process with its own folder in the workdir. The same command
resumes a stopped sweep. `table.json` and `table.csv` contain the metrics of every run and are
updated after each run. At the end, the sweep prints the table and, for several seeds, the mean and
standard deviation of the final runs.

With `--folds=5`, the sweep trains five times at the config's rate, or at each of `--rates`. Each
time, it tests on another fifth of the images; see `data.fold`. `spread.json` has the mean, standard
deviation and range of each test metric.
"""

import itertools
import math
import os
import sys

from absl import flags
from ml_collections import config_flags

from keras_vit import data, files, recipes, training
from keras_vit.commands import command_line
from keras_vit.commands.sweep_table import best_rate, spread, summary, write_table
from keras_vit.data.loading import fields_of
from keras_vit.data.sources.file_lists import is_list
from keras_vit.training.diagnosis import Diverged
from keras_vit.training.progress import metrics_of_test

FLAGS = flags.FLAGS
_TRAIN = (sys.executable, "-m", "keras_vit", "train")


def define_flags():
    command_line.define_config()
    flags.DEFINE_string("workdir", "", "Folder of the sweep; runs/sweep-CONFIG if not given.")
    flags.DEFINE_list(
        "rates",
        [],
        "Learning rates to try; by default, the dataset's rates in Table 4 of the paper.",
    )
    flags.DEFINE_list(
        "seeds", [], "Seeds of the final runs or of the folds; by default, the config's seed."
    )
    flags.DEFINE_string("tune_train", "tune_train", "Split to train on while comparing rates.")
    flags.DEFINE_string("tune_val", "tune_val", "Split to test on while comparing rates.")
    flags.DEFINE_integer("folds", 0, "Number of folds for cross-validation; 0 for none.", 0)


def main():
    if "TF_CONFIG" in os.environ:
        raise ValueError("A sweep supports a single host only. Received: TF_CONFIG is set")
    config = FLAGS.config
    folds = FLAGS.folds
    held_out = {"data.train_split": FLAGS.tune_train, "data.test_split": FLAGS.tune_val}
    check_data(config.data, held_out.values(), folds)
    seeds = _numbers("seeds", int) or [config.seed]
    if min(seeds) < 0:
        raise ValueError(f"--seeds must be 0 or more. Received: seeds={seeds}")
    rates = rates_to_try(config, folds)
    if folds:
        check_folds(config, folds)
    folder = FLAGS.workdir or f"runs/sweep-{command_line.run_name()}"
    rows = make_rows(
        lambda name, changes: _results(f"{folder}/{name}", changes),
        rates=rates,
        seeds=seeds,
        tune_seed=config.seed,
        held_out=held_out,
        best_metric=config.best_metric,
        write=lambda rows: write_table(folder, rows),
        folds=folds,
    )
    if folds:
        files.write_json(files.as_path(folder) / "spread.json", spread(rows, "fold"))
    print("\n".join(summary(rows, config.best_metric)))
    print(f"Everything is in {folder}.")


def check_data(fields, held_out, folds):
    """Raises a `ValueError` unless the data, with the `data` fields of a config, has folds or the
    splits `held_out`."""
    if folds and (folds < 2 or fields.fold or "fold" not in fields_of(fields.name)):
        raise ValueError(
            "--folds must be 2 or more, for data that takes --config.data.fold (folder, images, "
            "list, masks, depth), which --folds sets. Received: "
            f"folds={folds}, data.name={fields.name!r}, data.fold={fields.fold!r}"
        )
    if folds and (FLAGS["tune_train"].present or FLAGS["tune_val"].present):
        raise ValueError(
            "--tune_train and --tune_val do not apply with --folds, which tests on each fold; "
            f"leave them out. Received: folds={folds}, tune_train={FLAGS.tune_train!r}, "
            f"tune_val={FLAGS.tune_val!r}"
        )
    kind = fields.name.partition(":")[0]
    has_splits = kind not in ("list", "tfrecords", "tfds") or is_list(fields.path)
    if not has_splits and not folds and {"tune_train", "tune_val"} & {*held_out}:
        raise ValueError(
            "This kind of data has no splits tune_train and tune_val; set --tune_train and "
            "--tune_val to two disjoint splits, such as train[:90%] and train[90%:] for TFDS. "
            f"Received: data.name={fields.name!r}, tune_train={FLAGS.tune_train!r}, "
            f"tune_val={FLAGS.tune_val!r}"
        )


def rates_to_try(config, folds):
    """Returns the learning rates of `--rates`; without the flag, the config's rate for folds, and
    otherwise those of Table 4."""
    rates = _numbers("rates", float)
    if not all(rate > 0 for rate in rates):  # also refuses NaN
        raise ValueError(f"--rates must be positive. Received: rates={rates}")
    if folds and not rates:
        return [config.schedule.base]
    if "schedule.base" in _overrides():
        raise ValueError(
            "--config.schedule.base does not apply to a sweep over --rates; leave it out. "
            f"Received: schedule.base={config.schedule.base}"
        )
    return rates or recipes.rates(config.data.name)


def check_folds(config, folds):
    """Raises a `ValueError` if a fold lacks images or classes, before the first one is trained."""
    data.hide_accelerators_from_tensorflow()  # the runs are other processes, which need them
    for number in range(1, folds + 1):
        fields = {**config.data.to_dict(), "fold": f"{number}/{folds}"}
        data.from_config(fields, batch_size=config.batch_size, seed=config.seed)


def make_rows(
    train,
    *,
    rates,
    seeds,
    tune_seed,
    held_out,
    best_metric="accuracy",
    write=lambda rows: None,
    folds=0,
):
    """Trains at each rate with the config changes `held_out`, then trains on all data at the best
    rate with each seed.

    `train(name, changes)` trains with changes to the config and returns the results, or None if
    training diverged. With `folds`, it trains on each fold at each rate with each seed instead.
    Returns one dict per run with `run` ("tune", "final" or "fold"), `rate`, `seed`, the test
    metrics and `name`.
    """
    rows = []

    def add(run, name, rate, seed, **changes):
        results = train(name, {"schedule.base": rate, "seed": seed, **changes})
        if results is None:
            metrics = dict.fromkeys((best_metric, "loss"), math.nan)
        else:
            metrics = metrics_of_test(results)
        rows.append({"run": run, "rate": rate, "seed": seed, **metrics, "name": name})
        write(rows)

    if folds:
        for rate, seed, number in itertools.product(rates, seeds, range(1, folds + 1)):
            name = f"rate={rate}-seed={seed}-fold={number}-of-{folds}"
            add("fold", name, rate, seed, **{"data.fold": f"{number}/{folds}"})
        return rows
    for rate in rates:
        add("tune", f"rate={rate}", rate, tune_seed, **held_out)
    best = best_rate(rows, best_metric)
    for seed in seeds:
        add("final", f"final-rate={best}-seed={seed}", best, seed)
    return rows


def _results(workdir, changes):
    """Trains with changes to the config, unless results exist; returns the results, or None if
    training diverged."""
    run = training.Workdir(workdir, config_with(changes).to_dict(), change=None)
    if results := run.results():
        return results
    print(f"run {workdir}", flush=True)
    return run.results() if _train(workdir, changes) else None


def config_with(changes):
    """Returns the config with changes. Fields that follow from the number of images are computed
    with the changed data."""
    config = FLAGS.config
    fields = {name.removeprefix("data."): name for name in changes if name.startswith("data.")}
    before = {name: config.data[field] for field, name in fields.items()}
    config.update_from_flattened_dict({name: changes[name] for name in before})
    try:
        changed = config.copy_and_resolve_references()
    finally:
        config.update_from_flattened_dict(before)
    changed.update_from_flattened_dict(changes)
    return changed


def _train(workdir, changes):
    """Trains in a separate process, so that its memory and devices are freed; returns False if
    training diverged."""
    overrides = {**_overrides(), **changes}
    path = config_flags.get_config_filename(FLAGS["config"])
    command = [*_TRAIN, f"--config={path}", f"--workdir={workdir}"]
    command += [f"--config.{name}={value}" for name, value in overrides.items()]
    (code,), received = command_line.run_children([command])
    if received and not code:
        print(
            f"stopped by {received[0]} after {workdir}; resume with:\n  "
            f"{command_line.this_command()}"
        )
        sys.exit(training.EXIT_CODE)
    if code and (received or code != Diverged.exit_code):
        # The run has printed the reason, or a signal has ended it.
        sys.exit(code if code > 0 else 128 - code)
    return not code


def _overrides():
    """Returns the fields that the command line overrides, as `{name: value}`."""
    return config_flags.get_override_values(FLAGS["config"])


def _numbers(flag, kind):
    """Returns the different numbers in a list flag."""
    try:
        return list(dict.fromkeys(map(kind, FLAGS[flag].value)))
    except ValueError as error:
        raise ValueError(
            f"`{flag}` must be numbers ({error}). Received: {flag}={FLAGS[flag].value}"
        ) from error
