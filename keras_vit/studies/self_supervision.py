"""Section 4.6: masked patch prediction, then fine-tuning with few labels, against training from scratch."""

from keras_vit import architectures, data
from keras_vit.studies.study import Run, Study
from keras_vit.tasks.masked_patches import TARGETS


def _runs(scale):
    runs = []
    if scale.is_paper:
        config = {
            "recipe": "masked patch prediction of ViT-B/16, appendix B.1.2",
            "task": "masked_patches",
            "batch_size": 4096,
            "total_steps": 1_000_000,
            "model": architectures.VISION_TRANSFORMERS["ViT-B/16"],
            "data": data.defaults(name="tfrecords", classes=18_291, path=scale.path, image_size=224),
            "optimizer": {"name": "adamw", "weight_decay": 0.1},
            "schedule": {"base": 2e-4, "warmup_steps": 10_000, "decay": "cosine"},
        }
        for target in TARGETS:
            changes = {"model": {**config["model"], "target": target}}
            changes["best_metric"] = "loss" if target == "pixels" else "accuracy"
            runs.append(Run(target, {**config, **changes}, {}, is_row=False))
            paper = {"accuracy": 0.799} if target == "mean_color" else {}
            columns = {"pre-training": target, "labels": 1_281_167}
            finetuning = scale.paper_finetuning("ViT-B/16", "imagenet2012")
            runs.append(Run(f"{target}-imagenet", finetuning, columns, paper, start=target))
        return scale.with_seeds(runs)
    targets = TARGETS[:1] if scale.is_tiny else TARGETS
    for target in targets:
        # A patch of 4 pixels is its own 4x4 target.
        config = scale.pretraining(task="masked_patches", model={**scale.vit, "target": target}, evals=())
        config["best_metric"] = "loss" if target == "pixels" else "accuracy"
        runs.append(Run(target, config, {}, is_row=False))
    for labels in (20,) if scale.is_tiny else (10, 100, 1437):
        for target in ("from scratch", *targets):
            start = "" if target == "from scratch" else target
            name = f"{target.replace(' ', '-')}-{labels}-labels"
            config = scale.finetuning(
                examples=labels if labels < 1437 else 0, rate=1e-3, optimizer={"name": "adamw", "weight_decay": 0.1}
            )
            runs.append(Run(name, config, {"pre-training": target, "labels": labels}, start=start))
    return scale.with_seeds(runs)


STUDY = Study(
    title="Self-supervision by masked patches (section 4.6)",
    question="How much does a model gain from predicting half of its patches, where there are few labels?",
    runs=_runs,
    metrics={"accuracy": "accuracy"},
    picture=("lines", "labels", "accuracy", "pre-training"),
    notes=(
        "Fine-tuning takes AdamW at small scale, with and without pre-training.",
        "Which patches are corrupted is exact by count and drawn for each image; the paper does not say.",
    ),
)
