"""Numbers for TensorBoard. The only framework-neutral part of training that imports TensorFlow, which writes them."""


class Scalars:
    """Writes scalars for `tensorboard --logdir FOLDER`.

    It only ever adds: of a run that was resumed, TensorBoard shows the steps after its checkpoint twice.

    Args:
        folder: any path, local or remote.
    """

    def __init__(self, folder):
        import tensorflow as tf

        self._tf = tf
        self._writer = tf.summary.create_file_writer(str(folder))

    def write(self, step, values):
        """Writes the numbers of one step, a dict of names such as "train/loss", to the file at once."""
        tf = self._tf
        # What `tf.summary.scalar` does, which exists only where the package tensorboard is installed.
        metadata = tf.compat.v1.SummaryMetadata(
            plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"), data_class="DATA_CLASS_SCALAR"
        )
        with self._writer.as_default(step):
            for name, value in values.items():
                tf.summary.write(name, tf.constant(value, tf.float32), metadata=metadata)
        self._writer.flush()

    def close(self):
        self._writer.close()
