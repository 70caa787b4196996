"""Table 8: kinds of position embeddings and where they are added."""

from paper_results import TABLE_8
from study import FEWSHOT_METRICS, Run, Study

_NAMES = {"none": "none", "learned": "1-D", "learned2d": "2-D", "relative": "relative"}


def _runs(scale):
    runs = []
    for (kind, place), accuracy in TABLE_8.items():
        fields = {"position_embedding": kind, "position_embedding_at": place}
        if scale.is_paper:
            config = scale.paper_pretraining("ViT-B/16", evals=("fewshot:imagenet2012",), model_changes=fields)
        else:
            config = scale.pretraining(model={**scale.vit, **fields})
        columns = {"positions": _NAMES[kind], "added at": place}
        runs.append(Run(f"{kind}-{place}", config, columns, {"5-shot": accuracy}))
    return scale.with_seeds(runs)


STUDY = Study(
    title="Position embeddings (Table 8)",
    question="Does the kind of position embedding matter?",
    runs=_runs,
    metrics=FEWSHOT_METRICS,
    picture=("bars", "run", "5-shot", ""),
    notes=(
        "The class token has its own row in 1-D and 2-D tables and takes part in relative positions.",
        "Relative positions are vectors of the size of a head, shared by the heads of a layer, for keys only.",
    ),
)
