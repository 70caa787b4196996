"""Gathers the rows of all replicas for tasks that need the global batch."""

import tensorflow as tf

from keras_vit.tasks.gathering import GlobalBatch, batch_scope


def replica_scope():
    """Returns a context in which `current_batch` gathers rows over the replicas, in a replica's
    thread."""
    context = tf.distribute.get_replica_context()
    replicas = context.num_replicas_in_sync
    if replicas == 1:
        return batch_scope(GlobalBatch())
    replica = context.replica_id_in_sync_group

    def gather(rows):
        # A sum of padded rows has static shapes and a gradient, which is summed over the replicas.
        place = tf.reshape(tf.one_hot(replica, replicas, dtype=rows.dtype), (-1, *[1] * rows.ndim))
        every = context.all_reduce(tf.distribute.ReduceOp.SUM, place * rows)
        return tf.reshape(every, (-1, *rows.shape[1:]))

    return batch_scope(GlobalBatch(gather, replica))
