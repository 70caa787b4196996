"""Steps of training, several in one call."""

import tensorflow as tf

from keras_vit import optimizers
from keras_vit.training.gradients import make_replica_gradients
from keras_vit.training.strategy import hosts

METRICS = ("loss", "accuracy", "grad_norm", "learning_rate")

# The scale of a float16 loss doubles after so many good steps, and halves after a bad one.
STEPS_OF_A_SCALE = 2000


def make_train_steps(strategy, state, loss, *, batch_size, ema_decay=0.0, skip_nonfinite=False, **options):
    """The function that trains.

    A step whose loss or gradient is not finite changes no weight. It is the last one of its call, unless
    `skip_nonfinite`, or unless it was only the scale of a float16 loss that was too large.

    Args:
        strategy: the strategy in whose scope the state was made.
        state: the `State`.
        loss: from labels and logits, `(B, classes)`, to losses `(B,)`.
        batch_size: examples of a batch, over all replicas.
        ema_decay: of the averages of the weights, in [0, 1); 0 for none.
        skip_nonfinite: whether to go on after a step that was not finite.
        **options: of `make_replica_gradients`.

    Returns:
        `train_steps(iterator, first, steps, leaving)`: does up to `steps` steps from number `first` on and returns
        a dict of float32 `(steps done, 4)`, "rows" of `METRICS`; float32 `(steps done, examples here)`, the "weights"
        of the examples; "waited", the seconds spent waiting for input; "leaving", whether `leaving`, a float32
        scalar, was above 0 on any worker; and "can_go_on", whether the last step lets training go on.
    """
    model, optimizer = state.model, state.optimizer
    replica_gradients = make_replica_gradients(strategy, model, loss, batch_size=batch_size, **options)
    # The gradients are summed over replicas before they are clipped, and Keras must not do it once more. This name of
    # Keras' is private: equal weights for any number of replicas are the test of it.
    optimizer._all_reduce_sum_gradients = lambda gradients_and_variables: gradients_and_variables

    @tf.autograph.experimental.do_not_convert
    def replica_first(step, leaving, images, labels, weights):
        scale = None if state.scale is None else tf.identity(state.scale)
        gradients, metrics = replica_gradients(step, images, labels, weights, scale)
        leaving = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(leaving))
        return gradients, metrics, leaving, weights

    @tf.autograph.experimental.do_not_convert
    def replica_update(gradients):
        optimizer.apply(gradients, model.trainable_variables)
        for average, variable in zip(state.averages, model.trainable_variables):
            average.assign(optimizers.ema_update(average, variable, ema_decay))

    def here(value):
        return tf.concat(strategy.experimental_local_results(value), 0)

    def first_of(value):
        return strategy.experimental_local_results(value)[0]

    def usable(metrics):
        """Whether a step can be used, and whether training can go on after it."""
        loss_finite, finite = tf.math.is_finite(metrics[0]), tf.reduce_all(tf.math.is_finite(metrics))
        if state.scale is None:
            return finite, finite | skip_nonfinite
        good = tf.where(finite, state.good_steps + 1, 0)
        grown = tf.where(good == STEPS_OF_A_SCALE, 2.0, 1.0)
        state.good_steps.assign(good % STEPS_OF_A_SCALE)
        state.scale.assign(state.scale * tf.where(finite, grown, 0.5))
        return finite, finite | skip_nonfinite | (loss_finite & (state.scale >= 1.0))

    local_size = batch_size // hosts(strategy)[0]

    @tf.function
    def train_steps(iterator, first, steps, leaving):
        rows = tf.TensorArray(tf.float32, size=steps, element_shape=(len(METRICS),))
        seen = tf.TensorArray(tf.float32, size=steps, element_shape=(local_size,))
        waited, left = tf.constant(0.0, tf.float64), tf.constant(0.0)
        going, done = True, 0
        metrics = tf.zeros(3)
        while done < steps and going:
            # Ordered by hand: the clock starts when the step before is done, and stops when the batch is there.
            with tf.control_dependencies([metrics]):
                asked = tf.timestamp()
            with tf.control_dependencies([asked]):
                images, labels, weights = next(iterator)
            with tf.control_dependencies([tf.identity(part) for part in strategy.experimental_local_results(weights)]):
                waited += tf.timestamp() - asked
            gradients, replica_metrics, replica_leaving, weights = strategy.run(
                replica_first, args=(first + done, leaving, images, labels, weights)
            )
            metrics, left = first_of(replica_metrics), left + first_of(replica_leaving)
            rate = tf.cast(optimizer.learning_rate, tf.float32)
            rows = rows.write(done, tf.concat([metrics, [rate]], 0))
            seen = seen.write(done, here(weights))
            finite, going = usable(metrics)
            if finite:
                strategy.run(replica_update, args=(gradients,))
            done += 1
        return {
            "rows": rows.stack()[:done],
            "weights": seen.stack()[:done],
            "waited": waited,
            "leaving": left > 0,
            "can_go_on": going,
        }

    return train_steps
