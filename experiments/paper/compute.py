"""Figure 5 and Table 6: accuracy of ViTs, hybrids and ResNets against compute. Table 7: Adam or
SGD."""

import statistics

from paper_results import TABLE_6, TABLE_7, TABLE_7_COLUMNS
from small_models import SIDE, small_models
from study import Study, transfer

from keras_vit import families

# The fine-tuning datasets of Tables 6 and 7, with their fields in the rows of `TABLE_6`.
_DATASETS = {
    "imagenet2012": "imagenet",
    "cifar10": "cifar10",
    "cifar100": "cifar100",
    "pets": "pets",
    "flowers": "flowers",
}
_PAPER_NAMES = dict(zip(_DATASETS, TABLE_7_COLUMNS))


def _family(model):
    if families.canonical_name(model).startswith("BiT-"):
        return "ResNet"
    return "hybrid" if "+" in model else "ViT"


def _runs(scale):
    return _paper_runs(scale) if scale.is_paper else _small_runs(scale)


def _paper_runs(scale):
    for row in TABLE_6:
        if row.model == "R200x3" or (row.model, row.epochs) == ("R152x2", 14):
            continue  # Table 3 has no recipe for R200x3, or for 14 epochs of R152x2
        choices = {"epochs": float(row.epochs)} if row.model in ("ViT-L/16", "R50+ViT-L/16") else {}
        columns = {"family": _family(row.model), "model": row.model, "epochs": row.epochs}
        finetunings = {
            dataset: (
                scale.paper_finetuning(row.model, dataset),
                {"dataset": dataset},
                {"accuracy": getattr(row, field) / 100},
            )
            for dataset, field in _DATASETS.items()
        }
        name = f"{row.model.replace('/', '_')}-{row.epochs}"
        yield from transfer(
            name, scale.paper_pretraining(row.model, **choices), finetunings, columns
        )


def _small_runs(scale):
    for family, (architecture, model) in small_models(scale).items():
        for share in (1.0,) if scale.is_tiny else (0.25, 1.0):
            config = scale.pretraining(model=model, architecture=architecture, side=SIDE, evals=())
            config["total_steps"] = max(2, round(config["total_steps"] * share))
            warmup_steps = round(config["schedule"]["warmup_steps"] * share)
            config["schedule"]["warmup_steps"] = max(1, warmup_steps)
            finetuning = scale.finetuning(model=model, architecture=architecture, side=SIDE)
            columns = {"family": family, "steps": config["total_steps"], "dataset": "digits"}
            yield from transfer(
                f"{family}-{config['total_steps']}-steps",
                config,
                {"digits": (finetuning, {}, {})},
                columns,
            )


def _panels(rows):
    """Returns the rows of ImageNet, and a row with the mean of all five datasets for each
    pre-training.

    At other scales, returns the rows of each dataset.
    """
    of_dataset = {}
    of_pretraining = {}
    for row in rows:
        of_dataset.setdefault(row["dataset"], []).append(row)
        key = row.get("model"), row.get("epochs"), row.get("seed")
        of_pretraining.setdefault(key, {})[row["dataset"]] = row
    if set(of_dataset) != set(_DATASETS):
        return of_dataset
    means = []
    for by_dataset in of_pretraining.values():
        first = next(iter(by_dataset.values()))
        mean = {
            name: statistics.fmean(row[name] for row in by_dataset.values())
            for name in ("accuracy", "accuracy, paper")
        }
        means.append(first | mean)
    return {"mean of five datasets": means, "ImageNet": of_dataset["imagenet2012"]}


def _optimizer_runs(scale):
    return _paper_optimizers(scale) if scale.is_paper else _small_optimizers(scale)


_SGD = {"name": "sgd", "weight_decay": 0.0}


def _paper_optimizers(scale):
    for (model, optimizer), accuracies in TABLE_7.items():
        config = scale.paper_pretraining(model)
        if optimizer == "SGD":
            config["optimizer"] = {**_SGD, "momentum_dtype": "bfloat16"}
            config["schedule"] = {
                "decay": "cosine",
                "base": 0.03 * 4096 / 256,
                "warmup_steps": 5000,
            }
        finetunings = {
            dataset: (
                scale.paper_finetuning(model, dataset),
                {"dataset": _PAPER_NAMES[dataset]},
                {"accuracy": accuracy / 100},
            )
            for dataset, accuracy in zip(_DATASETS, accuracies)
        }
        yield from transfer(
            f"{model}-{optimizer}",
            config,
            finetunings,
            {"model": model, "pre-trained with": optimizer},
        )


def _small_optimizers(scale):
    architecture, model = small_models(scale)["ResNet"]
    for optimizer, rate in (("Adam", 1e-3), ("SGD", 0.03)):
        changes = {"optimizer": _SGD} if optimizer == "SGD" else {}
        config = scale.pretraining(
            model=model, architecture=architecture, side=SIDE, rate=rate, evals=(), **changes
        )
        finetuning = scale.finetuning(model=model, architecture=architecture, side=SIDE)
        columns = {"pre-trained with": optimizer, "dataset": "digits"}
        yield from transfer(
            f"pretrained-{optimizer}", config, {"digits": (finetuning, {}, {})}, columns
        )


COMPUTE = Study(
    title="Accuracy against pre-training compute (Figure 5, Table 6)",
    question=(
        "At equal compute, is a Vision Transformer better than a ResNet, and a hybrid better "
        "than both?"
    ),
    runs_of=_runs,
    metrics={"accuracy": "accuracy"},
    picture=("lines", "exaFLOPs", "accuracy", "family"),
    panels=_panels,
    notes=(
        "exaFLOPs count the pre-training, computed as in Table 6.",
        "At the paper's scale, we omit R200x3, and R152x2 with 14 epochs, because the paper has "
        "no recipe for them.",
    ),
)
ADAM_OR_SGD = Study(
    title="Adam or SGD for ResNets (Table 7)",
    question=(
        "Are BiT ResNets better pre-trained with Adam, as the Vision Transformers are, or with SGD?"
    ),
    runs_of=_optimizer_runs,
    metrics={"accuracy": "accuracy"},
    picture=("bars", "run", "accuracy", ""),
    notes=(
        "SGD uses BiT's learning rate of 0.03 (at paper scale, for a batch of 256), but a cosine "
        "decay instead of BiT's steps, and no weight decay instead of 0.0001.",
    ),
)
