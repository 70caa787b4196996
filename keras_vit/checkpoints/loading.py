"""Loads a checkpoint into a built model; an invalid file leaves the model unchanged."""

import dataclasses
import logging
import os
import warnings

import keras
import numpy as np

from keras_vit import terminal
from keras_vit.checkpoints import architectures, comparison, registry
from keras_vit.checkpoints.formats import open_checkpoint
from keras_vit.checkpoints.planning import LoadPlan
from keras_vit.checkpoints.published import resolve
from keras_vit.checkpoints.report import LoadReport
from keras_vit.preprocessing import Preprocessing

log = logging.getLogger("keras_vit")


@dataclasses.dataclass(frozen=True)
class LoadOptions:
    """The options of `load`, which describes them. Invalid options raise a `ValueError`."""

    head: str = "keep"
    source_grid: tuple[int, int] | None = None
    channels: str | None = None
    resize_patches: bool = False

    def __post_init__(self):
        if self.head not in ("keep", "new"):
            raise ValueError(f'`head` must be "keep" or "new". Received: head={self.head!r}')
        grid = self.source_grid
        if grid is not None and (np.shape(grid) != (2,) or min(grid) < 1):
            raise ValueError(
                "`source_grid` must be (rows, columns), both positive. Received: "
                f"source_grid={grid!r}"
            )
        if self.channels not in (None, "sum", "tile"):
            raise ValueError(
                f'`channels` must be "sum", "tile" or None. Received: channels={self.channels!r}'
            )


def load(
    model: keras.Model,
    source: str | os.PathLike,
    head: str = "keep",
    *,
    source_grid: tuple[int, int] | None = None,
    channels: str | None = None,
    resize_patches: bool = False,
) -> LoadReport:
    """Loads a checkpoint into a model and returns a report on every array.

    Position embeddings are resampled to the model's grid. The model's `preprocessing` becomes that
    of the weights, if it is known, but keeps the bit depth. With `head="keep"`, the logits get the
    activation that the file states. An invalid file leaves the model unchanged.

    Args:
        model: a built model of keras_vit.
        source: the name of published weights, such as "imagenet21k", "augreg" or "augreg:<file
            name>"; the path or URL (https or gs) of an .npz or .safetensors file; the path of a
            folder with .safetensors weights; or a repository on the Hugging Face Hub. `vit_jax` and
            big_vision write .npz files; timm and Hugging Face write .safetensors files.
            `file.npz:img` selects the subtree `img` of a file.
        head: "keep" for inference, or "new" for fine-tuning. With "keep", the model and the file
            must have the same weights, with two exceptions: a model without a head ignores the head
            in the file, and missing biases of the head, queries, keys and values become zeros. With
            "new", as in `vit_jax`, the head gets initial values and may have any number of classes.
            The class token, other arrays for pooling, and `pre_logits` are loaded if the model and
            the file have them, and otherwise initialized or dropped.
        source_grid: `(rows, columns)` of the file's position embeddings, if the grid is not square
            and the file does not determine it.
        channels: how to adapt the first convolution from the S input channels in the file (3 for
            RGB) to a model with C channels. None requires C = S. "sum" sets every channel to the
            sum of the kernel over its S channels, divided by C. A gray image then produces the same
            outputs with C equal channels as with S equal channels. In a ResNet, the outputs of each
            filter differ by a factor, because ResNets standardize kernels. "tile" sets channel c to
            the kernel's channel `c % S`, multiplied by S / C. The mean and std of the weights'
            preprocessing are averaged over channels.
        resize_patches: whether to accept a file with a different patch size and resize its kernel
            as FlexiViT does. Models with FlexiViT's `position_resampling`, "bilinear_antialias",
            always accept such files.

    Returns:
        A `LoadReport`, which is also logged at level INFO by the logger "keras_vit".

    Raises:
        ValueError: an argument is invalid; the file is not a checkpoint, or has a different
            architecture, activation, epsilon or rotary embedding; or an array is missing or unused,
            has the wrong shape or dtype, or contains NaN or infinity.
        ConnectionError: the file could not be downloaded.

    Reference: `checkpoint.py` of `vit_jax`, including its two module numberings and two shapes of
        GroupNorm arrays. For `channels`, timm's `adapt_input_conv`, which uses "sum" for one
        channel and "tile" for two, four or more channels. For `resize_patches`, FlexiViT, arXiv
        2212.08013, section 3.4.
    """
    return load_into(model, source, LoadOptions(head, source_grid, channels, resize_patches))


def load_into(model, source, options=None, given=()):
    """Works like `load`, but arguments of the model named in `given` override the file's facts."""
    if not hasattr(model, "input_preprocessing"):
        raise ValueError(
            f"`model` must be an image model of keras_vit. Received: model={model.name!r}, "
            f"{type(model).__name__}"
        )
    options = options or LoadOptions()
    arguments = model.arguments
    resolved = resolve(source, registry.find_sizes(arguments), model.input_shape[1])
    with open_checkpoint(resolved.path, resolved.subtree, arguments.get("num_heads")) as checkpoint:
        checkpoint.facts = _with_given(checkpoint.facts, given, arguments)
        plan = LoadPlan(model, checkpoint, source, options)
        comparison.check_numerics(model, checkpoint, source)
        head_is_zero = _assign(plan)
    facts = checkpoint.facts
    entry = resolved.published
    fields = facts.preprocessing or (entry and entry.preprocessing)
    if "preprocessing" not in given and fields:
        _set_preprocessing(model, fields)
    if options.head == "new":
        _initialize_head(model)
    elif facts.logits_activation is not None:
        model.input_preprocessing.logits_activation = facts.logits_activation
    log.info("%s", plan.report)
    if options.head == "keep" and head_is_zero:
        warnings.warn(
            f"The head of {source} is all zeros, so every image gets the same logits. Use these "
            'weights only for fine-tuning (head="new").',
            stacklevel=3,
        )
    return plan.report


def _with_given(facts, given, arguments):
    """Returns the facts of a file, with the model's arguments named in `given`."""
    replaced = {*given} & {*architectures.NUMERICS, "position_resampling"} & arguments.keys()
    values = {name: arguments[name] for name in replaced}
    fields = {name: value for name, value in values.items() if hasattr(facts, name)}
    return dataclasses.replace(facts, **fields, arguments={**facts.arguments, **values})


def _assign(plan):
    """Assigns the arrays of a plan to variables, and returns whether the head is all zeros.

    All arrays are validated before the first assignment, so that a bad array leaves the model
    unchanged. Each array is read again to assign it, so that only one array is in memory at a time.
    """
    # Only the last array is cached, so sort by the name in the file to read all slices of an array
    # consecutively.
    assignments = sorted(plan.assignments.items(), key=lambda item: item[1][0].names)
    head_is_zero = False
    for name, (array, _) in terminal.track(assignments, "checking weights", "arrays"):
        values = array.read()
        check_finite(name, values, plan.source)
        head_is_zero |= name == "head/kernel" and not values.any()
    for name, (array, function) in terminal.track(assignments, "reading weights", "arrays"):
        variable = plan.variables[name]
        variable.assign(function(array.read()).reshape(variable.shape))
    return head_is_zero


def check_finite(name, values, source):
    """Raises a `ValueError` if an array of a checkpoint contains NaN or infinity."""
    if not np.isfinite(values).all():
        raise ValueError(
            f"The array {name!r} in the checkpoint contains NaN or infinity. Received: {source}"
        )


def _initialize_head(model):
    """Resets the head, if the model has one, to its initial values."""
    if model.head is not None:
        head = type(model.head).from_config(model.head.get_config())
        head.build_from_config(model.head.get_build_config())
        model.head.set_weights(head.get_weights())


def _set_preprocessing(model, fields):
    """Sets the model's preprocessing to that of the weights, except for the bit depth."""
    known = model.preprocessing
    stored = Preprocessing.from_config(dict(fields))
    changes = {
        "interpolation": stored.interpolation,
        "library": stored.library,
        **{name: fields[name] for name in ("rounding", "exif") if name in fields},
    }
    if {known.resize, stored.resize} <= {"stretch", "shorter_side"}:  # both to a fixed size
        changes |= {"resize": stored.resize, "crop_fraction": stored.crop_fraction}
    # Convert the mean and std to the model's bit depth, and average them if the number of channels
    # differs. A model with another number of channels and its own values for each channel keeps its
    # values.
    scale = (2**stored.bit_depth - 1) / (2**known.bit_depth - 1)
    is_same = stored.channels == known.channels
    if is_same or len({*zip(known.mean, known.std)}) == 1:
        for name in ("mean", "std"):
            values = [value / scale for value in getattr(stored, name)]
            changes[name] = values if is_same else [sum(values) / len(values)] * known.channels
    model.preprocessing = dataclasses.replace(known, **changes)
