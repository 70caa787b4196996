"""Figure 13: Axial-ViT, with attention along rows and columns, compared with the ordinary Vision
Transformer."""

from study import FEWSHOT_METRICS, Run, Study


def _runs(scale):
    for kind, architecture in (
        ("ViT", "VisionTransformer"),
        ("Axial-ViT", "AxialVisionTransformer"),
    ):
        for size in _patch_sizes(scale):
            if scale.is_paper:
                config = scale.paper_pretraining(f"ViT-B/{size}", evals=("fewshot:imagenet2012",))
                config["architecture"] = architecture
            else:
                config = scale.pretraining(
                    architecture=architecture, model={**scale.vit, "patch_size": size}
                )
            columns = {"model": kind, "patch size": size}
            yield Run(f"{kind}-patch={size}", config, columns)


def _patch_sizes(scale):
    if scale.is_paper:
        return (32, 16)
    size = scale.vit["patch_size"]
    return (size,) if scale.is_tiny else (size, size // 2)


STUDY = Study(
    title="Axial attention (Figure 13)",
    question=(
        "Is attention along rows and columns better than attention to all patches, for the "
        "same compute?"
    ),
    runs_of=_runs,
    metrics=FEWSHOT_METRICS,
    picture=("lines", "exaFLOPs", "5-shot", "model"),
    notes=(
        "Axial-ViT has learned position embeddings for columns and rows, and its head reads the "
        "mean of the tokens. The paper specifies neither.",
        "We omit AxialResNet and the ResNet on which it is based.",
    ),
)
