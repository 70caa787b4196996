"""Tests of the paper's studies: runs, resumption and tables."""

import dataclasses
import json

import keras
import plots
import pytest
import report
import runner
import studies
from estimates import exaflops_of, images_of
from paper_results import TABLE_7
from scales import Scale
from study import Run, Study, metric_name, rows_of, start_of
from tpu_table import Row

from keras_vit import evaluation, optimizers, tasks
from keras_vit.plots import figure_class

SCALES = {name: Scale(name, path="/data") for name in ("tiny", "small", "paper")}
# One name of each study; some studies make several figures.
NAMES = list({id(study): name for name, study in studies.STUDIES.items()}.values())


all_studies = pytest.mark.parametrize("name", NAMES)
all_scales = pytest.mark.parametrize("scale", SCALES.values(), ids=list(SCALES))


def as_tuple(names):
    return (names,) if isinstance(names, str) else tuple(names)


@all_scales
@all_studies
def test_study_builds_its_runs(name, scale):
    study = studies.get(name)
    earlier = {}
    for run in study.runs(scale):
        config = runner.config_of(run)
        schedule = optimizers.Schedule(total_steps=10**9, **config.schedule)
        optimizers.get(schedule=schedule, **config.optimizer)
        assert config.best_metric in ("loss", *tasks.get(config).metrics)
        if study.measure is None:
            assert images_of(run) > 0
            assert exaflops_of(run) > 0
            assert config.schedule.warmup_steps < (config.total_steps or 10**9)
        # The weights of another run load only if the sizes match.
        for start in run.start:
            for field in ("hidden_size", "num_layers", "patch_size", "depth"):
                assert config.model.get(field) == earlier[start].model.get(field)
        assert run.name not in earlier
        earlier[run.name] = config


@all_scales
@all_studies
def test_table_has_the_columns_of_the_picture(name, scale):
    study = studies.get(name)
    runs = study.runs(scale)
    measured = {"accuracy", "loss"} if study.measure is None else set(study.metrics.values())
    for run in runs:
        for eval_name, evaluator in evaluation.get(runner.config_of(run).evals).items():
            measured |= {metric_name(f"test/{eval_name}/{name}") for name in evaluator.METRICS}
    x, y, group = study.picture[1:]
    required = {"tiny": (), "small": study.metrics, "paper": as_tuple(y)[:1]}[scale.name]
    for metric in required:
        assert measured & set(as_tuple(study.metrics[metric])), metric
    assert all(set(run.paper) <= set(study.metrics) for run in runs)
    columns = {"run", "exaFLOPs", "images", *study.metrics}.union(*(run.columns for run in runs))
    assert {x, *as_tuple(y), group} - {""} <= columns
    assert any(run.is_row for run in runs)


def test_each_seed_is_a_separate_run():
    scale = Scale("small", seeds=(0, 3))
    study = studies.get("self_supervision")
    runs = study.runs(scale)
    assert len(runs) == 2 * len(study.runs(SCALES["small"]))
    (run,) = (run for run in runs if run.name == "mean_color-100-labels-seed=3")
    assert run.config["seed"] == 3
    assert run.start == ("mean_color-seed=3",)
    assert run.columns["seed"] == 3


@pytest.mark.slow
@pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="slow; tests/training/jax covers runs on JAX"
)
def test_killed_study_resumes_without_repeating_runs(tmp_path):
    study = studies.get("self_supervision")
    scale = SCALES["tiny"]
    names = [run.name for run in study.runs(scale)]
    assert names == ["mean_color", "mean_color-20-labels", "from-scratch-20-labels"]

    first_lines = []

    def kill(line):
        first_lines.append(line)
        if line.startswith("run 3"):
            raise KeyError(line)

    with pytest.raises(KeyError):
        runner.make(study, scale, tmp_path / "old", kill)
    tmp_path = (tmp_path / "old").rename(tmp_path / "moved")
    results = [tmp_path / "runs" / name / "results.json" for name in names]
    assert [path.exists() for path in results] == [True, True, False]
    lines = []
    rows = runner.make(study, scale, tmp_path, lines.append)
    # Only the third run was trained.
    assert sum("step 2/2" in line for line in lines) == 1
    # The second run did not use the mask embedding of the first run.
    assert any("unused in the file: mask_patches" in line for line in first_lines)
    assert [(row["run"], row["pre-training"]) for row in rows] == [
        ("mean_color-20-labels", "mean_color"),
        ("from-scratch-20-labels", "from scratch"),
    ]
    # The row's exaFLOPs are the cost of pre-training.
    pretraining = json.loads(results[0].read_text())
    assert rows[0]["exaFLOPs"] == pretraining["study/exaflops"] == exaflops_of(study.runs(scale)[0])
    assert (tmp_path / "table.csv").read_text() == report.as_csv(rows)
    page = (tmp_path / "index.html").read_text()
    for text in ("Self-supervision", "Each run trains for a few steps", "picture.png"):
        assert text in page
    assert (tmp_path / "picture.png").stat().st_size > 5000
    # A study at another scale cannot use the same folder.
    with pytest.raises(ValueError, match="The workdir belongs to a run with another config"):
        runner.make(study, SCALES["small"], tmp_path, lines.append)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "self_supervision"])
def test_study_finishes_at_tiny_scale(name, tmp_path):
    rows = runner.make(studies.get(name), SCALES["tiny"], tmp_path, lambda line: None)
    assert rows
    assert all(0 <= row.get("accuracy", 0) <= 1 and row.get("images/s", 1) > 0 for row in rows)
    assert (tmp_path / "index.html").exists()
    assert (tmp_path / "picture.png").exists()
    has_inspection = "inspection/index.html" in (tmp_path / "index.html").read_text()
    assert has_inspection == studies.get(name).inspected


def test_rows_have_measured_and_paper_metrics():
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
    assert report.as_csv(rows).splitlines() == [
        'run,kind,5-shot,loss,"5-shot, paper",images,exaFLOPs,seed',
        "a,1,0.25,,0.5,7,1e-06,",
        "b,2,0.125,,,7,1e-06,4",
    ]
    header, _, first, _ = report.as_markdown(rows).splitlines()
    assert header == "| run | kind | 5-shot | loss | 5-shot, paper | images | exaFLOPs | seed |"
    assert first == "| a | 1 | 0.25 |  | 0.5 | 7 | 1e-06 |  |"


def test_run_starts_from_best_searched_run():
    study = Study("t", "q", None, {"accuracy": "accuracy"}, ("bars", "", "", ""))
    runs = [
        Run("a", {}, {"decay": 0.1}, is_row=False),
        Run("b", {}, {"decay": 0.3}, is_row=False),
        Run("c", {}, {"family": "ViT"}, start=("a", "b")),
    ]
    # The best run is the run with the highest test accuracy.
    results = {
        "a": {"test/accuracy": 0.5, "test/loss": 0.1},
        "b": {"test/accuracy": 0.75},
        "c": {"test/accuracy": 0.6},
    }
    assert start_of(runs[2], runs, results) is runs[1]
    assert start_of(runs[0], runs, results) is None
    (row,) = rows_of(study, runs, results)
    assert row == {**row, "decay": 0.3, "family": "ViT", "accuracy": 0.6}


def test_regularization_is_searched_on_held_out_images():
    runs = studies.get("fig3").runs(SCALES["paper"])
    searched = {run.name: run for run in runs if not run.is_row}
    for run in (run for run in runs if run.is_row):
        images = run.columns["images to train on"]
        pretrainings = [searched[name] for name in run.start]
        if images == 303_000_000:
            (pretraining,) = pretrainings
            assert pretraining.columns["weight decay"] == 0.1
            continue
        assert len(pretrainings) == 12
        decays_and_dropouts = set()
        for other in pretrainings:
            config = runner.config_of(other)
            fields = config.data
            assert (fields.train_split, fields.test_split) == ("tune_train", "tune_val")
            decay = config.optimizer.weight_decay
            dropout = config.model.get("dropout", 0.0)
            values = {"weight decay": decay, "dropout": dropout}
            assert {**other.columns, **values, "smoothing": fields.label_smoothing} == other.columns
            decays_and_dropouts.add((decay, dropout))
        table_3 = (0.3, 0.1) if images == 1_281_167 else (0.03, 0.1)
        assert table_3 in decays_and_dropouts
    for run in studies.get("fig3").runs(SCALES["small"]):
        expected = "test" if run.is_row else "tune_val[:2000]"
        assert run.config["data"]["test_split"] == expected


def test_families_cost_about_the_same_at_small_scale():
    runs = studies.get("fig4").runs(SCALES["small"])
    costs = {run.columns["family"]: exaflops_of(run) for run in runs}
    assert list(costs) == ["ViT", "hybrid", "ResNet"]
    assert max(costs.values()) < 1.13 * min(costs.values())
    # Training takes three forward passes of 1,032,384 multiply-accumulates for each image.
    assert costs["ViT"] == pytest.approx(6 * 64_000 * 1_032_384 / 1e18)


def test_cost_depends_on_the_architecture():
    runs = studies.get("fig13").runs(SCALES["small"])
    costs = {run.name: exaflops_of(run) for run in runs}
    assert costs["Axial-ViT-patch=4"] > 1.5 * costs["ViT-patch=4"]
    assert costs["Axial-ViT-patch=2"] > 1.2 * costs["ViT-patch=2"]


def test_images_of_a_subset_are_counted():
    runs = studies.get("fig4").runs(SCALES["paper"])
    images = {run.name: images_of(run) for run in runs}
    for millions in (9, 30, 90, 303):
        assert images[f"ViT-L_16-{millions}m"] == pytest.approx(7 * millions * 1e6, rel=1e-4)


def test_throughput_is_measured():
    study = studies.get("fig12")
    run, *_ = study.runs(SCALES["tiny"])
    results = study.measure(runner.config_of(run))
    assert results["images_per_second"] > 0
    assert results["batch"] in (1, 2)
    accelerators = map(keras.distribution.list_devices, ("gpu", "tpu"))
    assert ("largest_batch" in results) == any(accelerators)


def test_throughput_study_has_inference_rows_of_tpus(tmp_path):
    study = studies.get("fig12")
    slice_ = ("v3:2x2", 224)
    rows = [
        Row("ViT-B/16", *slice_, "inference", batch_per_device=512, images_per_second=900.0),
        Row("ViT-B/16", *slice_, "training", batch_per_device=32, images_per_second=9.0),
        Row("ViT-H/14", *slice_, "inference", error="not one image fits"),
    ]
    path = tmp_path / "tpu.csv"
    path.write_text(report.as_csv(list(map(dataclasses.asdict, rows))))
    known = [run for run in study.runs(Scale("tiny", path=str(path))) if run.results]
    results = {run.name: runner.make_run(study, run, known, tmp_path) for run in known}
    (row,) = rows_of(study, known, results)
    assert row == {
        **row,
        "model": "ViT-B/16, compiled for v3:2x2",
        "pixels": 224,
        "images/s": 900.0,
        "batch": None,
        "largest batch": 512,
    }


def test_plotted_lines_have_best_value_of_each_seed():
    points = [
        ("A", 1, 0.2, 0),
        ("A", 1, 0.4, 0),
        ("A", 1, 0.6, 1),
        ("A", 10, 0.9, 0),
        ("B", 1, 0.1, 0),
    ]
    rows = [{"family": f, "images": x, "accuracy": y, "seed": s} for f, x, y, s in points]
    lines = {"A": [(1, [0.4, 0.6]), (10, [0.9])], "B": [(1, [0.1])]}
    assert plots.lines_of(rows, "images", "accuracy", "family") == lines


def test_picture_has_no_empty_panels(tmp_path, monkeypatch):
    panels = []

    class Figure(figure_class()):
        def savefig(self, path, **options):
            panels.extend(self.axes)

    monkeypatch.setattr(plots, "figure_class", lambda: Figure)
    row = {"run": "a", "accuracy": 0.5, "5-shot": 0.25, "5-shot, paper": 0.75}
    y = ("5-shot", "accuracy")
    plots.picture(tmp_path / "3.png", "title", {"": [row]}, "bars", "", y, "")
    assert [axes.get_xlabel() for axes in panels] == ["5-shot", "5-shot, paper", "accuracy"]


def test_figure_5_has_imagenet_and_the_mean_of_five_datasets(tmp_path):
    study = studies.get("fig5")
    runs = study.runs(SCALES["paper"])
    results = {
        run.name: {"test/accuracy": run.paper.get("accuracy", 0), "study/exaflops": 1.0}
        for run in runs
    }
    panels = study.panels(rows_of(study, runs, results))
    expected = {
        "mean of five datasets": {"R50x1": TABLE_7["R50x1", "Adam"][-1], "ViT-H/14": 95.822},
        "ImageNet": {"R50x1": 77.54, "ViT-H/14": 88.08},
    }
    assert list(panels) == list(expected)
    for title, rows in panels.items():
        assert len(rows) == 16
        assert all(row["accuracy"] == row["accuracy, paper"] for row in rows)
        for model, accuracy in expected[title].items():
            (row,) = (row for row in rows if row["model"] == model)
            assert 100 * row["accuracy"] == pytest.approx(accuracy, abs=0.005)
    assert list(study.panels([{"dataset": "digits", "accuracy": 0.5}])) == ["digits"]
    plots.picture(tmp_path / "5.png", "t", panels, *study.picture[:2], ("accuracy",), "family")
    assert (tmp_path / "5.png").stat().st_size > 5000


def test_seeds_must_be_different():
    with pytest.raises(ValueError, match="`seeds` must be one or more different integers"):
        Scale("small", seeds=(1, 1))


def test_run_cannot_precede_its_pretraining(tmp_path):
    study = studies.get("self_supervision")
    runs = study.runs(SCALES["tiny"])
    with pytest.raises(ValueError, match="starts from 'mean_color', which is not finished"):
        runner.make_run(study, runs[1], runs, tmp_path)
    assert not (tmp_path / "runs").exists()
