"""Fine-tunes at several learning rates, each scored on the held-out part of train, and then with the best on all of it.

    python experiments/sweep.py --config=experiments/configs/finetune.py:ViT-B/16,cifar10 --workdir=runs/cifar10
    python experiments/sweep.py --config=experiments/configs/digits.py --rates=1e-3,3e-3 --seeds=0,1

Every run is one of `run_tpu.py`, in a folder of its own under the workdir. The same command again goes on where it
stopped. At the end one table is printed and written, `table.json` and `table.csv`: the metrics of every run, and the
mean and deviation of the final ones over the seeds.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import command_line
from absl import flags
from ml_collections import config_flags
from sweep_table import make_rows, summary, write_table

from keras_vit import recipes, training

HERE = Path(__file__).parent
STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
CONFIG = command_line.define_config(HERE / "configs/digits.py")
flags.declare_key_flag("config")  # for --help
WORKDIR = flags.DEFINE_string("workdir", "", "Folder of the sweep; runs/sweep-<name of the config> if not given.")
RATES = flags.DEFINE_list("rates", [], "Learning rates to try; those of the dataset's row in Table 4 if not given.")
SEEDS = flags.DEFINE_list("seeds", ["0"], "Seeds of the final runs.")
TUNE_TRAIN = flags.DEFINE_string("tune_train", "tune_train", "The split to train on while rates are compared.")
TUNE_VAL = flags.DEFINE_string("tune_val", "tune_val", "The split that compares them.")


def main(_):
    if "TF_CONFIG" in os.environ:
        raise ValueError("A sweep runs on one host. Received: TF_CONFIG is set")
    config = CONFIG.value
    folder = WORKDIR.value or f"runs/sweep-{command_line.run_name()}"
    rows = make_rows(
        lambda name, changes: _results(f"{folder}/{name}", changes),
        rates=_numbers("rates", RATES.value, float) or recipes.rates(config.data.name),
        seeds=_numbers("seeds", SEEDS.value, int),
        tune_seed=config.seed,
        held_out={"data.train_split": TUNE_TRAIN.value, "data.test_split": TUNE_VAL.value},
        best_metric=config.best_metric,
    )
    write_table(folder, rows)
    print("\n".join(summary(rows, config.best_metric)))
    print(f"Everything is in {folder}.")


def _results(workdir, changes):
    """The results of the run with these changes of the config; makes it first, unless it is done."""
    config = CONFIG.value.copy_and_resolve_references()
    config.update_from_flattened_dict(changes)
    results = training.Workdir(workdir, config.to_dict()).results()
    if results is None:
        print(f"run {workdir}", flush=True)
        _train(workdir, changes)
        results = training.Workdir(workdir, config.to_dict()).results()
    return results


def _train(workdir, changes):
    """One run of `run_tpu.py` with the overrides of this command; where it does not end well, the sweep ends with it.

    In a process of its own, which gives back all memory, and takes the devices that a process can take only once.
    """
    overrides = {**config_flags.get_override_values(flags.FLAGS["config"]), **changes}
    page = config_flags.get_config_filename(flags.FLAGS["config"])
    command = [sys.executable, str(HERE / "run_tpu.py"), f"--config={page}", f"--workdir={workdir}"]
    received, processes = [], []

    def stop(number, _):
        """Lets the run save and end. Ctrl-C of a terminal reaches the run by itself too; there the SIGTERM then changes
        nothing, and a second SIGINT would end it unsaved."""
        received.append(signal.Signals(number).name)
        for process in processes:
            process.terminate()

    signals = [number for number in STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]  # as under nohup
    before = {number: signal.signal(number, stop) for number in signals}
    with subprocess.Popen([*command, *(f"--config.{name}={value}" for name, value in overrides.items())]) as process:
        processes.append(process)
        if received:  # while it was started
            process.terminate()
        code = process.wait()
    for number, handler in before.items():
        signal.signal(number, handler)
    if code < 0:
        print(f"{signal.Signals(-code).name} ended {workdir}; the same command goes on", file=sys.stderr)
    elif not code and received:
        print(f"stopped by {received[0]} after {workdir}; the same command goes on")
        code = training.EXIT_CODE
    if code:
        sys.exit(code if code > 0 else 128 - code)


def _numbers(name, words, kind):
    try:
        numbers = [kind(word) for word in words]
    except ValueError:
        numbers = []
    if len(set(numbers)) != len(words):
        raise ValueError(f"`{name}` must be different numbers, separated by commas. Received: {','.join(words)}")
    return numbers


if __name__ == "__main__":
    command_line.run(main)
