"""Another method of a layer for a while, seen by one thread alone."""

import contextlib
import threading

_lock = threading.RLock()


@contextlib.contextmanager
def replaced_method(layer, name, function):
    """While it is open, `layer.name` is `function` for this thread, and as it was for all others.

    It may be opened again inside, as by a model that has another one's features inside; another thread waits.

    Args:
        layer: a `keras.layers.Layer`.
        name: of its method.
        function: with the arguments of the method.

    Yields:
        What `layer.name` was before.
    """
    owner = threading.get_ident()
    with _lock:
        original, is_replaced = getattr(layer, name), name in vars(layer)

        def method(*args, **kwargs):
            return (function if threading.get_ident() == owner else original)(*args, **kwargs)

        object.__setattr__(layer, name, method)
        try:
            yield original
        finally:
            if is_replaced:
                object.__setattr__(layer, name, original)
            else:
                object.__delattr__(layer, name)
