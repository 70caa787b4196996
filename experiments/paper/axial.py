"""Figure 13: models whose attention is along rows and columns, and those that they are made of."""

from study import FEWSHOT_METRICS, Run, Study

_RESNETS = {"ResNet": {"depth": 8, "width": 32, "version": 1}, "AxialResNet": {"depth": 8, "width": 32}}


def _runs(scale):
    runs = []
    for kind, architecture in (("ViT", "VisionTransformer"), ("Axial-ViT", "AxialVisionTransformer")):
        for patches in _patch_sizes(scale):
            if scale.is_paper:
                config = scale.paper_pretraining(f"ViT-B/{patches}", evals=("fewshot:imagenet2012",))
                config["architecture"] = architecture
            else:
                config = scale.pretraining(architecture=architecture, model={**scale.vit, "patch_size": patches})
            columns = {"model": kind, "patch size": patches}
            runs.append(Run(f"{kind}-patch={patches}", config, columns))
    for kind, architecture in (("ResNet", "BiTResNet"), ("AxialResNet", "AxialResNet")):
        if scale.is_paper:
            config = {**scale.paper_pretraining("R50x1", evals=("fewshot:imagenet2012",)), "architecture": architecture}
            version = {"version": 1} if kind == "ResNet" else {}
            config["model"] = {**config["model"], **version}
        else:
            config = scale.pretraining(architecture=architecture, model=_RESNETS[kind])
        runs.append(Run(kind, config, {"model": kind}))
    return scale.with_seeds(runs)


def _patch_sizes(scale):
    size = scale.vit["patch_size"]
    return (32, 16) if scale.is_paper else (size,) if scale.is_tiny else (size, size // 2)


STUDY = Study(
    title="Axial attention (Figure 13)",
    question="Is attention along rows and columns better than attention to all patches, for the same compute?",
    runs=_runs,
    metrics=FEWSHOT_METRICS,
    picture=("lines", "exaFLOPs", "5-shot", "model"),
    notes=(
        "Axial-ViT has learned positions of columns and rows and reads the mean of its tokens; the paper does not say.",
        "AxialResNet is Scenic's, with heads of its form and scores that are not divided; the paper gives no equation.",
        "At the paper's scale AxialResNet-50 takes the recipe of R50x1, as Table 3 has no row of its own for it.",
    ),
)
