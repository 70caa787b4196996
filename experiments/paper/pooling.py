"""Figure 9: class token and mean of the tokens, at different learning rates."""

from study import FEWSHOT_METRICS, Run, Study

_SETTINGS = (("token", 8e-4), ("gap", 8e-4), ("gap", 3e-4))


def _runs(scale):
    for classifier, rate in _SETTINGS:
        if scale.is_paper:
            config = scale.paper_pretraining(
                "ViT-B/16",
                evals=("fewshot:imagenet2012",),
                # The head of the mean has no hidden layer.
                model_changes={"classifier": classifier, "pre_logits": classifier == "token"},
            )
            config["schedule"] = {**config["schedule"], "base": rate}
        else:
            hidden = (
                {"representation_size": scale.vit["hidden_size"]} if classifier == "token" else {}
            )
            config = scale.pretraining(
                rate=rate, model={**scale.vit, "classifier": classifier, **hidden}
            )
        columns = {
            "head reads": {"token": "class token", "gap": "mean of tokens"}[classifier],
            "learning rate": rate,
        }
        yield Run(f"{classifier}-rate={rate:g}", config, columns)


STUDY = Study(
    title="Class token or mean of the tokens (Figure 9)",
    question="Is the class token better than the mean, or does each need its own learning rate?",
    runs_of=_runs,
    metrics=FEWSHOT_METRICS,
    picture=("bars", "run", "5-shot", ""),
    notes=(
        "The learning rates are from memory and were not checked against the figure.",
        "The head of the class token has a tanh layer and a linear layer. The head of the mean "
        "has only a linear layer.",
    ),
)
