"""Every study builds its runs; one is made, killed and gone on with; and what is made of results."""

import csv
import json

import keras
import pytest

from keras_vit import evaluation, optimizers, studies, tasks, training
from keras_vit.studies import plots, report, runner
from keras_vit.studies.estimates import exaflops_of, images_of
from keras_vit.studies.study import Run, Study, metric_name, rows_of

SCALES = {name: studies.Scale(name, path="/data") for name in ("tiny", "small", "paper")}


@pytest.mark.parametrize("scale", SCALES.values(), ids=list(SCALES))
@pytest.mark.parametrize("name", {id(study): name for name, study in studies.STUDIES.items()}.values())
def test_every_study_builds_all_its_runs(name, scale, tmp_path):
    study = studies.get(name)
    runs = study.runs(scale)
    assert any(run.is_row for run in runs)
    names = [run.name for run in runs]
    assert len(set(names)) == len(names)
    measured = set()
    for number, run in enumerate(runs):
        assert not run.start or run.start in names[:number]
        config = runner.config_of(run, tmp_path)
        task = tasks.get(config)
        optimizers.get(schedule=optimizers.Schedule(total_steps=10**9, **config.schedule), **config.optimizer)
        assert config.best_metric in ("loss", *task.metrics)
        assert images_of(run) > 0 and exaflops_of(run) > 0
        assert set(run.paper) <= set(study.metrics)
        measured |= {"accuracy", "loss"} | {
            metric_name(f"test/{eval_name}/{metric}")
            for eval_name, evaluator in evaluation.get(config.evals).items()
            for metric in evaluator.METRICS
        }
        assert config.schedule.warmup_steps < (config.total_steps or 10**9)
        if run.start:  # the weights fit
            (start,) = (other for other in runs if other.name == run.start)
            for field in ("hidden_size", "num_layers", "patch_size", "depth"):
                assert run.config["model"].get(field) == start.config["model"].get(field)
    x, y, group = study.picture[1:]
    for name in study.metrics if scale.name == "small" else [y] if scale.name == "paper" else []:
        candidates = study.metrics[name]
        assert measured & set((candidates,) if isinstance(candidates, str) else candidates), name
    columns = {"run", "exaFLOPs", "images", *study.metrics}.union(*(run.columns for run in runs))
    assert {x, y, group} - {""} <= columns


def test_several_seeds_are_runs_of_their_own():
    scale = studies.Scale("small", seeds=(0, 3))
    runs = studies.get("self_supervision").runs(scale)
    assert len(runs) == 2 * len(studies.get("self_supervision").runs(SCALES["small"]))
    (run,) = (run for run in runs if run.name == "mean_color-100-labels-seed=3")
    assert run.config["seed"] == 3 and run.start == "mean_color-seed=3" and run.columns["seed"] == 3


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="slow; tests/training/jax runs what a study runs")
def test_a_killed_study_goes_on_and_repeats_no_finished_run(tmp_path):
    study, scale = studies.get("self_supervision"), SCALES["tiny"]
    names = [run.name for run in study.runs(scale)]
    assert names == ["mean_color", "from-scratch-20-labels", "mean_color-20-labels"]

    def kill(line):
        if line.startswith("run 3"):
            raise KeyError(line)

    with pytest.raises(KeyError):
        studies.make(study, scale, tmp_path, kill)
    results = [tmp_path / "runs" / name / "results.json" for name in names]
    assert [path.exists() for path in results] == [True, True, False]
    before = [path.stat().st_mtime_ns for path in results[:2]]
    lines = []
    rows = studies.make(study, scale, tmp_path, lines.append)
    assert [path.stat().st_mtime_ns for path in results[:2]] == before
    assert sum("step 2/2" in line for line in lines) == 1
    # It started from the weights of the first run, all but the mask's.
    assert any("unused in the file: mask_patches" in line for line in lines)
    assert [row["run"] for row in rows] == names[1:]
    # The cost is that of the pre-training.
    pretraining = json.loads(results[0].read_text())
    assert rows[1]["exaFLOPs"] == pretraining["study/exaflops"] == exaflops_of(study.runs(scale)[0])
    with open(tmp_path / "table.csv") as file:
        assert [row["pre-training"] for row in csv.DictReader(file)] == ["from scratch", "mean_color"]
    page = (tmp_path / "index.html").read_text()
    assert "Self-supervision" in page and "Two steps of every run" in page and "picture.png" in page
    assert (tmp_path / "picture.png").stat().st_size > 5000
    # A study of other runs does not take the folder for its own.
    with pytest.raises(ValueError, match="The workdir belongs to a run with another config"):
        studies.make(study, studies.Scale("tiny", seeds=(1,)), tmp_path, lines.append)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["table8", "fig10", "fig9", "fig8", "fig5", "table7", "fig7", "fig3", "fig4", "fig13", "table9"]
)
def test_every_study_finishes_at_tiny_scale(name, tmp_path):
    rows = studies.make(studies.get(name), SCALES["tiny"], tmp_path, lambda line: None)
    assert rows and all(0 <= row["accuracy"] <= 1 for row in rows)
    assert (tmp_path / "index.html").exists() and (tmp_path / "picture.png").exists()
    assert ("inspection/index.html" in (tmp_path / "index.html").read_text()) == studies.get(name).inspected


def test_a_row_has_the_metric_that_was_measured_and_the_paper_beside_it():
    metrics = {"5-shot": ("fewshot:digits/5shot", "accuracy"), "loss": "loss"}
    study = Study("t", "q", None, metrics, ("bars", "", "", ""))
    runs = [
        Run("a", {}, {"kind": 1}, {"5-shot": 0.5}),
        Run("b", {}, {"kind": 2, "seed": 4}),
        Run("c", {}, {}, is_row=False),
    ]
    cost = {"study/images": 7, "study/exaflops": 1e-6}
    results = {
        "a": {"test/fewshot:digits@/a/folder/5shot": 0.25, "test/accuracy": 0.1, **cost},
        "b": {"test/accuracy": 0.125, **cost},
        "c": {},
    }
    rows = rows_of(study, runs, results)
    assert [row["5-shot"] for row in rows] == [0.25, 0.125]
    assert [row["5-shot, paper"] for row in rows] == [0.5, None]
    assert [row["seed"] for row in rows] == [None, 4] and list(rows[0]) == list(rows[1])
    lines = report.as_markdown(rows).splitlines()
    assert lines[0].startswith("| run | kind | 5-shot | loss | 5-shot, paper | images | exaFLOPs |")
    assert lines[2] == "| a | 1 | 0.25 |  | 0.5 | 7 | 1e-06 |  |"
    assert report.as_csv(rows).splitlines()[2].startswith("b,2,0.125,,,7,1e-06,4")


def test_a_line_goes_through_the_best_of_each_seed_and_their_mean():
    points = [("A", 1, 0.2, 0), ("A", 1, 0.4, 0), ("A", 1, 0.6, 1), ("A", 10, 0.9, 0), ("B", 1, 0.1, 0)]
    rows = [{"family": f, "images": x, "accuracy": y, "seed": s} for f, x, y, s in points]
    assert plots.lines_of(rows, "images", "accuracy", "family") == {"A": [(1, 0.5), (10, 0.9)], "B": [(1, 0.1)]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "huge"}, "`scale` must be one of tiny, small, paper. Received: scale='huge'"),
        ({"name": "small", "seeds": (1, 1)}, "`seeds` must be different numbers"),
        ({"name": "small", "steps": 3}, "`steps` must be 20 or more. Received: steps=3"),
    ],
)
def test_what_there_is_not_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        studies.Scale(**arguments)
    with pytest.raises(ValueError, match="`study` must be one of table8, .*Received: study='table0'"):
        studies.get("table0")


def test_a_run_that_starts_from_another_one_waits_for_it(tmp_path):
    study = studies.get("self_supervision")
    runs = study.runs(SCALES["tiny"])
    with pytest.raises(ValueError, match="starts from 'mean_color', which is not done"):
        runner.make_run(study, runs[2], runs, tmp_path)
    assert not (tmp_path / "runs").exists()
    assert training.Workdir(tmp_path, {}).results() is None
