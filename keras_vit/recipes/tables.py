"""The papers' hyperparameter tables, row by row, and values from the authors' code.

If a hyperparameter is a tuple, it lists the values to choose from.
"""

from typing import NamedTuple


class Pretraining(NamedTuple):
    """A row of Table 3. `models` are model names, or patterns with `*`."""

    models: tuple
    dataset: str
    epochs: float | tuple
    base: float
    decay: str
    weight_decay: float
    dropout: float


TABLE_3 = (
    Pretraining(("ViT-B/16", "ViT-B/32"), "jft300m", 7.0, 8e-4, "linear", 0.1, 0.0),
    Pretraining(("ViT-L/32",), "jft300m", 7.0, 6e-4, "linear", 0.1, 0.0),
    Pretraining(("ViT-L/16",), "jft300m", (7.0, 14.0), 4e-4, "linear", 0.1, 0.0),
    Pretraining(("ViT-H/14",), "jft300m", 14.0, 3e-4, "linear", 0.1, 0.0),
    Pretraining(("BiT-R50x1", "BiT-R50x2"), "jft300m", 7.0, 1e-3, "linear", 0.1, 0.0),
    Pretraining(("BiT-R101x1",), "jft300m", 7.0, 8e-4, "linear", 0.1, 0.0),
    Pretraining(("BiT-R152x1", "BiT-R152x2"), "jft300m", 7.0, 6e-4, "linear", 0.1, 0.0),
    Pretraining(("R50+ViT-B/16", "R50+ViT-B/32"), "jft300m", 7.0, 8e-4, "linear", 0.1, 0.0),
    Pretraining(("R50+ViT-L/32",), "jft300m", 7.0, 2e-4, "linear", 0.1, 0.0),
    Pretraining(("R50+ViT-L/16",), "jft300m", (7.0, 14.0), 4e-4, "linear", 0.1, 0.0),
    Pretraining(("ViT-B/16", "ViT-B/32"), "imagenet21k", 90.0, 1e-3, "linear", 0.03, 0.1),
    Pretraining(("ViT-L/16", "ViT-L/32"), "imagenet21k", (30.0, 90.0), 1e-3, "linear", 0.03, 0.1),
    Pretraining(("ViT-*",), "imagenet2012", 300.0, 3e-3, "cosine", 0.3, 0.1),
)
"""The paper's Table 3. All rows use batch size 4,096, 10,000 steps of warm-up, 224 pixels, and Adam
with betas 0.9 and 0.999."""
# The maximum global norm of the gradients by dataset; 0 is off.
TABLE_3_CLIP_NORM = {"jft300m": 0.0, "imagenet21k": 0.0, "imagenet2012": 1.0}

# The loss and the initial bias of the head. They are not in the paper, but in the authors' later
# code, big_vision (vit_i21k.py, vit_i1k.py). JFT-300M uses the values of vit_i21k.py. -6.9 is
# -log(1000), for 1,000 classes.
PRETRAINING_LOSS = {
    "jft300m": ("sigmoid", -10.0),
    "imagenet21k": ("sigmoid", -10.0),
    "imagenet2012": ("sigmoid", -6.9),
}


class Finetuning(NamedTuple):
    """A row of Table 4. `warmup_steps` is not in the table, but in vit_jax and big_vision
    (transfer.py)."""

    datasets: tuple
    steps: int
    rates: tuple
    warmup_steps: int


TABLE_4 = (
    Finetuning(("imagenet2012",), 20_000, (0.003, 0.01, 0.03, 0.06), 500),
    Finetuning(("cifar100",), 10_000, (0.001, 0.003, 0.01, 0.03), 500),
    Finetuning(("cifar10",), 10_000, (0.001, 0.003, 0.01, 0.03), 500),
    Finetuning(("pets",), 500, (0.001, 0.003, 0.01, 0.03), 100),
    Finetuning(("flowers",), 500, (0.001, 0.003, 0.01, 0.03), 100),
    Finetuning(("vtab/*",), 2_500, (0.01,), 500),
)
"""The paper's Table 4. All rows use batch size 512, cosine decay, SGD with momentum 0.9, gradient
clipping to 1, and 384 pixels."""
# The learning rate of fine-tuning without a sweep, the default of vit_jax.
UNSWEPT_RATE = 0.03
# The dropout rates for fine-tuning in vit_jax's configs/models.py; other models use 0.
FINETUNING_DROPOUT = {"ViT-L/16": 0.1, "ViT-H/14": 0.1, "R50+ViT-B/16": 0.1, "R50+ViT-L/32": 0.1}
# The decay of Polyak averaging, which section 4.1 uses for ViT-L/16 at 512 pixels and ViT-H/14 at
# 518.
POLYAK_DECAY = 0.9999


class AugReg(NamedTuple):
    """A row of AugReg's pre-training recipes; `dropout` is also the rate of stochastic depth."""

    dataset: str
    epochs: float | tuple
    weight_decay: tuple
    dropout: tuple
    augreg: tuple


_LEVELS = ("none", "light1", "light2", "medium1", "medium2", "strong1", "strong2")
AUGREG = (
    AugReg("imagenet2012", 300.0, (0.03, 0.1), (0.0, 0.1), _LEVELS),
    AugReg("imagenet21k", (30.0, 300.0), (0.03, 0.1), (0.0, 0.1), _LEVELS),
)
"""Steiner et al., "How to train your ViT?", sections 3.3 and 3.4. All rows use batch size 4,096,
Adam, learning rate 0.001 with cosine decay, 10,000 steps of warm-up, gradient clipping to 1, and
224 pixels."""

NUM_EXAMPLES = {
    "digits": 1_437,
    "imagenet2012": 1_281_167,
    "imagenet21k": 14_197_122,
    "jft300m": 303_000_000,
}
"""Numbers of training examples, for recipes that count epochs; JFT-300M has 303 million, as in the
paper."""
