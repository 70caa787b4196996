"""Says in one line what the metrics of a run show so far, and what to try."""

import numpy as np

_PARTS = 10  # the training steps so far are compared in ten parts of equal length
_LEAST_STEPS = 50  # with fewer steps, the mean of a part is too noisy


def reading(steps, evaluations, total_steps):
    """Returns what a run shows so far, or "" without enough evidence.

    Args:
        steps: the columns of `metrics.csv`, as returned by `read_metrics`.
        evaluations: the columns of `evaluations.csv`.
        total_steps: length of the run.
    """
    if len(steps["step"]) < _LEAST_STEPS or "loss" not in evaluations:
        return ""
    train = {name: _means(steps[name]) for name in steps}
    if line := _loss_does_not_fall(steps, train):
        return line
    # Changes below this fraction may be noise, because the test images are few.
    noise = max(0.05, evaluations["examples"][-1] ** -0.5)
    if len(evaluations["loss"]) < 4 or not np.isfinite(evaluations["loss"]).all():
        return ""
    return (
        _train_and_test_apart(train, evaluations, noise)
        or _still_falling(evaluations, noise, total_steps)
        or _flat(train, evaluations, noise)
    )


def _means(values):
    """Returns the means of the finite values in each part."""
    return np.array(
        [
            np.mean(part[np.isfinite(part)] if np.isfinite(part).any() else part)
            for part in np.array_split(values, _PARTS)
        ]
    )


def _loss_does_not_fall(steps, train):
    loss = train["loss"]
    norm = train["grad_norm"]
    rate = train["learning_rate"]
    advice = f"try --config.schedule.base={max(steps['learning_rate']) / 3:.1g}"
    start = np.mean(steps["loss"][:5])
    lowest = np.argmin(loss)
    # The last two parts must be clearly higher, so that noise and a short peak do not count.
    if min(loss[-2:]) > max(1.2 * loss[lowest], loss[lowest] + 0.1 * start):
        return (
            f"the learning rate is too high: the training loss rose from {loss[lowest]:.4g} to "
            f"{loss[-1]:.4g}, with gradient norms of {norm[lowest]:.2g} and {norm[-1]:.2g}; "
            f"{advice}"
        )
    # A loss that fell by less than 2 % has not moved, unless the model was tuned before and is
    # accurate from the start.
    is_accurate = "accuracy" in train and train["accuracy"][-1] > 0.9
    has_warmed_up = rate[-1] <= rate[-2]
    if min(loss[-2:]) > 0.98 * start and has_warmed_up and not is_accurate:
        return (
            f"nothing is learned: the training loss is {loss[-1]:.4g}, and was {start:.4g} in the "
            f"first steps; {advice}, and look at the images and labels with keras-vit show-batch"
        )
    return ""


def _train_and_test_apart(train, evaluations, noise):
    if "accuracy" not in train or "accuracy" not in evaluations:
        return ""
    on_train = train["accuracy"][-1]
    on_test = evaluations["accuracy"][-1]
    if on_train - on_test < max(0.1, 2 * noise):
        return ""
    return (
        f"train and test are apart: the accuracy is {100 * on_train:.0f} % on training images and "
        f"{100 * on_test:.0f} % on test images; try more images, stronger augmentation "
        "(--config.data.augreg=medium1) or fewer steps"
    )


def _still_falling(evaluations, noise, total_steps):
    *_, first, middle, last = evaluations["loss"]
    if not last < middle < first or last > (1 - 2 * noise) * first:
        return ""
    step = evaluations["step"]
    longer = f"; try --config.total_steps={2 * total_steps:.0f}" if step[-1] >= total_steps else ""
    return (
        f"still falling: the test loss is {100 * (1 - last / first):.0f} % lower than at step "
        f"{step[-3]:.0f}{longer}"
    )


def _flat(train, evaluations, noise):
    loss = evaluations["loss"]
    is_near = np.abs(loss - loss[-1]) <= noise * np.abs(loss[-1])
    # From evaluation `first` on, all losses are near the last one.
    first = len(loss) - np.argmin(np.append(is_near[::-1], False))
    if len(loss) - first < 4:
        return ""
    rate = train["learning_rate"]
    advice = "it may fall again with the learning rate"
    if rate[-1] < 0.2 * max(rate):  # the rate has already fallen
        advice = "try fewer steps, and more images or a larger model for a better result"
    return (
        f"flat since step {evaluations['step'][first]:.0f}: the test loss was {loss[first]:.4g} "
        f"then and is {loss[-1]:.4g}; {advice}"
    )
