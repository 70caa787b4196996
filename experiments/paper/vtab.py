"""Table 9: the 19 tasks of VTAB-1k in three groups."""

from paper_results import TABLE_9
from study import Run, Study
from vtab_tasks import GROUPS, TASKS

# Factors of the generated shapes by VTAB group. At tiny and small scale, each task is to classify
# one factor.
_STAND_INS = {
    "natural": ("color", "shape"),
    "specialized": ("texture", "background_texture", "noise"),
    "structured": ("column", "row", "size", "rotation", "distractors"),
}


def _runs(scale):
    runs = []
    if scale.is_paper:
        means = dict(zip(TASKS, TABLE_9["ViT-L/16 ImageNet-21k"]))
        for group, tasks in GROUPS.items():
            for task in tasks:
                config = scale.paper_finetuning("ViT-L/16", f"vtab/{task}", weights="imagenet21k")
                paper = {"accuracy": means[task] / 100}
                runs.append(Run(task, config, {"group": group, "task": task}, paper))
        return scale.with_seeds(runs)
    runs.append(Run("pretrained", scale.pretraining(evals=()), {}, is_row=False))
    groups = {"structured": ("row",)} if scale.is_tiny else _STAND_INS
    for group, tasks in groups.items():
        for task in tasks:
            config = scale.finetuning()
            pretraining = scale.pretraining()["data"]
            split = "train[:64]" if scale.is_tiny else "train[:1000]"
            config["data"] = {
                **pretraining,
                "name": f"shapes:{task}",
                "split_seed": 1,
                "train_split": split,
            }
            runs.append(Run(task, config, {"group": group, "task": task}, start=("pretrained",)))
    return scale.with_seeds(runs)


STUDY = Study(
    title="VTAB-1k, task by task (Table 9)",
    question="Which tasks can a model learn from a thousand examples?",
    runs=_runs,
    metrics={"accuracy": "accuracy"},
    picture=("bars", "run", "accuracy", ""),
    notes=(
        "At tiny and small scale, each task classifies one factor of generated shapes, such as "
        "their color or size. The factors are grouped like VTAB's tasks.",
    ),
)
