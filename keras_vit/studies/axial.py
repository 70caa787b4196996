"""Figure 13: Vision Transformers whose attention is along rows and columns."""

from keras_vit.studies.study import Run, Study


def _runs(scale):
    runs = []
    for kind, task in (("ViT", "classification"), ("Axial-ViT", "axial_classification")):
        for patches in (32, 16) if scale.is_paper else (scale.vit["patch_size"], scale.vit["patch_size"] // 2):
            if scale.is_paper:
                config = scale.paper_pretraining(f"ViT-B/{patches}", evals=("fewshot:imagenet2012",))
                config["task"] = task
            else:
                config = scale.pretraining(task=task, model={**scale.vit, "patch_size": patches})
            columns = {"model": kind, "patch size": patches}
            runs.append(Run(f"{kind}-patch={patches}", config, columns))
    return scale.with_seeds(runs)


STUDY = Study(
    title="Axial attention (Figure 13)",
    question="Is attention along rows and columns better than attention to all patches, for the same compute?",
    runs=_runs,
    metrics={"5-shot": ("fewshot:digits/5shot", "fewshot:imagenet2012/5shot"), "accuracy": "accuracy"},
    picture=("lines", "exaFLOPs", "5-shot", "model"),
    notes=(
        "Axial-ViT has learned positions of columns and rows and reads the mean of its tokens; the paper does not say.",
        "AxialResNet, the figure's third model, is not part of this library.",
    ),
)
