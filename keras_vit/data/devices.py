"""TensorFlow on the CPU alone, where another framework computes."""

import tensorflow as tf


def hide_accelerators_from_tensorflow() -> None:
    """Keeps TensorFlow off the GPUs and TPUs of this process, whose memory it would otherwise take; call it before the
    first TensorFlow operation.

    Raises:
        ValueError: TensorFlow was used before, and has an accelerator already.
    """
    for kind in ("GPU", "TPU"):
        try:
            tf.config.set_visible_devices([], kind)
        except RuntimeError as error:
            if tf.config.get_visible_devices(kind):
                raise ValueError(
                    f"TensorFlow already uses a {kind}, which is for JAX here; choose the devices of a run before "
                    f"anything is computed with TensorFlow. Received: {tf.config.get_visible_devices(kind)}"
                ) from error
