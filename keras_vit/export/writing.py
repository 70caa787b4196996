"""Files that appear whole or not at all."""

import os


def write_whole(path, content):
    """Writes bytes beside a path and renames; an existing file is replaced, at the end and at once."""
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "wb") as file:
            file.write(content)
        os.replace(part, path)
    except OSError as error:
        raise ValueError(f"The file cannot be written ({error.strerror}). Received: path={path!r}") from error
    finally:
        if os.path.exists(part):
            os.unlink(part)
