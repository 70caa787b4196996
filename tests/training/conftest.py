"""Fixtures of the tests of training."""

import contextlib
import resource

import pytest


@pytest.fixture
def file_size_limit():
    """Returns a context manager that limits the size of new files, like a full disk."""

    @contextlib.contextmanager
    def limit(number_of_bytes):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (number_of_bytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limit
