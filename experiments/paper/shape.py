"""Figure 8: which dimension of a Vision Transformer to scale."""

from study import FEWSHOT_METRICS, Run, Study

# Each dimension of the base model is multiplied by these factors; the patch size is divided by
# them.
_FACTORS = {"paper": (0.5, 1.0, 2.0), "small": (0.5, 1.0, 2.0), "tiny": (2.0,)}


def _scaled(base, dimension, factor):
    sizes = dict(base)
    if dimension in ("depth", "all"):
        sizes["num_layers"] = max(1, round(base["num_layers"] * factor))
    if dimension in ("width", "all"):
        sizes["hidden_size"] = round(base["hidden_size"] * factor)
        sizes["num_heads"] = max(1, round(base["num_heads"] * factor))
    if dimension in ("mlp", "all"):
        sizes["mlp_dim"] = round(base["mlp_dim"] * factor)
    if dimension in ("patch size", "all"):
        sizes["patch_size"] = round(base["patch_size"] / factor)
    return sizes


def _runs(scale):
    base = scale.vit
    if scale.is_paper:
        base = {
            "patch_size": 32,
            "num_layers": 8,
            "hidden_size": 1024,
            "mlp_dim": 2048,
            "num_heads": 16,
        }
    for dimension in ("depth", "width", "mlp", "patch size", "all"):
        for factor in _FACTORS[scale.name]:
            if scale.is_paper:
                config = scale.paper_pretraining("ViT-B/32", evals=("fewshot:imagenet2012",))
                # The name "ViT-B/32" would fix the sizes.
                config["architecture"] = "VisionTransformer"
                config["model"] = {**config["model"], **_scaled(base, dimension, factor)}
                # Images have 192 pixels for patches of 64, else 224.
                patch_size = config["model"]["patch_size"]
                config["data"] = {**config["data"], "image_size": 224 // patch_size * patch_size}
            else:
                config = scale.pretraining(model=_scaled(base, dimension, factor))
            name = f"{dimension.replace(' ', '-')}-x{factor:g}"
            yield Run(name, config, {"scaled": dimension, "factor": factor})


STUDY = Study(
    title="Scaling the Transformer's shape (Figure 8)",
    question=(
        "At equal compute, what helps most: depth, width, a larger MLP, smaller patches, or "
        "all of them?"
    ),
    runs_of=_runs,
    metrics=FEWSHOT_METRICS,
    picture=("lines", "exaFLOPs", "5-shot", "scaled"),
    notes=(
        "The paper describes the base model but not the factors by which its dimensions are "
        "scaled. We use 0.5, 1 and 2 (2 only at tiny scale), and scale the number of heads with "
        "the width.",
    ),
)
