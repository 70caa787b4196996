"""How layers are compiled, which depends on the device and is known only to the engines."""

import contextlib
import functools
import threading

# `MirroredStrategy` runs each replica in a separate thread.
_THREAD = threading.local()


@contextlib.contextmanager
def compiling_for(platform, fuse=None):
    """Tells the layers of this thread how they are compiled; None changes nothing.

    Args:
        platform: the platform, such as "tpu".
        fuse: function that returns a form of an elementwise function that passes through memory
            once; None if the compiler does that anyway.
    """
    before = dict(_THREAD.__dict__)
    _THREAD.platform = platform or before.get("platform")
    _THREAD.fuse = fuse or before.get("fuse")
    try:
        yield
    finally:
        _THREAD.__dict__.clear()
        _THREAD.__dict__.update(before)


def current_scope():
    """Returns a function whose context managers re-enter the scope of this thread."""
    return functools.partial(compiling_for, platform(), getattr(_THREAD, "fuse", None))


def platform():
    """Returns the platform for which layers are compiled, or None if no engine named one."""
    return getattr(_THREAD, "platform", None)


def fused(function):
    """Returns the fused form of an elementwise function of tensors, or the function itself."""
    fuse = getattr(_THREAD, "fuse", None)
    return fuse(function) if fuse else function
