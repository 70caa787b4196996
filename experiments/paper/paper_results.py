"""The paper's results that the studies show: Tables 6 to 9 and section 4.6.

Accuracies are in percent. As in the paper, Table 8 contains fractions instead.
"""

from typing import NamedTuple


class Compute(NamedTuple):
    """A row of Table 6: a pre-training on JFT, its results except ReaL, and its cost."""

    model: str
    epochs: int
    imagenet: float
    cifar10: float
    cifar100: float
    pets: float
    flowers: float
    exaflops: float


TABLE_6 = (
    Compute("ViT-B/32", 7, 80.73, 98.61, 90.49, 93.40, 99.27, 55),
    Compute("ViT-B/16", 7, 84.15, 99.00, 91.87, 95.80, 99.56, 224),
    Compute("ViT-L/32", 7, 84.37, 99.19, 92.52, 95.83, 99.45, 196),
    Compute("ViT-L/16", 7, 86.30, 99.38, 93.46, 96.81, 99.66, 783),
    Compute("ViT-L/16", 14, 87.12, 99.38, 94.04, 97.11, 99.56, 1567),
    Compute("ViT-H/14", 14, 88.08, 99.50, 94.71, 97.11, 99.71, 4262),
    Compute("R50x1", 7, 77.54, 97.67, 86.07, 91.11, 94.26, 50),
    Compute("R50x2", 7, 82.12, 98.29, 89.20, 93.43, 97.02, 199),
    Compute("R101x1", 7, 80.67, 98.48, 89.17, 94.08, 95.95, 96),
    Compute("R152x1", 7, 81.88, 98.82, 90.22, 94.17, 96.94, 141),
    Compute("R152x2", 7, 84.97, 99.06, 92.05, 95.37, 98.62, 563),
    Compute("R152x2", 14, 85.56, 99.24, 91.92, 95.75, 98.75, 1126),
    Compute("R200x3", 14, 87.22, 99.34, 93.53, 96.32, 99.04, 3306),
    Compute("R50+ViT-B/32", 7, 84.90, 99.01, 92.24, 95.75, 99.46, 106),
    Compute("R50+ViT-B/16", 7, 85.58, 99.14, 92.63, 96.65, 99.40, 274),
    Compute("R50+ViT-L/32", 7, 85.68, 99.24, 92.93, 96.97, 99.43, 246),
    Compute("R50+ViT-L/16", 7, 86.60, 99.18, 93.64, 97.03, 99.40, 859),
    Compute("R50+ViT-L/16", 14, 87.12, 99.31, 93.89, 97.36, 99.11, 1668),
)

# Table 7. Keys are `(model, optimizer of the pre-training)`.
TABLE_7_COLUMNS = ("ImageNet", "CIFAR-10", "CIFAR-100", "Pets", "Flowers", "average")
TABLE_7 = {
    ("R50x1", "Adam"): (77.54, 97.67, 86.07, 91.11, 94.26, 89.33),
    ("R50x1", "SGD"): (78.24, 97.46, 85.17, 91.00, 92.06, 88.79),
    ("R152x2", "Adam"): (84.97, 99.06, 92.05, 95.37, 98.62, 94.01),
    ("R152x2", "SGD"): (84.37, 99.07, 91.06, 94.79, 99.32, 93.72),
}

# Table 8: ImageNet 5-shot accuracy of ViT-B/16. Keys are `(position embedding, place where it is
# added)`.
TABLE_8 = {
    ("none", "stem"): 0.61382,
    ("learned", "stem"): 0.64206,
    ("learned", "every_layer"): 0.63964,
    ("learned", "every_layer_shared"): 0.64292,
    ("learned2d", "stem"): 0.64001,
    ("learned2d", "every_layer"): 0.64046,
    ("learned2d", "every_layer_shared"): 0.64022,
    ("relative", "stem"): 0.64032,
}

# Table 9: VTAB-1k with ViT-L/16 pre-trained on ImageNet-21k, in the order of `vtab.GROUPS`.
TABLE_9 = (
    *(90.8, 84.1, 74.1, 99.3, 92.7, 61.0, 80.9),
    *(82.5, 95.6, 85.2, 75.3),
    *(70.3, 56.1, 41.9, 74.7, 64.9, 79.9, 30.5, 41.7),
)
# Section 4.6: ImageNet accuracy of ViT-B/16 after masked patch prediction. This accuracy is 2 %
# higher than after training from scratch and 4 % lower than after supervised pre-training.
SELF_SUPERVISION_ACCURACY = 79.9
