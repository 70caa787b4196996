"""The scale of a float16 loss: as large as the gradients allow, found while training goes on."""

from keras import ops

INITIAL_LOSS_SCALE = 2.0**15
# The scale doubles after this many finite steps in a row, and halves after one that is not.
LOSS_SCALE_GROWTH_STEPS = 2000


def update_loss_scale(loss_scale, good_steps, all_finite, running):
    """The scale of the next step's loss.

    Args:
        loss_scale: float32 scalar, of the step that was computed.
        good_steps: integer scalar, the finite steps since the scale was changed.
        all_finite: boolean scalar, whether the step was finite.
        running: boolean scalar; where it is False, nothing changes.

    Returns:
        `(loss_scale, good_steps)` of the next step, of the dtypes of the arguments.
    """
    good = ops.where(all_finite, good_steps + 1, 0)
    growth = ops.where(ops.equal(good, LOSS_SCALE_GROWTH_STEPS), 2.0, 1.0)
    new_scale = ops.where(running, loss_scale * ops.where(all_finite, growth, 0.5), loss_scale)
    return new_scale, ops.where(running, good % LOSS_SCALE_GROWTH_STEPS, good_steps)
