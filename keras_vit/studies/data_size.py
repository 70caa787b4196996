"""Figures 3 and 4: what models of different families gain from more data."""

from keras_vit.studies.families import families
from keras_vit.studies.study import Run, Study

_SIZES = {"tiny": (64,), "small": (1_000, 10_000, 100_000)}
_JFT = ("ViT-B/32", "ViT-L/16", "ViT-L/32", "R50x1", "R152x2")


def _fewshot_runs(scale):
    """Figure 4: nested subsets, the same number of steps on each, no extra regularization."""
    if scale.is_paper:
        return scale.with_seeds(list(_paper_subsets(scale)))
    runs = []
    for examples in _SIZES[scale.name]:
        for family, (task, model) in families(scale).items():
            evals = () if scale.is_tiny else ("fewshot:digits", "fewshot:shapes:size", "fewshot:shapes:rotation")
            config = scale.pretraining(model=model, task=task, examples=examples, evals=evals)
            runs.append(Run(f"{family}-{examples}", config, {"family": family, "images to train on": examples}))
    return scale.with_seeds(runs)


def _paper_subsets(scale):
    for model in _JFT:
        for millions in (9, 30, 90, 303):
            choices = {"epochs": 7} if model == "ViT-L/16" else {}
            config = scale.paper_pretraining(model, evals=("fewshot:imagenet2012",), **choices)
            config["recipe"] += f", the part of {millions} million images that `train_split` names"
            config["data"] = {**config["data"], "train_split": f"train-{millions}m-*"}
            columns = {"family": model, "images to train on": millions * 1_000_000}
            yield Run(f"{model.replace('/', '_')}-{millions}m", config, columns)


def _transfer_runs(scale):
    """Figure 3: pre-training on datasets of growing size, then fine-tuning; regularization chosen on held-out data."""
    if scale.is_paper:
        runs = []
        for model in ("ViT-B/32", "ViT-B/16", "ViT-L/32", "ViT-L/16"):
            for dataset, choices in (("imagenet2012", {}), ("imagenet21k", {"epochs": 90}), ("jft300m", {"epochs": 7})):
                if dataset == "imagenet21k" and model.startswith("ViT-B"):
                    choices = {}
                if dataset == "jft300m" and model != "ViT-L/16":
                    choices = {}
                name = f"{model.replace('/', '_')}-{dataset}"
                columns = {"family": model, "images to train on": _SIZE_OF[dataset], "weight decay": "Table 3"}
                pretraining = scale.paper_pretraining(model, dataset, **choices)
                runs.append(Run(name, pretraining, columns, is_row=False))
                finetuning = scale.paper_finetuning(model, "imagenet2012")
                runs.append(Run(f"{name}-finetuned", finetuning, columns, start=name))
        return scale.with_seeds(runs)
    runs = []
    for examples in _SIZES[scale.name]:
        for family, (task, model) in families(scale).items():
            for decay, smoothing in ((0.1, 0.0),) if scale.is_tiny else ((0.03, 0.0), (0.3, 0.1)):
                name = f"{family}-{examples}-decay={decay:g}-smoothing={smoothing:g}"
                config = scale.pretraining(
                    model=model, task=task, examples=examples, evals=(), optimizer={"weight_decay": decay}
                )
                config["data"]["label_smoothing"] = smoothing
                columns = {"family": family, "images to train on": examples, "weight decay": decay}
                columns["smoothing"] = smoothing
                runs.append(Run(name, config, columns, is_row=False))
                finetuning = scale.finetuning(model=model, task=task)
                runs.append(Run(f"{name}-finetuned", finetuning, columns, start=name))
    return scale.with_seeds(runs)


_SIZE_OF = {"imagenet2012": 1_281_167, "imagenet21k": 14_197_122, "jft300m": 303_000_000}

FIGURE_4 = Study(
    title="Few-shot accuracy against the size of the pre-training data (Figure 4)",
    question="Does a ResNet lead with little data, and a Vision Transformer with much?",
    runs=_fewshot_runs,
    metrics={
        "5-shot": ("fewshot:digits/5shot", "fewshot:imagenet2012/5shot"),
        "10-shot": ("fewshot:digits/10shot", "fewshot:imagenet2012/10shot"),
        "5-shot, size": "fewshot:shapes:size/5shot",
        "5-shot, rotation": "fewshot:shapes:rotation/5shot",
        "accuracy": "accuracy",
    },
    picture=("lines", "images to train on", "5-shot", "family"),
    notes=(
        "Every run takes the same number of steps, so fewer images are seen more often; the paper stops early instead.",
        "Subsets are nested: the first images of the same order.",
    ),
)
FIGURE_3 = Study(
    title="Transfer against the size of the pre-training data (Figure 3)",
    question="Which family gains most from more data, where each is regularized as suits it?",
    runs=_transfer_runs,
    metrics={"accuracy": "accuracy"},
    picture=("lines", "images to train on", "accuracy", "family"),
    notes=("Of the settings of weight decay and label smoothing all are shown; the line goes through the best.",),
)
