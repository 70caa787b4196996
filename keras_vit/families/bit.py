"""BiT ResNets ("Big Transfer"), the paper's baseline."""

import re

from keras_vit.checkpoints import names
from keras_vit.checkpoints.dialects.dialect import Dialect
from keras_vit.checkpoints.registry import PublishedWeights
from keras_vit.families.inference import dimension, head_arguments, stages
from keras_vit.families.registry import Sizes
from keras_vit.models.bit_resnet import BIT_UNITS, BiTResNet

_size = Sizes(BiTResNet)
BiT_R50x1 = _size("BiT-R50x1", "25.5M parameters", depth=50, width_factor=1)
BiT_R50x2 = _size("BiT-R50x2", "98.0M parameters", depth=50, width_factor=2)
BiT_R50x3 = _size("BiT-R50x3", "217.3M parameters", depth=50, width_factor=3)
BiT_R101x1 = _size("BiT-R101x1", "44.5M parameters", depth=101, width_factor=1)
BiT_R101x3 = _size("BiT-R101x3", "387.9M parameters", depth=101, width_factor=3)
BiT_R152x1 = _size("BiT-R152x1", "60.2M parameters", depth=152, width_factor=1)
BiT_R152x2 = _size("BiT-R152x2", "236.3M parameters", depth=152, width_factor=2)
BiT_R152x4 = _size("BiT-R152x4", "936.5M parameters", depth=152, width_factor=4)
BiT_R200x3 = _size("BiT-R200x3", "568.6M parameters", depth=200, width_factor=3)


def _branch(number, letter):
    """Returns pairs `(name in the file, canonical name)` for a convolution and its norm.

    `number` is the number of the convolution in big_vision, and `letter` is its name in the file.
    `{count}` stands for the number that TensorFlow may append to the name of a layer.
    """
    prefix = f"resnet/{{unit}}/{letter}"
    return (
        (f"{prefix}/standardized_conv2d{{count}}/kernel", f"{{unit}}/conv{number}/kernel"),
        (f"{prefix}/group_norm{{count}}/gamma", f"{{unit}}/gn{number}/scale"),
        (f"{prefix}/group_norm{{count}}/beta", f"{{unit}}/gn{number}/bias"),
    )


# Published files use TensorFlow's variable names. The canonical names are big_vision's.
DIALECT = Dialect(
    "bit",
    "resnet/root_block/standardized_conv2d/kernel",
    (
        ("resnet/root_block/standardized_conv2d/kernel", names.BIT_ROOT),
        ("resnet/group_norm/gamma", "norm-pre-head/scale"),
        ("resnet/group_norm/beta", "norm-pre-head/bias"),
        ("resnet/head/conv2d/{rest}", "head/{rest}"),
        ("resnet/{unit}/a/proj/standardized_conv2d{count}/kernel", "{unit}/conv_proj/kernel"),
        *(_branch(1, "a") + _branch(2, "b") + _branch(3, "c")),
    ),
    choices={"count": ("", *(f"_{i}" for i in range(1, 10)))},
    shape_in_file=lambda name, array: array[None, None] if name == names.HEAD[0] else array,
)


def _row(collection, name, model, classes):
    return PublishedWeights(
        collection, name, model, f"https://storage.googleapis.com/bit_models/{name}.npz", classes
    )


def parse(name):
    """Returns the `PublishedWeights` for a file name, or None for a name outside the rule."""
    match = re.fullmatch(
        r"BiT-(?P<kind>[SM])-(?P<model>R\d+x\d+)(?P<adapted>-ILSVRC2012|-run[012]-[\w-]+)?", name
    )
    if not match:
        return None
    classes = {"S": 1000, "M": 21843}[match["kind"]]
    if match["adapted"]:
        classes = 1000 if match["adapted"] == "-ILSVRC2012" else None
    return _row("bit", name, f"BiT-{match['model']}", classes)


def infer(shapes, facts):
    """Infers the arguments of a BiT ResNet; see `Family.infer`."""
    has_stem = names.STEM_ROOT in shapes
    has_blocks = any(name.startswith("Transformer/") for name in shapes)
    if has_blocks or not (has_stem or names.BIT_ROOT in shapes):
        return None
    width = dimension(shapes, names.STEM_ROOT if has_stem else names.BIT_ROOT, -1)
    depth = next((depth for depth, units in BIT_UNITS.items() if units == stages(shapes)), None)
    arguments = {"depth": depth}
    if width and width % 64:  # not a multiple of the published width
        arguments |= {"width_factor": 1, "width": width}
    else:
        arguments["width_factor"] = width and width // 64
    return {**arguments, **head_arguments(shapes), "version": 1 if has_stem else 2}


FAMILY = _size.register(
    identity=("depth", "width_factor"),
    optional_prefix="BiT-",
    infer=infer,
    dialects=(DIALECT,),
    published=tuple(
        _row(collection, f"{file}-{size}{ending}", f"BiT-{size}", classes)
        for collection, file, ending, classes in (
            ("bit_s", "BiT-S", "", 1000),
            ("bit_m", "BiT-M", "", 21843),
            ("bit_m+imagenet2012", "BiT-M", "-ILSVRC2012", 1000),
        )
        for size in ("R50x1", "R50x3", "R101x1", "R101x3", "R152x2", "R152x4")
    ),
    rules={
        "bit": (
            "BiT-{S or M}-R{depth}x{width}, optionally followed by -ILSVRC2012 or -run{0, 1, "
            "2}-{task}",
            parse,
        )
    },
    reference="https://github.com/google-research/big_transfer",
)
