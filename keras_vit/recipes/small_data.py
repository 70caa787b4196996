"""The batch size, learning rate and length of a run on few images."""

MOST_BATCH = 32
EPOCHS = 30
MOST_IMAGES = 300_000  # in all epochs together
LEAST_EPOCHS = 5  # even if they have more images


def batch_size(images):
    """Returns the largest power of two that is at most a fifth of the images, from 1 to 32."""
    return min(MOST_BATCH, 2 ** max(0, (images // 5).bit_length() - 1))


def rate(batch_size):
    """Returns the peak learning rate of AdamW, which grows with the root of the batch size."""
    return 5e-4 * (batch_size / 128) ** 0.5


def total_steps(images, batch_size):
    """Returns the steps of 30 epochs; above 10,000 images, of 300,000 images or 5 epochs."""
    seen = min(EPOCHS * images, max(MOST_IMAGES, LEAST_EPOCHS * images))
    return max(10, round(seen / batch_size))


def tenth(steps):
    """Returns the steps of the warm-up, and those between evaluations."""
    return max(1, steps // 10)
