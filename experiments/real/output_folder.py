"""The output folder of a study, which belongs to one set of flags."""

from pathlib import Path

from keras_vit import files


def open_output(flag_values, *names):
    """Creates the folder of `--output` and returns its path.

    `settings.json` in the folder records the values of the flags `names`.

    Raises:
        ValueError: the folder has results of other values.
    """
    output = Path(flag_values.output)
    settings = {name: flag_values[name].value for name in names}
    known = files.read_json(output / "settings.json")
    if known not in (None, settings):
        raise ValueError(
            f"--output has results of {known}; use another folder. Received: {settings}"
        )
    output.mkdir(parents=True, exist_ok=True)
    files.write_json(output / "settings.json", settings)
    return output
