"""Section 4.6: pre-training by masked patch prediction, then fine-tuning.

The small scale fine-tunes with several numbers of labels and compares the results with training
from scratch.
"""

from paper_results import SELF_SUPERVISION_ACCURACY
from small_models import SIDE, small_models
from study import Run, Study, transfer

from keras_vit import families, recipes
from keras_vit.tasks.masked_patches import TARGETS


def _runs(scale):
    return _paper_runs(scale) if scale.is_paper else _small_runs(scale)


def _paper_runs(scale):
    config = {
        "recipe": "masked patch prediction of ViT-B/16, appendix B.1.2",
        "task": "masked_patches",
        "batch_size": 4096,
        "total_steps": 1_000_000,
        "architecture": "ViT-B/16",
        "model": families.sizes()["ViT-B/16"],
        "data": scale.paper_pretraining("ViT-B/16")["data"],
        "optimizer": {"name": "adamw", "weight_decay": 0.1},
        "schedule": {"base": 2e-4, "warmup_steps": 10_000, "decay": "cosine"},
    }
    labels = recipes.NUM_EXAMPLES["imagenet2012"]
    for target in TARGETS:
        paper = {"accuracy": SELF_SUPERVISION_ACCURACY / 100} if target == "mean_color" else {}
        finetuning = scale.paper_finetuning("ViT-B/16", "imagenet2012")
        columns = {"pre-training": target, "labels": labels}
        yield from transfer(
            target, _predicting(config, target), {"imagenet": (finetuning, {}, paper)}, columns
        )


def _small_runs(scale):
    _, vit = small_models(scale)["ViT"]
    everything = recipes.NUM_EXAMPLES["digits"]
    configs = {
        labels: scale.finetuning(
            model=vit,
            examples=0 if labels == everything else labels,  # 0 selects all examples
            side=SIDE,
            rate=1e-3,
            optimizer={"name": "adamw", "weight_decay": 0.1},
        )
        for labels in ((20,) if scale.is_tiny else (10, 100, everything))
    }
    pretraining = scale.pretraining(task="masked_patches", model=vit, side=SIDE, evals=())
    finetunings = {
        f"{labels}-labels": (config, {"labels": labels}, {}) for labels, config in configs.items()
    }
    yield from transfer(
        "mean_color",
        _predicting(pretraining, "mean_color"),
        finetunings,
        {"pre-training": "mean_color"},
    )
    for labels, config in configs.items():
        yield Run(
            f"from-scratch-{labels}-labels",
            config,
            {"pre-training": "from scratch", "labels": labels},
        )


def _predicting(config, target):
    """Returns the pre-training config for a prediction target."""
    best_metric = "loss" if target == "pixels" else "accuracy"
    return {**config, "model": {**config["model"], "target": target}, "best_metric": best_metric}


STUDY = Study(
    title="Self-supervision by masked patches (section 4.6)",
    question=(
        "How much does pre-training by predicting half of the patches help, depending on the "
        "number of labels?"
    ),
    runs_of=_runs,
    metrics={"accuracy": "accuracy"},
    picture=("lines", "labels", "accuracy", "pre-training"),
    notes=(
        "At small scale, we pre-train on colored shapes and fine-tune on grayscale digits. The "
        "only prediction target is the mean color, for which the paper reports a result.",
        "At small scale, every row of the table trains on digits with AdamW for the same number "
        "of steps.",
        "Each image has its own random mask with a fixed number of corrupted patches; the paper "
        "does not specify this.",
    ),
)
