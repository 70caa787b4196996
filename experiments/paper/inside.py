"""Figures 6, 7, 11 and 14: pictures of trained models."""

from study import Run, Study


def _runs(scale):
    if scale.is_paper:
        return scale.with_seeds(
            [
                Run(
                    "ViT-L_16",
                    scale.paper_pretraining("ViT-L/16", epochs=14.0),
                    {"model": "ViT-L/16"},
                ),
                Run("ViT-L_32", scale.paper_pretraining("ViT-L/32"), {"model": "ViT-L/32"}),
            ]
        )
    return scale.with_seeds([Run("ViT", scale.pretraining(evals=()), {"model": "ViT"})])


STUDY = Study(
    title="Inside a Vision Transformer (Figures 6, 7, 11 and 14)",
    question="What do trained filters, position embeddings and attention look like?",
    runs=_runs,
    metrics={"accuracy": "accuracy"},
    picture=("bars", "run", "accuracy", ""),
    notes=(
        "Attention rollout is shown with and without adding the identity matrix to the scores; "
        "the paper does not mention the identity.",
    ),
    inspected=True,
)
