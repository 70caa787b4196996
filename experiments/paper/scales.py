"""The scales of a study, and the configs shared by all studies."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import drawn_shapes  # noqa: F401 (adds the dataset "shapes")
from study import Run

from keras_vit import data, families, recipes

NAMES = ("tiny", "small", "paper")


@dataclasses.dataclass(frozen=True)
class Scale:
    """The size of the runs of a study.

    Attributes:
        name: "tiny" trains each run for a few steps, as a test. "small" takes hours on a CPU. Both
            use generated images and digits. "paper" is the paper's setting.
        path: folder with the data for "paper", or for `fig12` a CSV file of tpu_table.py.
        seeds: different integers; every run is trained once with each seed.
        steps: number of pre-training steps in "small", 20 or more; some studies scale it.
    """

    name: str
    path: str = ""
    seeds: tuple = (0,)
    steps: int = 1000

    def __post_init__(self):
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(
                f"`seeds` must be one or more different integers. Received: seeds={self.seeds}"
            )

    @property
    def is_paper(self) -> bool:
        return self.name == "paper"

    @property
    def is_tiny(self) -> bool:
        return self.name == "tiny"

    def with_seeds(self, runs: Sequence[Run]) -> list[Run]:
        """Returns all runs for each seed. Seeds other than 0 are appended to the names of the
        runs."""
        return [self._seeded(run, seed) for seed in self.seeds for run in runs]

    def _seeded(self, run, seed):
        ending = f"-seed={seed}" if seed else ""
        return dataclasses.replace(
            run,
            name=run.name + ending,
            start=tuple(name + ending for name in run.start),
            config={**run.config, "seed": seed},
            columns={**run.columns, **({"seed": seed} if len(self.seeds) > 1 else {})},
        )

    @property
    def vit(self) -> dict[str, int]:
        """Returns `config.model` of the Vision Transformer in tiny and small studies."""
        if self.is_tiny:
            return {
                "patch_size": 8,
                "num_layers": 2,
                "hidden_size": 8,
                "mlp_dim": 16,
                "num_heads": 2,
            }
        return {"patch_size": 4, "num_layers": 4, "hidden_size": 64, "mlp_dim": 256, "num_heads": 4}

    @property
    def side(self) -> int:
        """Returns the default height and width, in pixels, of images in tiny and small studies."""
        return 16 if self.is_tiny else 32

    def pretraining(
        self,
        *,
        model: dict[str, Any] | None = None,
        task: str = "classification",
        examples: int = 0,
        side: int = 0,
        rate: float = 1e-3,
        evals: Sequence[str] | None = None,
        test: str = "test",
        **changes: Any,
    ) -> dict[str, Any]:
        """Returns the config of a pre-training on generated images of shapes.

        In "small", the label combines shape and color. In "tiny", the label is the texture.

        Args:
            model: `config.model`; None for `vit`.
            task: `config.task`.
            examples: number of training images in "small"; 0 for a million. "tiny" has 64.
            side: height and width of the images in pixels; 0 for the scale's property `side`.
            rate: the peak learning rate.
            evals: evaluators. None selects few-shot accuracy on digits in "small", and no evaluator
                in "tiny".
            test: the split whose first images are used for testing.
            **changes: other fields of the config. `optimizer` is merged with the default optimizer.
        """
        model = self.vit if model is None else model
        tiny = self.is_tiny
        evals = (() if tiny else ("fewshot:digits",)) if evals is None else evals
        name = "shapes:texture" if tiny else "shapes:shape-color"
        examples = 64 if tiny else examples or 1_000_000
        side = side or self.side
        optimizer = {"name": "adamw", "weight_decay": 0.1, **changes.pop("optimizer", {})}
        return {
            "recipe": f"{self.name} pre-training on {name}",
            "task": task,
            "batch_size": 8 if tiny else 64,
            "total_steps": 2 if tiny else self.steps,
            "clip_norm": 1.0,
            "steps_per_call": 1 if tiny else 20,
            "checkpoint_every_steps": 0 if tiny else 500,
            "evals": evals,
            "model": model,
            "data": data.defaults(
                name=name,
                image_shape=(side, side, 3),
                train_split=f"train[:{examples}]",
                test_split=f"{test}[:{32 if tiny else 2000}]",
            ),
            "optimizer": optimizer,
            "schedule": {
                "base": rate,
                "warmup_steps": 1 if tiny else max(1, self.steps // 15),
                "decay": "cosine",
            },
            **changes,
        }

    def finetuning(
        self, *, examples: int = 0, side: int = 0, rate: float = 0.01, **changes: Any
    ) -> dict[str, Any]:
        """Returns the config of a fine-tuning on digits, with SGD as in Table 4.

        Args:
            examples: number of training images in "small", balanced over classes; 0 for all. "tiny"
                has 20.
            side, rate: as in `pretraining`.
            **changes: other fields of the config.
        """
        tiny = self.is_tiny
        split = "train[:20]" if tiny else f"train[:{examples}]" if examples else "train"
        return {
            "recipe": f"{self.name} fine-tuning on digits",
            "batch_size": 8 if tiny else 64,
            "total_steps": 2 if tiny else max(20, self.steps // 3),
            "clip_norm": 1.0,
            "steps_per_call": 1 if tiny else 20,
            "checkpoint_every_steps": 0,
            "model": self.vit,
            "data": data.defaults(
                name="digits",
                image_size=side or self.side,
                flip="off",
                train_crop="resize",
                train_split=split,
            ),
            "optimizer": {"name": "sgd"},
            "schedule": {"base": rate, "warmup_steps": 1 if tiny else 10, "decay": "cosine"},
            **changes,
        }

    def paper_pretraining(
        self,
        model: str,
        dataset: str = "jft300m",
        evals: Sequence[str] = (),
        model_changes: Mapping[str, Any] | None = None,
        **choices: Any,
    ) -> dict[str, Any]:
        """Returns the config of a pre-training in Table 3.

        JFT-300M, which is not public, must be TFRecords in `path`.

        Args:
            model, dataset, **choices: as in `recipes.pretraining`.
            evals: names of evaluators, without a folder.
            model_changes: changes to `config.model`.
        """
        recipe = recipes.pretraining(model, dataset, **choices)
        recipe |= families.model_config(model, **{**recipe["model"], **(model_changes or {})})
        name = "tfrecords" if dataset == "jft300m" else dataset
        details = {"classes": 18_291} if name == "tfrecords" else {}
        recipe["data"] = data.defaults(name=name, path=self.path, **recipe["data"], **details)
        return {**recipe, "evals": tuple(f"{evaluator}@{self.path}" for evaluator in evals)}

    def paper_finetuning(self, model: str, dataset: str, weights: str = "") -> dict[str, Any]:
        """Returns the config of a fine-tuning in Table 4. `weights` is "" for a run that starts
        from an earlier run."""
        recipe = recipes.finetuning(model, dataset)
        recipe |= families.model_config(model, **recipe["model"])
        fixed = dict.fromkeys(data.DATASETS[dataset].options, "auto")
        recipe["data"] = data.defaults(name=dataset, path=self.path, **{**recipe["data"], **fixed})
        return {**recipe, "weights": weights}
