"""Figures 6, 7, 11 and 14: pictures of trained models."""

from study import Run, Study


def _runs(scale):
    if not scale.is_paper:
        yield Run("ViT", scale.pretraining(evals=()), {"model": "ViT"})
        return
    for model, choices in {"ViT-L/16": {"epochs": 14.0}, "ViT-L/32": {}}.items():
        config = scale.paper_pretraining(model, **choices)
        yield Run(model.replace("/", "_"), config, {"model": model})


STUDY = Study(
    title="Inside a Vision Transformer (Figures 6, 7, 11 and 14)",
    question="What do trained filters, position embeddings and attention look like?",
    runs_of=_runs,
    metrics={"accuracy": "accuracy"},
    picture=("bars", "run", "accuracy", ""),
    notes=(
        "Attention rollout is shown with and without adding the identity matrix to the scores; "
        "the paper does not mention the identity.",
        "The hybrid of Figure 11 is not part of this study.",
    ),
    inspected=True,
)
