"""Repeats a comparison of the paper: trains or measures its models, and writes a table, a picture
and an HTML page.

    python experiments/paper --list
    python experiments/paper --study=table8 --scale=small --workdir=runs/table8
    python experiments/paper --study=fig4 --scale=small --seeds=0,1,2 --workdir=runs/fig4
    python experiments/paper --study=table7 --scale=paper --data_path=/data/jft \\
        --workdir=runs/table7
    python experiments/paper --study=all --scale=tiny --processes=2 --workdir=runs/tiny

`--scale=tiny` and `--scale=small` need no download. With `--scale=tiny`, each training has two
steps. `--scale=paper` uses the paper's setting, with the data in `--data_path`. The same command
resumes a stopped study. `--processes=4` trains up to four runs at once, each in its own process.
With `--study=all`, up to four studies run at once. A study that measures speed always runs alone.
"""

import os
import sys

import studies
from absl import flags
from estimates import estimate, measure_flops
from runner import make, make_run
from scales import NAMES, Scale

from keras_vit import training
from keras_vit.commands import command_line

FLAGS = flags.FLAGS


def define_flags():
    flags.DEFINE_bool("list", False, "Print the cost of each study at this scale and exit.")
    flags.DEFINE_string("study", "", f"The study: {', '.join(studies.STUDIES)}; or all.")
    flags.DEFINE_enum("scale", "small", NAMES, "Size of the runs.")
    flags.DEFINE_string("workdir", "", "Folder of the study; runs/STUDY-SCALE if not given.")
    flags.DEFINE_string(
        "data_path",
        "",
        "Folder with the data for --scale=paper, or for fig12 a CSV file of tpu_table.py.",
    )
    flags.DEFINE_list("seeds", ["0"], "Seeds; every run is trained once with each seed.")
    flags.DEFINE_integer("steps", 1000, "Pre-training steps of --scale=small.", lower_bound=20)
    flags.DEFINE_integer(
        "processes",
        1,
        "Number of runs, or of studies with --study=all, to train at once.",
        lower_bound=1,
    )
    flags.DEFINE_string("run", "", "Train only this run of the study and write no page.")


def main():
    try:
        seeds = tuple(int(seed) for seed in FLAGS.seeds)
    except ValueError:
        raise ValueError(
            f"`seeds` must be integers, separated by commas. Received: {','.join(FLAGS.seeds)}"
        ) from None
    scale = Scale(FLAGS.scale, path=FLAGS.data_path, seeds=seeds, steps=FLAGS.steps)
    if FLAGS.list:
        print_estimates(scale)
        return
    if "TF_CONFIG" in os.environ:
        raise ValueError("Studies run on one host; unset TF_CONFIG. Received: TF_CONFIG is set")
    study = None if FLAGS.study == "all" else studies.get(FLAGS.study)
    if scale.is_paper and not FLAGS.data_path and (study is None or study.measure is None):
        raise ValueError(
            "`--scale=paper` needs the paper's data: --data_path=FOLDER. Received: data_path=''"
        )
    workdir = FLAGS.workdir or f"runs/{FLAGS.study}-{FLAGS.scale}"
    if study is None:
        make_all(workdir)
        return
    runs = study.runs(scale)
    try:
        if FLAGS.run:
            chosen = [run for run in runs if run.name == FLAGS.run]
            if not chosen:
                known = ", ".join(run.name for run in runs)
                raise ValueError(
                    f"The runs of {FLAGS.study} are {known}. Received: run={FLAGS.run!r}"
                )
            make_run(study, chosen[0], runs, workdir)
            return
        if FLAGS.processes > 1 and study.measure is None:
            make_runs(runs)
        make(study, scale, workdir)
    except training.Preempted as preempted:
        print(preempted)
        sys.exit(training.EXIT_CODE)
    print(f"Everything is in {workdir}.")


def print_estimates(scale):
    """Prints the cost of each study and an estimate of the time on this machine."""
    flops = measure_flops()
    print(
        f"at --scale={scale.name}; hours are estimates for this machine with {flops / 1e9:.0f} "
        "GFLOP/s"
    )
    print(f"{'study':17} {'runs':>5} {'images':>16} {'exaFLOPs':>10} {'hours':>10}  title")
    for name, study in studies.STUDIES.items():
        row = estimate(study, scale, flops)
        print(
            f"{name:17} {row['runs']:5} {row['images']:16,} {row['exaflops']:10.3g} "
            f"{row['hours']:10.3g}  {study.title}"
        )


def make_all(workdir):
    """Runs every study in its own folder, up to `--processes` at once."""
    names = []  # one name of each study, although some studies have several
    for name, study in studies.STUDIES.items():
        if not any(study is studies.get(other) for other in names):
            names.append(name)
    for some in batches(names):
        wait_for([[f"--study={name}", f"--workdir={workdir}/{name}"] for name in some])
    print(f"Everything is in {workdir}.")


def batches(names):
    """Divides studies into lists of up to `--processes`; a study that measures speed has its own
    list."""
    trained = [name for name in names if studies.get(name).measure is None]
    starts = range(0, len(trained), FLAGS.processes)
    measured = [[name] for name in names if name not in trained]
    return [trained[start : start + FLAGS.processes] for start in starts] + measured


def make_runs(runs):
    """Trains the runs of a study, up to `--processes` at once. Each run waits for the runs in its
    `start`."""
    done = set()
    while len(done) < len(runs):
        ready = [run.name for run in runs if run.name not in done and done.issuperset(run.start)][
            : FLAGS.processes
        ]
        wait_for([[f"--run={name}"] for name in ready])
        done |= set(ready)


def wait_for(commands):
    """Runs this script with each list of flags in `commands`, all at once; exits after a failure or
    a stop signal."""
    codes, received = command_line.run_children(
        [sys.executable, *sys.argv, *command, "--processes=1"] for command in commands
    )
    failed = [code for code in codes if code] or [training.EXIT_CODE] * bool(received)
    if failed:
        sys.exit(failed[0])


if __name__ == "__main__":
    command_line.run(lambda: sys.modules["__main__"], "paper", sys.argv[1:])
