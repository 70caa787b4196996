"""Compares a model with a checkpoint, and refuses checkpoints of other architectures."""

from keras_vit.checkpoints import architectures, names
from keras_vit.checkpoints.dialects.dialect import gelu_of

HEAD_ADVICE = 'Build the model with include_top=False, or load the file with head="new".'


def check_architecture(plan):
    """Raises a `ValueError` if the model and the file differ in family, structure or parts."""
    if plan.file_family is None:  # the plan will find missing arrays
        return
    if not plan.family.shares_weights(plan.file_family) or _has_other_parts(plan):
        raise ValueError(
            "The checkpoint must have the model's architecture: it is "
            f"{architectures.describe(plan.file_family, plan.theirs)}, and {plan.model.name} is "
            f"{architectures.describe(plan.family, plan.ours)}. Received: {plan.source}"
        )


def _has_other_parts(plan):
    """Returns whether the structures or the optional parts differ."""
    ours = plan.ours
    theirs = plan.theirs
    compared = {*architectures.STRUCTURE, *architectures.PARTS}
    for name in architectures.STRUCTURE:
        if name != "resnet_blocks" and None in (ours.get(name), theirs.get(name)):
            compared.remove(name)
    if plan.resizes_patches and not theirs.get("resnet_blocks"):
        compared.discard("patch_size")
    biases, file_biases = ({*each.get("attention_bias", "qkvo")} for each in (ours, theirs))
    return not file_biases <= biases or any(ours.get(name) != theirs.get(name) for name in compared)


def check_head(plan):
    """Raises a `ValueError` if the file's head was trained with another pooling."""
    if plan.options.head == "new" or names.HEAD[0] not in plan.shapes.keys() & plan.arrays:
        return
    if plan.facts.head_reads is not None:
        raise ValueError(
            f"The file's head reads {plan.facts.head_reads}, which is not supported. "
            f"{HEAD_ADVICE} Received: {plan.source}"
        )
    stated = {**plan.facts.stated(), **plan.facts.arguments}
    ours = plan.model.arguments.get("classifier")
    theirs = stated.get("classifier", plan.theirs.get("classifier"))
    if {"pool", "head_pool", "classifier"} & stated.keys() and ours != theirs:
        raise ValueError(
            f"The file's head requires `classifier={theirs!r}`; build the model with it, or "
            f'load the file with head="new". Received: classifier={ours!r} in '
            f"{plan.model.name}, for {plan.source}"
        )


def check_numerics(model, checkpoint, source):
    """Raises a `ValueError` if the file and the model differ in one of `architectures.NUMERICS`."""
    theirs = {**checkpoint.facts.arguments, **checkpoint.facts.stated()}
    ours = {
        name: model.arguments[name] for name in architectures.NUMERICS if name in model.arguments
    }
    if checkpoint.has_config:
        # A config describes a model without the parts that it does not mention.
        theirs = {"rotary": None, "position_embedding_at": "stem", **theirs}
    # `mlp` and `exact_gelu` determine the activation together. The arrays already show a SwiGLU,
    # and `mlp` of the model is more explicit than a default of the format.
    is_default = not theirs.get("mlp") and checkpoint.stated.exact_gelu is None
    if ours.get("mlp") == "swiglu" or (ours.get("mlp") and is_default):
        del ours["mlp"]
    elif "exact_gelu" in ours and (theirs.get("mlp") or "exact_gelu" in theirs):
        theirs["mlp"] = gelu_of(theirs)
        ours["mlp"] = gelu_of(ours)
    ours.pop("exact_gelu", None)
    different = [name for name, value in ours.items() if theirs.get(name, value) != value]
    if different:
        needed = ", ".join(f"{name}={theirs[name]}" for name in different)
        received = ", ".join(f"{name}={ours[name]}" for name in different)
        raise ValueError(
            f"The weights were trained in a model with {needed}, so the model must be built with "
            f"{needed}. Received: {received} in {model.name}, for {source}"
        )
