"""Figure 10: position embeddings of models trained with different hyperparameters."""

from study import Run, Study

_SETTINGS = ((7, 2e-4, 0.01), (7, 4e-4, 0.1), (14, 4e-4, 0.1))


def _runs(scale):
    for epochs, rate, decay in _SETTINGS:
        if scale.is_paper:
            config = scale.paper_pretraining("ViT-L/16", epochs=float(epochs))
            config["schedule"] = {**config["schedule"], "base": rate}
            config["optimizer"] = {**config["optimizer"], "weight_decay": decay}
        else:
            config = scale.pretraining(rate=5 * rate, optimizer={"weight_decay": decay}, evals=())
            config["total_steps"] *= epochs // 7
        columns = {
            "epochs": epochs,
            "learning rate": config["schedule"]["base"],
            "weight decay": decay,
        }
        yield Run(f"epochs={epochs}-rate={rate:g}", config, columns)


STUDY = Study(
    title="Similarity of position embeddings (Figure 10)",
    question="Do position embeddings learn rows and columns with any hyperparameters?",
    runs_of=_runs,
    metrics={"accuracy": "accuracy"},
    picture=("bars", "run", "accuracy", ""),
    notes=(
        "The epochs, learning rates and weight decays are from memory and were not checked "
        "against the figure.",
        "At small scale, the learning rates are five times as high. The run with 14 epochs takes "
        "twice as many steps as the runs with 7.",
    ),
    inspected=True,
)
