"""Loading a checkpoint into a built model, all of it or nothing."""

import logging
import warnings

from keras_vit.checkpoints import names, sources
from keras_vit.checkpoints.architecture import architecture
from keras_vit.checkpoints.dialects import open_checkpoint
from keras_vit.checkpoints.planning import HEAD, Plan

_LOG = logging.getLogger("keras_vit")


def load(model, source, head="keep", *, source_grid=None, scipy_border=False):
    """Loads a checkpoint into a model, and says what it did.

    Position embeddings are resampled where the model's grid is another. Nothing changes in the model unless all of
    the file is right.

    Args:
        model: a built model of `keras_vit.VisionTransformer`, `keras_vit.BiTResNet` or their variants.
        source: the name of published weights ("imagenet21k", "imagenet21k+imagenet2012", "augreg",
            "augreg:<file name>", "sam", for BiT ResNets "bit_s", "bit_m", "bit_m+imagenet2012", "bit:<file name>"),
            the path of an .npz file (the original's or big_vision's layout; `file.npz:img` for a subtree) or of a
            .safetensors file (timm's or Hugging Face's names), or an https or gs URL of one.
        head: "keep" for inference: every array of the model is the file's and the other way round; only a model without
            a head leaves the file's. "new" for fine-tuning, by the original's rules: the head starts afresh and may
            have any number of classes; `pre_logits` stays only if the model has it; a class token comes or goes, with
            its position, as the model's classifier wants.
        source_grid: `(rows, columns)` of the file's positions, where they are not square and the file does not say.
        scipy_border: whether to resample with SciPy's zero border, which the original has for a few pairs of grids
            (28 to 48, say), instead of the intended values.

    Returns:
        A `LoadReport`; `print` it. It is also logged, to "keras_vit" at INFO.

    Raises:
        ValueError: the file is no checkpoint or of another architecture; or an array is missing, left over, of
            another shape or dtype, or not finite.
        ConnectionError: the file could not be downloaded.

    Reference: the original's `checkpoint.py`; both of its numberings of modules, and GroupNorm arrays of both shapes.
    """
    if head not in ("keep", "new"):
        raise ValueError(f'`head` must be "keep" or "new". Received: head={head!r}')
    if source_grid is not None and not (
        isinstance(source_grid, list | tuple)
        and len(source_grid) == 2
        and all(type(side) is int and side > 0 for side in source_grid)
    ):
        raise ValueError(f"`source_grid` must be (rows, columns). Received: source_grid={source_grid!r}")
    variables, shapes = names.original_names(model), names.original_shapes(model)
    expected = architecture(shapes)
    located = sources.locate(source, expected, model.input_shape[1])
    with open_checkpoint(located.path, located.subtree, expected.get("num_heads")) as checkpoint:
        plan = Plan(model, shapes, checkpoint, head, source, source_grid, scipy_border)
        # Twice through the file, so that a bad array at its end leaves the model as it was, and so that never more
        # than one array is in memory. In the file's order, for what is cut out of one array.
        steps = sorted(plan.steps.items(), key=lambda step: step[1].stored.names)
        for name, step in steps:
            plan.check_numbers(name, step)
        for name, step in steps:
            variables[name].assign(step.array(step.stored.read(verify=False)).reshape(variables[name].shape))
    if head == "new":
        _start_afresh(model, plan.report.new)
    _tell_preprocessing(model, located.row)
    _LOG.info("%s", plan.report)
    if head == "keep" and plan.zero_head:
        warnings.warn(
            f"The head of {source} is all zeros: every image gets the same logits. It can only be fine-tuned "
            '(head="new").',
            stacklevel=3,
        )
    return plan.report


def _start_afresh(model, entries):
    """Gives the head its initial values: a zero kernel, and the bias it was built with."""
    for name, _ in entries:
        if name in HEAD:
            layer = model.get_layer("head")
            layer.kernel.assign(layer.kernel_initializer(layer.kernel.shape, layer.kernel.dtype))
            layer.bias.assign(layer.bias_initializer(layer.bias.shape, layer.bias.dtype))


def _tell_preprocessing(model, row):
    if row is None:
        return
    for layer in model.layers:
        if layer.name == "expected_images":
            layer.preprocessing = row.preprocessing
