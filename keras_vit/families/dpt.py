"""Vision Transformers with dense heads: DPT, Depth Anything, and linear segmentation heads."""

import re
from dataclasses import replace

from keras_vit.checkpoints.dialects import transformers
from keras_vit.checkpoints.dialects.dialect import IGNORED, Dialect
from keras_vit.families import dinov2
from keras_vit.families.inference import dimension
from keras_vit.families.inference import infer as infer_vision_transformer
from keras_vit.families.registry import Sizes
from keras_vit.families.shared import IDENTITY, IMAGENET, WORDS, B, L, S, hub_row
from keras_vit.models.dense_prediction_transformer import DensePredictionTransformer
from keras_vit.models.linear_segmenter import LinearSegmenter

_CLASSIFIER = "head/classifier/kernel"
_FUSION = "head/fusion_0/projection/kernel"

_DPT_LARGE = {
    "patch_size": 16,
    "readout": "project",
    "level_norm": False,
    "level_channels": (256, 512, 1024, 1024),
    "epsilon": 1e-12,
    "position_resampling": "bilinear",
}
_DEPTH_ANYTHING = {
    "patch_size": 14,
    "match_levels": True,
    "layer_scale": 1e-5,
    "position_resampling": "bicubic",
}
_size = Sizes(DensePredictionTransformer, predicts="depth", exact_gelu=True)
DPT_L16 = _size("DPT-L/16", "341.5M parameters", **_DPT_LARGE, **L)
DepthAnything_S14 = _size(
    "DepthAnything-S/14",
    "24.3M parameters (V2)",
    level_channels=(48, 96, 192, 384),
    features=64,
    **_DEPTH_ANYTHING,
    **S,
)
DepthAnything_B14 = _size(
    "DepthAnything-B/14",
    "96.3M parameters (V2)",
    level_channels=(96, 192, 384, 768),
    features=128,
    **_DEPTH_ANYTHING,
    **B,
)
DepthAnything_L14 = _size(
    "DepthAnything-L/14",
    "333.0M parameters (V2)",
    levels=(5, 12, 18, 24),
    level_channels=(256, 512, 1024, 1024),
    features=256,
    **_DEPTH_ANYTHING,
    **L,
)


# The tables below contain the names in the files of transformers. `fusion_0` is the fusion of the
# last level.


def _norm(theirs, ours):
    """Returns the pairs of a BatchNorm."""
    return (
        (theirs, ours),
        (f"{theirs}.running_mean", f"{ours}/moving_mean"),
        (f"{theirs}.running_var", f"{ours}/moving_variance"),
        (f"{theirs}.num_batches_tracked", IGNORED),
    )


def _neck():
    """Yields the pairs of the arrays between the tower and the last layers."""
    yield "neck.fusion_stage.layers.0.residual_layer1.{rest}", IGNORED  # never used
    yield "auxiliary_head.{rest}", IGNORED  # used only in training
    stage = "neck.reassemble_stage"
    for i in range(4):
        fusion = f"neck.fusion_stage.layers.{i}"
        yield f"{stage}.readout_projects.{i}.0", f"head/reassemble_{i}/readout"
        yield f"{stage}.layers.{i}.projection", f"head/reassemble_{i}/projection"
        yield f"{stage}.layers.{i}.resize", f"head/reassemble_{i}/resize"
        yield f"neck.convs.{i}", f"head/reassemble_{i}/level"
        yield f"{fusion}.projection", f"head/fusion_{i}/projection"
        for unit, ours in (("residual_layer1", "skip"), ("residual_layer2", "main")):
            for j in (1, 2):
                target = f"head/fusion_{i}/{ours}"
                yield f"{fusion}.{unit}.convolution{j}", f"{target}/conv_{j}"
                yield from _norm(f"{fusion}.{unit}.batch_norm{j}", f"{target}/batch_norm_{j}")


_SEGMENTATION = (
    ("head.head.0", "head/hidden"),
    *_norm("head.head.1", "head/hidden_norm"),
    ("head.head.4", "head/classifier"),
)
_DPT_DEPTH = (
    ("head.projection", "head/projection"),
    ("head.head.0", "head/narrow"),
    ("head.head.2", "head/hidden"),
    ("head.head.4", "head/classifier"),
)
_DEPTH_ANYTHING_HEAD = (
    ("head.conv1", "head/narrow"),
    ("head.conv2", "head/hidden"),
    ("head.conv3", "head/classifier"),
)


def read_config(config):
    """Returns the facts in a config.json; see `Dialect.read_config`."""
    tower = config.get("backbone_config") or config
    has_backbone = tower is not config  # otherwise, `config` also describes the ViT
    if config.get("is_hybrid") or tower.get("model_type") not in ("dpt", "dinov2"):
        raise ValueError("the backbone must be a ViT or DINOv2 without a ResNet")
    required = {"reassemble_factors": [4, 2, 1, 0.5], "head_in_index": -1, "neck_ignore_stages": []}
    for name, value in required.items():
        if config.get(name, value) != value:
            raise ValueError(f"`{name}` must be {value}, not {config[name]!r}")
    if has_backbone:
        levels = tuple(tower["out_indices"])
    else:  # the indices count blocks from 0, and the blocks' outputs are never normalized
        levels = tuple(index + 1 for index in config.get("backbone_out_indices", (2, 5, 8, 11)))
    is_metric = config.get("depth_estimation_type") == "metric"
    if not is_metric and config.get("max_depth") not in (None, 1):
        raise ValueError("`max_depth` must be 1 unless `depth_estimation_type` is metric")
    arguments = {
        "levels": levels,
        "level_norm": has_backbone and tower.get("apply_layernorm", True),
        "level_channels": tuple(config["neck_hidden_sizes"]),
        "features": config["fusion_hidden_size"],
        "depth_features": config.get("head_hidden_size", 32),
        "max_depth": float(config.get("max_depth") or 1) if is_metric else 0.0,
        "match_levels": config["model_type"] == "depth_anything",
    }
    if config["model_type"] == "dpt":
        arguments["readout"] = config.get("readout_type", "project")
        arguments["batch_norm"] = config.get("use_batch_norm_in_fusion_residual", False)
        arguments["residual_bias"] = config.get("use_bias_in_fusion_residual")
    return replace(transformers.read_config(tower), arguments=arguments)


def adapt(weights, facts, config):
    """Removes arrays that the outputs do not depend on; see `Dialect.adapt`."""
    if "levels" not in facts.arguments:
        raise ValueError("DPT and Depth Anything require their config.json, next to the weights")
    num_blocks = max(facts.arguments["levels"])
    has_norm = facts.arguments["level_norm"]
    for name in list(weights):
        block = re.match(r"Transformer/encoderblock_(\d+)/", name)
        is_norm = name.startswith("Transformer/encoder_norm/")
        if (is_norm and not has_norm) or (block and int(block[1]) >= num_blocks):
            del weights[name]
    return facts


# Preprocessing.
_STRETCH = {"resize": "stretch", "crop_fraction": 1.0, "interpolation": "bicubic"}
_DPT = {**_STRETCH, "mean": [127.5] * 3, "std": [127.5] * 3}
_DEPTH = {**IMAGENET, **_STRETCH}


def _dialect(marker, head, tower, prefix, preprocessing):
    """Returns the `Dialect` of a head on a tower.

    `tower` is the dialect of the tower in its own files, where it has other prefixes.
    """
    return Dialect(
        "huggingface",
        marker,
        (*head, *_neck(), ("{tower}pooler.dense", IGNORED), *tower.table),
        layout="pytorch",
        choices={**tower.choices, "tower": (prefix,)},
        facts=replace(tower.facts, head_reads=None, preprocessing=preprocessing),
        read_config=read_config,
        adapt=adapt,
    )


_VIT = replace(
    transformers.HUGGING_FACE,
    facts=replace(transformers.HUGGING_FACE.facts, position_resampling="bilinear"),
)
DIALECTS = (
    _dialect("head.head.1.running_mean", _SEGMENTATION, _VIT, "dpt.", _DPT),
    _dialect("head.head.2.weight", _DPT_DEPTH, _VIT, "dpt.", _DPT),
    _dialect("head.head.1.running_mean", _SEGMENTATION, dinov2.HUGGING_FACE, "backbone.", _DEPTH),
    _dialect("head.head.2.weight", _DPT_DEPTH, dinov2.HUGGING_FACE, "backbone.", _DEPTH),
    _dialect("head.conv3.weight", _DEPTH_ANYTHING_HEAD, dinov2.HUGGING_FACE, "backbone.", _DEPTH),
)


def infer(shapes, facts):
    """Infers the arguments of a `DensePredictionTransformer`; see `Family.infer`."""
    if _FUSION not in shapes:
        return None
    arguments = infer_vision_transformer(shapes, facts)
    is_depth = "head/narrow/kernel" in shapes
    return arguments | {
        "predicts": "depth" if is_depth else "segmentation",
        "classes": dimension(shapes, _CLASSIFIER, -1),
        "include_top": True,
        "depth_projection": "head/projection/kernel" in shapes,
    }


def infer_linear(shapes, facts):
    """Infers the arguments of a `LinearSegmenter`; see `Family.infer`."""
    if _CLASSIFIER not in shapes or _FUSION in shapes:
        return None
    classes = dimension(shapes, _CLASSIFIER, -1)
    return infer_vision_transformer(shapes, facts) | {"classes": classes, "include_top": True}


def _rows():
    ade = {"predicts": "segmentation", "batch_norm": True}
    yield hub_row("dpt", "Intel/dpt-large", "DPT-L/16", 1, 384, _DPT)
    yield hub_row("dpt-ade", "Intel/dpt-large-ade", "DPT-L/16", 150, 480, _DPT, ade)
    for size in "SBL":
        for kind, max_depth in (("", 0.0), ("Metric-Indoor-", 20.0), ("Metric-Outdoor-", 80.0)):
            name = f"depth-anything/Depth-Anything-V2-{kind}{WORDS[size].title()}-hf"
            collection = f"depth-anything-v2{'-' if kind else ''}{kind.lower().rstrip('-')}"
            metric = {"max_depth": max_depth} if max_depth else {}
            yield hub_row(collection, name, f"DepthAnything-{size}/14", 1, 518, _DEPTH, metric)


FAMILY = _size.register(
    identity=(*IDENTITY, "layer_scale", "num_registers", "mlp", "level_channels"),
    infer=infer,
    dialects=DIALECTS,
    published=tuple(_rows()),
    reference="https://github.com/DepthAnything/Depth-Anything-V2",
)
Sizes(LinearSegmenter).register(
    infer=infer_linear, reference="https://github.com/facebookresearch/dinov2"
)
