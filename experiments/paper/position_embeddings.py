"""Table 8: kinds of position embeddings and where they are added."""

from paper_results import TABLE_8
from study import FEWSHOT_METRICS, Run, Study

_NAMES = {"none": "none", "learned": "1-D", "learned2d": "2-D", "relative": "relative"}


def _runs(scale):
    for (kind, place), accuracy in TABLE_8.items():
        fields = {"position_embedding": kind, "position_embedding_at": place}
        if scale.is_paper:
            config = scale.paper_pretraining(
                "ViT-B/16", evals=("fewshot:imagenet2012",), model_changes=fields
            )
        else:
            config = scale.pretraining(model={**scale.vit, **fields})
        columns = {"positions": _NAMES[kind], "added at": place}
        yield Run(f"{kind}-{place}", config, columns, {"5-shot": accuracy})


STUDY = Study(
    title="Position embeddings (Table 8)",
    question="Does the kind of position embedding matter?",
    runs_of=_runs,
    metrics=FEWSHOT_METRICS,
    picture=("bars", "run", "5-shot", ""),
    notes=(
        "In the 1-D and 2-D variants, the class token has its own vector. In the relative "
        "variant, it has position 0.",
        "In the relative variant, each distance has a vector, which is added to the keys and not "
        "to the values. All heads of a layer share these vectors.",
    ),
)
