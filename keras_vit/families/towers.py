"""Text towers of CLIP, SigLIP and SigLIP 2: their sizes, and models with both towers from files."""

import logging
import math
import os
from typing import Any

import keras

from keras_vit.arguments import check_arguments
from keras_vit.checkpoints import hub, names, published
from keras_vit.checkpoints.dialects import text as dialects
from keras_vit.checkpoints.formats import open_checkpoint
from keras_vit.checkpoints.loading import check_finite
from keras_vit.families import pretrained, registry, siglip
from keras_vit.families.inference import dimension
from keras_vit.families.shared import B, L
from keras_vit.layers.validation import check_choice
from keras_vit.models.text_transformer import TextTransformer
from keras_vit.models.two_towers import TwoTowers
from keras_vit.text.tokenizers import FILES

_LOG = logging.getLogger("keras_vit")
# With both towers, these arguments of `from_pretrained` apply to both.
_OF_BOTH = ("dropout", "dtype", "mlp", "remat")

_CLIP = {
    "vocabulary_size": 49408,
    "length": 77,
    "causal": True,
    "pool": "largest",
    "projection_bias": False,
    "mlp": "quick_gelu",
    "epsilon": 1e-5,
}
# The hidden size, which is also the embedding size, the number of blocks and the number of heads.
_CLIP_WIDTHS = {
    "CLIP-B/32": (512, 12, 8),
    "CLIP-B/16": (512, 12, 8),
    "CLIP-L/14": (768, 12, 12),
    "CLIP-H/14": (1024, 24, 16),
    "CLIP-g/14": (1024, 24, 16),
    "CLIP-bigG/14": (1280, 32, 20),
}
_SIGLIP = {"B/32": B, "B/16": B, "L/16": L, "So400m/14": siglip.SO400M, "So400m/16": siglip.SO400M}
# The vocabularies of SigLIP (c4_en), SigLIP in many languages (mC4) and SigLIP 2 (Gemma).
_VOCABULARIES = {"SigLIP": 32_000, "SigLIP-i18n": 250_000, "SigLIP2": 256_000}


def _text_sizes():
    """Yields `(name, arguments of the TextTransformer)` of every published pair of towers."""
    for name, (width, blocks, heads) in _CLIP_WIDTHS.items():
        size = {"hidden_size": width, "num_layers": blocks, "num_heads": heads}
        yield name, {**_CLIP, **size, "mlp_dim": 4 * width, "embedding_size": width}
    for family, vocabulary in _VOCABULARIES.items():
        for name, size in _SIGLIP.items():
            shared = {"vocabulary_size": vocabulary, "length": 64}
            yield f"{family}-{name}", {**shared, **size, "embedding_size": size["hidden_size"]}
    shared = {"vocabulary_size": _VOCABULARIES["SigLIP2"], "length": 64, "embedding_size": 1536}
    yield "SigLIP2-g-opt/16", {**shared, **siglip.SO400M}


TEXT_SIZES: dict[str, dict[str, Any]] = dict(_text_sizes())


def text_tower(size: str, **overrides: Any) -> TextTransformer:
    """Builds the text tower of a published pair, with random weights.

    Args:
        size: such as "CLIP-B/16", "SigLIP-B/16", "SigLIP-i18n-B/16" or "SigLIP2-So400m/14".
        **overrides: arguments of `TextTransformer` that replace those of the size, such as
            `length=16` for SigLIP-So400m/14 at 224 pixels.

    Raises:
        ValueError: the size is unknown, or an argument is invalid.
        TypeError: an argument is unknown.
    """
    check_choice("size", size, TEXT_SIZES)
    check_arguments(TextTransformer, overrides)
    return TextTransformer(**{**TEXT_SIZES[size], **overrides})


def two_towers(size: str, text: dict[str, Any] | None = None, **overrides: Any) -> TwoTowers:
    """Builds a published pair of towers with random weights, and the initial scale and bias of its
    paper.

    The projection of CLIP's image tower, its head, is initialized at random instead of to zeros.

    Args:
        size: as for `text_tower`.
        text: arguments that replace those of the text tower.
        **overrides: arguments that replace those of the image tower, such as `input_shape`.

    Raises:
        ValueError: the size is unknown, an argument is invalid, or the towers have embeddings of
            different sizes.
        TypeError: an argument is unknown.
    """
    tower = text_tower(size, **(text or {}))
    is_clip = size.startswith("CLIP")
    family, _, name = size.replace("i18n-", "").partition("-")
    image_size = f"{family.removesuffix('2')}-{name}"
    build = registry.find_family(image_size).functions[registry.constructor_name(image_size)]
    if not is_clip:
        return TwoTowers(build(**{"include_top": False, **overrides}), tower, bias=-10.0)
    image = build(**{"classes": tower.arguments["embedding_size"], **overrides})
    if image.head is not None and overrides.get("weights") is None:
        kernel = image.head.kernel
        initialize = keras.initializers.RandomNormal(stddev=kernel.shape[0] ** -0.5)
        kernel.assign(initialize(kernel.shape))
    return TwoTowers(image, tower, scale=1 / 0.07)


def build_text(source, *, head="keep", channels=None, source_grid=None, **overrides):
    """Builds and loads the text tower of a file; see `from_pretrained`."""
    if head != "keep" or channels is not None or source_grid is not None:
        raise ValueError(
            "A text tower takes none of `head`, `channels` and `source_grid`. Received: "
            f"head={head!r}, channels={channels!r}, source_grid={source_grid!r}"
        )
    return _load_text(source, overrides)[:2]


def build_both(source, *, head="keep", **options):
    """Builds and loads both towers of a file; see `from_pretrained`."""
    if head != "keep":
        raise ValueError(f'Both towers require head="keep". Received: head={head!r}')
    shared = {name: options[name] for name in _OF_BOTH if name in options}
    if "tokenizer" in options:
        shared["tokenizer"] = options.pop("tokenizer")
    text, _, logits = _load_text(source, shared)
    image, report = pretrained.build_and_load(source, **options)
    scale, bias = (logits.get(name) for name in (dialects.SCALE, dialects.BIAS))
    if scale is None:
        raise ValueError(
            "The file has two towers, but no scale of the logits (`logit_scale` or `t`). "
            f"Received: source={source!r}"
        )
    model = TwoTowers(image, text, bias=bias)
    model.logit_scale.assign(scale)
    return model, report


def _load_text(source, overrides):
    """Returns a text tower with the weights of a file, a report, and the scale and bias.

    The report is a string. The scale and bias are the arrays in the file, by canonical name.
    """
    check_arguments(TextTransformer, overrides)
    entry = pretrained.published_entry(source)
    resolved = published.resolve(entry.url.removeprefix(hub.URL) if entry else source)
    heads = overrides.get("num_heads")
    with open_checkpoint(resolved.path, resolved.subtree, heads, dialects.DIALECTS) as checkpoint:
        arguments = _arguments(checkpoint, source, overrides)
        arguments |= {"tokenizer": _tokenizer_near(source, resolved.path), **overrides}
        model = TextTransformer(**arguments)
        arrays = dict(checkpoint.arrays)
        logits = {
            name: _checked(name, arrays.pop(name), (), source)
            for name in (dialects.SCALE, dialects.BIAS)
            if name in arrays
        }
        variables = names.canonical_variables(model)
        _check_same_names(arrays, variables, source)
        # Read and check every array before the first assignment.
        values = {
            name: _checked(name, arrays[name], variable.shape, source)
            for name, variable in variables.items()
        }
    for name, variable in variables.items():
        variable.assign(values[name])
    report = f"loaded {len(values)} arrays of the text tower in {source}"
    _LOG.info("%s", report)
    return model, report, logits


def _check_same_names(arrays, variables, source):
    """Raises a `ValueError` unless a file has exactly the weights of the text tower."""
    missing = sorted(variables.keys() - arrays.keys())
    unused = sorted(arrays.keys() - variables.keys())
    if missing or unused:
        raise ValueError(
            "The file must have exactly the weights of the text tower. It lacks "
            f"{', '.join(missing[:5]) or 'none'}, and does not use "
            f"{', '.join(unused[:5]) or 'none'}. Received: {source}"
        )


def _tokenizer_near(source, path):
    """Returns the place of the tokenizer next to weights: the repository, the folder, or ""."""
    if hub.is_repository(os.fspath(source)) and not os.path.exists(source):
        return os.fspath(source)
    folder = os.path.dirname(os.path.abspath(path))
    return folder if any(os.path.exists(os.path.join(folder, name)) for name in FILES) else ""


def _checked(name, array, shape, source):
    """Returns the values of an array in a shape.

    Raises a `ValueError` for another size, NaN or infinity.
    """
    if math.prod(array.shape) != math.prod(shape):
        raise ValueError(
            f"The array {name!r} must have shape {tuple(shape)}. Received: shape={array.shape} in "
            f"{source}"
        )
    values = array.read()
    check_finite(name, values, source)
    return values.reshape(shape)


def _arguments(checkpoint, source, overrides):
    """Returns the arguments of the text tower in a file."""
    shapes = checkpoint.shapes
    facts = checkpoint.facts
    blocks = {name.split("/")[1] for name in shapes if name.startswith("Transformer/encoderblock_")}
    query = shapes.get(f"{names.ATTENTION}query/kernel".format(i=0), ())
    arguments = {
        "vocabulary_size": dimension(shapes, dialects.TOKENS, 0),
        "length": dimension(shapes, names.POSITIONS, 1),
        "num_layers": len(blocks),
        "hidden_size": dimension(shapes, dialects.TOKENS, 1),
        "mlp_dim": dimension(shapes, f"{names.MLP}Dense_0/kernel".format(i=0), 1),
        "num_heads": query[1] if len(query) == 3 else facts.num_heads,
        "embedding_size": dimension(shapes, names.HEAD[0], 1),
        "projection_bias": names.HEAD[1] in shapes,
        "mlp": facts.mlp,
        "epsilon": facts.epsilon,
        **facts.arguments,
    }
    if dialects.TOKENS not in shapes:
        raise ValueError(
            'The file has no text tower of CLIP or SigLIP; tower="image" loads an image tower. '
            f"Received: source={source!r}"
        )
    missing = [name for name, value in arguments.items() if value is None and name not in overrides]
    if missing:
        raise ValueError(
            f"The file does not determine {', '.join(missing)} of the text tower; put its "
            f"config.json or open_clip_config.json next to it. Received: source={source!r}"
        )
    return arguments


pretrained.TOWERS |= {"text": build_text, "both": build_both}
