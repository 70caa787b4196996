"""What a model is worth: one evaluator per file.

An evaluator is a module with `METRICS`, the names of what it measures, and `evaluate(engine, inputs)` to a dict of
floats with these names: it asks the engine of a run for means over all evaluation examples, and knows neither the
devices nor the batches. `config.evals` names evaluators; their metrics stand beside those of the task, as
`<evaluator>/<metric>`. To add one, write a file like `classification.py` and its row here.
"""

from keras_vit.evaluation import classification

EVALUATORS = {"classification": classification}


def get(names):
    """The evaluators of some names, a dict of modules.

    Raises:
        ValueError: a name is not a key of `EVALUATORS`.
    """
    unknown = [name for name in names if name not in EVALUATORS]
    if unknown:
        raise ValueError(f"The evaluators are {', '.join(EVALUATORS)}. Received: evals={tuple(names)}")
    return {name: EVALUATORS[name] for name in names}


__all__ = ["EVALUATORS", "classification", "get"]
