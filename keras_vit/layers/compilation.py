"""How layers are compiled, which depends on the device and is known only to the engines."""

import contextlib
import functools
import threading

# `MirroredStrategy` runs each replica in a separate thread.
_THREAD = threading.local()


@contextlib.contextmanager
def compiling_for(platform_name, fuse=None):
    """Tells the layers of this thread how they are compiled; None keeps what an outer scope says.

    Args:
        platform_name: the platform, such as "tpu".
        fuse: function that compiles an elementwise function so that it reads and writes memory
            once. Without one in any scope, functions stay as they are.
    """
    before = dict(_THREAD.__dict__)
    _THREAD.platform = platform_name or before.get("platform")
    _THREAD.fuse = fuse or before.get("fuse")
    try:
        yield
    finally:
        _THREAD.__dict__.clear()
        _THREAD.__dict__.update(before)


def current_scope():
    """Returns a function that re-enters this thread's scope, for example in a recomputation.

    The function returns a context manager.
    """
    return functools.partial(compiling_for, platform(), getattr(_THREAD, "fuse", None))


def platform():
    """Returns the platform for which layers are compiled, or None if no engine named one."""
    return getattr(_THREAD, "platform", None)


def fused(function):
    """Returns the fused form of an elementwise function of tensors, or the function itself."""
    fuse = getattr(_THREAD, "fuse", None)
    return fuse(function) if fuse else function
