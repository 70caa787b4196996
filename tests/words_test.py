"""The code speaks the field's words: none of the old private vocabulary is an identifier."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Words that an engineer who knows Keras and Flax would have to decode, and what is said instead. `rows`, `names`,
# `fields`, `sizes`, `pixels`, `average`, `settings`, `Step` and `Source` are missing: they were wrong in one use each.
INSTEAD = {
    "made": "inputs", "told": "outputs, metrics", "asked": "stop_requested", "leaving": "stop_requested",
    "left": "remaining", "watching": "catch_sigterm", "interruption": "preemption", "Interrupted": "Preempted",
    "here": "gather_local", "first_of": "unreplicate", "own": "host_slice", "places": "host_slice",
    "nothing": "placeholder", "usable": "update_loss_scale, all_finite", "Silence": "MetricWriter",
    "Journal": "MetricWriter", "introduction": "run_summary", "scoring": "evaluation",
    "Checkpoints": "CheckpointManager",
    "weights_changed": "reset_ema", "averages_in_the_model": "ema_scope", "average_the_model": "apply_ema",
    "asking": "presets", "read_request": "parse_config_arg", "making": "factory",
    "rate_shares": "layerwise_multipliers",
    "momenta": "momentums", "Draws": "StepSeeds", "drawing_from": "seed_scope", "current_draws": "current_seeds",
    "ExpectedImages": "InputPreprocessing", "SelfAttention": "MultiHeadAttention", "Stored": "LazyArray",
    "Plan": "LoadPlan", "locate": "resolve", "recognise": "infer_architecture",
    "label_row": "one_hot", "cut": "cutmix", "mix": "mixup", "cover": "resize_to_cover", "beside": "assets",
    "tested": "verification", "plain_copy": "inference_copy", "Served": "ServingContext",
    "other_backends": "via_tensorflow", "writing": "files", "ask_server": "query_server",
    "ask_saved_model": "predict_saved_model", "ask": "predict", "rematerialise": "remat", "given": "the thing itself",
    "found": "the thing itself", "wanted": "expected", "with_holes": "the thing itself",
}  # fmt: skip


def _identifiers(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.arg | ast.keyword):
            yield node.arg
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield from (node.asname or node.name).split(".")


@pytest.mark.parametrize("folder", ["keras_vit", "experiments", "tests"])
def test_no_identifier_is_a_word_of_the_old_vocabulary(folder):
    old = []
    for file in sorted((ROOT / folder).rglob("*.py")):
        words = {file.stem, *_identifiers(ast.parse(file.read_text()))} & set(INSTEAD)
        old += [f"{file.relative_to(ROOT)}: {word}, say {INSTEAD[word]}" for word in sorted(words)]
    assert not old, "\n".join(old)
