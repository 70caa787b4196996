"""Figures 3 and 4: how models of different families benefit from more data."""

import itertools

from small_models import SIDE, small_models
from study import FEWSHOT_METRICS, Run, Study

from keras_vit import recipes

_SIZES = {"tiny": (64,), "small": (1_000, 10_000, 100_000)}
_JFT = ("ViT-B/32", "ViT-L/16", "ViT-L/32", "R50x1", "R152x2")
# Figure 3: candidates for weight decay, dropout and label smoothing on the smaller datasets. The
# paper does not give its candidates; these include the values of Table 3.
_SEARCH = tuple(itertools.product((0.03, 0.1, 0.3), (0.0, 0.1), (0.0, 0.1)))
_SMALL_SEARCH = ((0.03, 0.0, 0.0), (0.3, 0.0, 0.0), (0.3, 0.1, 0.1))


def _fewshot_runs(scale):
    """Yields the runs of Figure 4 on nested subsets. At small scale, all runs take the same number
    of steps."""
    if scale.is_paper:
        yield from _paper_subsets(scale)
        return
    evals = () if scale.is_tiny else ("fewshot:digits", "fewshot:shapes:background")
    for examples in _SIZES[scale.name]:
        for family, (architecture, model) in small_models(scale).items():
            config = scale.pretraining(
                model=model, architecture=architecture, examples=examples, side=SIDE, evals=evals
            )
            columns = {"family": family, "images to train on": examples}
            yield Run(f"{family}-{examples}", config, columns)


def _paper_subsets(scale):
    for model in _JFT:
        for millions in (9, 30, 90, 303):
            choices = {"epochs": 7.0} if model == "ViT-L/16" else {}
            config = scale.paper_pretraining(model, evals=("fewshot:imagenet2012",), **choices)
            config["recipe"] += f", the part of {millions} million images that `train_split` names"
            config["data"] = {**config["data"], "train_split": f"train-{millions}m-*"}
            examples = millions * 1_000_000
            # Steps, because `images_of` takes epochs for epochs of all 303 million images.
            config["total_steps"] = round(
                config.pop("total_epochs") * examples / config["batch_size"]
            )
            columns = {"family": model, "images to train on": examples}
            yield Run(f"{model.replace('/', '_')}-{millions}m", config, columns)


def _transfer_runs(scale):
    """Yields the runs of Figure 3: for each model and dataset, pre-trainings to choose from, then
    a fine-tuning."""
    transfers = _paper_transfers(scale) if scale.is_paper else _small_transfers(scale)
    for name, columns, pretrainings, finetuning in transfers:
        searched = []
        for (decay, dropout, smoothing), config in pretrainings:
            regularization = {"weight decay": decay, "dropout": dropout, "smoothing": smoothing}
            ending = f"decay={decay:g}-dropout={dropout:g}-smoothing={smoothing:g}"
            searched.append(
                Run(f"{name}-{ending}", config, {**columns, **regularization}, is_row=False)
            )
        start = tuple(run.name for run in searched)
        yield from searched
        yield Run(f"{name}-finetuned", finetuning, columns, start=start)


def _paper_transfers(scale):
    """Yields `(name, columns, [(regularization, pre-training)], fine-tuning)` for each model and
    dataset."""
    for model in ("ViT-B/32", "ViT-B/16", "ViT-L/32", "ViT-L/16"):
        for dataset in ("imagenet2012", "imagenet21k", "jft300m"):
            choices = {}
            if model == "ViT-L/16" and dataset == "jft300m":
                choices = {"epochs": 7.0}
            elif model.startswith("ViT-L") and dataset == "imagenet21k":
                choices = {"epochs": 90.0}
            table_3 = scale.paper_pretraining(model, dataset, **choices)
            columns = {"family": model, "images to train on": recipes.NUM_EXAMPLES[dataset]}
            regularizations = _SEARCH
            if dataset == "jft300m":  # the paper tunes only the smaller datasets
                regularizations = (
                    (table_3["optimizer"]["weight_decay"], table_3["model"]["dropout"], 0.0),
                )
            pretrainings = []
            for regularization in regularizations:
                config = _regularized(table_3, *regularization)
                if len(regularizations) > 1:
                    config["data"] |= {"train_split": "tune_train", "test_split": "tune_val"}
                pretrainings.append((regularization, config))
            finetuning = scale.paper_finetuning(model, "imagenet2012")
            yield f"{model.replace('/', '_')}-{dataset}", columns, pretrainings, finetuning


def _small_transfers(scale):
    for examples in _SIZES[scale.name]:
        for family, (architecture, model) in small_models(scale).items():
            if scale.is_tiny and family != "ViT":
                continue
            pretrainings = []
            for regularization in _SMALL_SEARCH[:2] if scale.is_tiny else _SMALL_SEARCH:
                if family == "ResNet":  # ResNets have no dropout
                    regularization = (regularization[0], 0.0, regularization[2])
                config = scale.pretraining(
                    model=model,
                    architecture=architecture,
                    examples=examples,
                    side=SIDE,
                    evals=(),
                    test="tune_val",
                )
                pretrainings.append((regularization, _regularized(config, *regularization)))
            columns = {"family": family, "images to train on": examples}
            finetuning = scale.finetuning(model=model, architecture=architecture, side=SIDE)
            yield f"{family}-{examples}", columns, pretrainings, finetuning


def _regularized(config, decay, dropout, smoothing):
    """Returns a pre-training config with the given weight decay, dropout and label smoothing."""
    model = dict(config["model"])
    if dropout or "dropout" in model:
        model["dropout"] = dropout
    return {
        **config,
        "optimizer": {**config["optimizer"], "weight_decay": decay},
        "model": model,
        "data": {**config["data"], "label_smoothing": smoothing},
    }


FIGURE_4 = Study(
    title="Few-shot accuracy against the size of the pre-training data (Figure 4)",
    question="Is a ResNet better with little data, and a Vision Transformer with much?",
    runs_of=_fewshot_runs,
    metrics={
        **FEWSHOT_METRICS,
        "10-shot": ("fewshot:digits/10shot", "fewshot:imagenet2012/10shot"),
        "5-shot, background": "fewshot:shapes:background/5shot",
    },
    picture=(
        "lines",
        "images to train on",
        ("5-shot", "10-shot", "5-shot, background", "accuracy"),
        "family",
    ),
    notes=(
        "At tiny and small scale, every run takes the same number of steps, so smaller sets "
        "repeat more often. The paper stops early instead.",
        "At tiny and small scale, the subsets are nested: each is a prefix of the same sequence.",
        "At small scale, the models learn to classify the shape and color of generated shapes; "
        "`accuracy` measures this on held-out images. Few-shot accuracy is measured on digits and "
        "on the color of the background, which is not a label in pre-training.",
    ),
)
FIGURE_3 = Study(
    title="Transfer against the size of the pre-training data (Figure 3)",
    question="Which family gains most from more data, each with its best regularization?",
    runs_of=_transfer_runs,
    metrics={"accuracy": "accuracy"},
    picture=("lines", "images to train on", "accuracy", "family"),
    notes=(
        "We choose the weight decay, dropout and label smoothing with the best accuracy on "
        "held-out pre-training images. The paper specifies neither the candidates nor how it "
        "chose among them.",
        "On JFT-300M, the weight decay and dropout are those of Table 3, without label smoothing.",
        "exaFLOPs count the chosen pre-training, not the search.",
    ),
)
