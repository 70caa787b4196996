"""Sizes, preprocessing and rows of published files that several families share."""

from keras_vit.checkpoints.registry import PublishedWeights

TI = {"hidden_size": 192, "num_layers": 12, "mlp_dim": 768, "num_heads": 3}
S = {"hidden_size": 384, "num_layers": 12, "mlp_dim": 1536, "num_heads": 6}
B = {"hidden_size": 768, "num_layers": 12, "mlp_dim": 3072, "num_heads": 12}
L = {"hidden_size": 1024, "num_layers": 24, "mlp_dim": 4096, "num_heads": 16}
H = {"hidden_size": 1280, "num_layers": 32, "mlp_dim": 5120, "num_heads": 16}

# How names of published files spell the sizes.
WORDS = {
    "Ti": "tiny",
    "S": "small",
    "M": "medium",
    "B": "base",
    "L": "large",
    "H": "huge",
    "g": "giant",
    "bigG": "gigantic",
}

# Preprocessing with ImageNet's mean and standard deviation.
IMAGENET = {
    "mean": [255 * x for x in (0.485, 0.456, 0.406)],
    "std": [255 * x for x in (0.229, 0.224, 0.225)],
    "resize": "shorter_side",
    "crop_fraction": 0.875,
    "interpolation": "bicubic",
}
# The preprocessing of most files of timm at 224 pixels.
TIMM_IMAGENET = {**IMAGENET, "crop_fraction": 0.9}
# The arguments that identify a size in most families.
IDENTITY = ("patch_size", "num_layers", "hidden_size", "resnet_blocks")


def timm_row(collection, name, model, classes, side, preprocessing=TIMM_IMAGENET, arguments=None):
    """Returns the `PublishedWeights` of a file that timm publishes on the Hugging Face Hub."""
    preprocessing = {**preprocessing, "library": "torchvision"}
    return hub_row(collection, f"timm/{name}", model, classes, side, preprocessing, arguments)


def hub_row(collection, repository, model, classes, side, preprocessing, arguments=None):
    """Returns the `PublishedWeights` of a repository on the Hugging Face Hub.

    Unless `preprocessing` has a `library`, images are prepared as in transformers.
    """
    return PublishedWeights(
        collection,
        repository.partition("/")[2],
        model,
        f"https://huggingface.co/{repository}",
        classes,
        side,
        preprocessing={"library": "transformers", **preprocessing},
        arguments=arguments or {},
    )


def big_vision_row(collection, path, model, classes, side, **fields):
    """Returns the `PublishedWeights` of a file in big_vision's bucket.

    `path` omits the extension.
    """
    url = f"https://storage.googleapis.com/big_vision/{path}.npz"
    return PublishedWeights(
        collection, path.rpartition("/")[2], model, url, classes, side, **fields
    )
