"""Makes a table or a figure of the paper: its runs, the table, the picture and a page, beside the paper's own numbers.

    python experiments/paper.py --list
    python experiments/paper.py --study=table8 --scale=small --workdir=runs/table8
    python experiments/paper.py --study=fig4 --scale=small --seeds=0,1,2 --workdir=runs/fig4
    python experiments/paper.py --study=table7 --scale=paper --data_path=/data/jft --workdir=runs/table7

`--scale=tiny` does two steps of each run, `small` takes generated images and needs no download, `paper` is the paper's
setting, whose data lies in `--data_path`. The same command again goes on where it stopped. `--processes=4` makes up to
four runs at once, each in a process of its own, which CUDA_VISIBLE_DEVICES of that process may tell apart.
"""

import os
import signal
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides TensorFlow's start-up messages; must precede its import

import command_line
from absl import flags

from keras_vit import studies, training
from keras_vit.studies.runner import make_run

FLAGS = flags.FLAGS
flags.DEFINE_bool("list", False, "Print what each study needs at this scale, and start nothing.")
flags.DEFINE_string("study", "", f"What to make: {', '.join(studies.STUDIES)}.")
flags.DEFINE_string("scale", "small", "tiny, small or paper.")
flags.DEFINE_string("workdir", "", "The folder of the study; runs/<study>-<scale> if not given.")
flags.DEFINE_string("data_path", "", "Where the data of --scale=paper lies.")
flags.DEFINE_list("seeds", ["0"], "Seeds; each run is made with each of them.")
flags.DEFINE_integer("steps", 1500, "Pre-training steps of --scale=small.")
flags.DEFINE_integer("processes", 1, "Runs that are made at once, each in a process of its own.", lower_bound=1)
flags.DEFINE_string("run", "", "Make this run of the study alone, and write no page.")


def main(_):
    try:
        seeds = tuple(int(seed) for seed in FLAGS.seeds)
    except ValueError:
        raise ValueError(f"`seeds` must be integers, separated by commas. Received: {','.join(FLAGS.seeds)}") from None
    scale = studies.Scale(FLAGS.scale, path=FLAGS.data_path, seeds=seeds, steps=FLAGS.steps)
    if FLAGS.list:
        print_estimates(scale)
        return
    if "TF_CONFIG" in os.environ:
        raise ValueError("A study runs on one host. Received: TF_CONFIG is set")
    study = studies.get(FLAGS.study)
    if scale.is_paper and not FLAGS.data_path:
        raise ValueError("`--scale=paper` needs the paper's data: --data_path=FOLDER. Received: data_path=''")
    workdir = FLAGS.workdir or f"runs/{FLAGS.study}-{FLAGS.scale}"
    runs = study.runs(scale)
    try:
        if FLAGS.run:
            chosen = [run for run in runs if run.name == FLAGS.run]
            if not chosen:
                known = ", ".join(run.name for run in runs)
                raise ValueError(f"The runs of {FLAGS.study} are {known}. Received: run={FLAGS.run!r}")
            make_run(study, chosen[0], runs, workdir)
            return
        if FLAGS.processes > 1:
            make_at_once(runs)
        studies.make(study, scale, workdir)
    except training.Preempted as preempted:
        print(preempted)
        sys.exit(training.EXIT_CODE)
    print(f"Everything is in {workdir}.")


def print_estimates(scale):
    """What each study takes, and a guess of the time on this machine."""
    flops = studies.measure_flops()
    print(f"at --scale={scale.name}; hours are a guess for this machine, which has {flops / 1e9:.0f} GFLOP/s")
    print(f"{'study':17} {'runs':>5} {'images':>16} {'exaFLOPs':>10} {'hours':>10}  title")
    for name, study in studies.STUDIES.items():
        row = studies.estimate(study, scale, flops)
        print(
            f"{name:17} {row['runs']:5} {row['images']:16,} {row['exaflops']:10.3g} {row['hours']:10.3g}  {study.title}"
        )


def make_at_once(runs):
    """Makes runs in processes of their own, those that start from another one after it; ends where one fails."""
    done = set()
    while len(done) < len(runs):
        ready = [run for run in runs if run.name not in done and (not run.start or run.start in done)]
        children = [
            (run, subprocess.Popen([sys.executable, *sys.argv, f"--run={run.name}", "--processes=1"]))
            for run in ready[: FLAGS.processes]
        ]

        # The runs save and end, and then so does the study. Ctrl-C reaches all of them by itself.
        def stop(*_, children=children):
            for _, child in children:
                child.terminate()

        handlers = {signal.SIGTERM: stop, signal.SIGHUP: stop, signal.SIGINT: signal.SIG_IGN}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        codes = [(run, child.wait()) for run, child in children]
        for number, handler in before.items():
            signal.signal(number, handler)
        failed = [code for _, code in codes if code]
        if failed:
            sys.exit(failed[0])
        done |= {run.name for run, _ in codes}


if __name__ == "__main__":
    command_line.run(main)
