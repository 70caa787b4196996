"""Turning PyTorch's shapes into the original's: kernels are transposed, heads are one axis or three products fused."""


def dense(stored):
    """`(out, in)` to `(in, out)`."""
    return stored.transposed()


def convolution(stored):
    """`(out, in, height, width)` to `(height, width, in, out)`."""
    return stored.transposed((2, 3, 1, 0))


def into_heads(stored, heads):
    """A query, key or value: kernel `(heads * size, D)` to `(D, heads, size)`, bias likewise."""
    if len(stored.shape) == 2:
        stored = dense(stored)
    *rest, values = stored.shape
    if heads is None or values % heads:
        return stored  # the load compares shapes and will say so
    return stored.reshaped((*rest, heads, values // heads))


def out_of_heads(stored, heads):
    """The projection after attention: `(D, heads * size)` to `(heads, size, D)`."""
    stored = dense(stored)
    values, hidden_size = stored.shape
    if heads is None or values % heads:
        return stored
    return stored.reshaped((heads, values // heads, hidden_size))


def thirds(stored, last_read):
    """Query, key and value out of one array that has them along its first axis."""
    size = stored.shape[0] // 3
    return [last_read.part(stored, (size, *stored.shape[1:]), slice(i * size, (i + 1) * size)) for i in range(3)]
