"""Table 9: the 19 tasks of VTAB-1k in three groups."""

from paper_results import TABLE_9
from study import Run, Study

GROUPS = {
    "natural": ("caltech101", "cifar100", "dtd", "flowers", "pets", "sun397", "svhn"),
    "specialized": ("camelyon", "eurosat", "resisc45", "retinopathy"),
    "structured": (
        *("clevr_count", "clevr_distance", "dmlab", "dsprites_location", "dsprites_orientation"),
        *("kitti", "smallnorb_azimuth", "smallnorb_elevation"),
    ),
}
# Factors of the generated shapes by VTAB group. At tiny and small scale, each task is to classify
# one factor.
_STAND_INS = {
    "natural": ("color", "shape"),
    "specialized": ("texture", "background_texture", "noise"),
    "structured": ("column", "row", "size", "rotation", "distractors"),
}


def _runs(scale):
    return _paper_runs(scale) if scale.is_paper else _small_runs(scale)


def _paper_runs(scale):
    tasks = [(group, task) for group, names in GROUPS.items() for task in names]
    for (group, task), accuracy in zip(tasks, TABLE_9):
        config = scale.paper_finetuning("ViT-L/16", f"vtab/{task}", weights="imagenet21k")
        yield Run(task, config, {"group": group, "task": task}, {"accuracy": accuracy / 100})


def _small_runs(scale):
    yield Run("pretrained", scale.pretraining(evals=()), {}, is_row=False)
    groups = {"structured": ("row",)} if scale.is_tiny else _STAND_INS
    for group, factors in groups.items():
        for factor in factors:
            config = scale.finetuning()
            config["data"] = {
                **scale.pretraining()["data"],
                "name": f"shapes:{factor}",
                "split_seed": 1,
                "train_split": "train[:64]" if scale.is_tiny else "train[:1000]",
            }
            columns = {"group": group, "task": factor}
            yield Run(factor, config, columns, start=("pretrained",))


STUDY = Study(
    title="VTAB-1k, task by task (Table 9)",
    question="Which tasks can a model learn from a thousand examples?",
    runs_of=_runs,
    metrics={"accuracy": "accuracy"},
    picture=("bars", "run", "accuracy", ""),
    notes=(
        "At tiny and small scale, each task classifies one factor of generated shapes, such as "
        "their color or size. The factors are grouped like VTAB's tasks.",
    ),
)
