"""The `keras-vit` command. This module is outside the package, because importing the package takes
seconds."""

import difflib
import importlib
import os
import sys
import time

START = time.monotonic()

COMMANDS = {
    "train": ("train", "Train a model from a config, evaluate it and export it."),
    "suggest": ("suggest", "Suggest commands for a folder of images and this machine."),
    "sweep": ("sweep", "Compare learning rates on held-out data, then train with the best."),
    "evaluate": ("evaluate", "Evaluate a model: accuracy, few-shot, calibration and more."),
    "predict": ("predict", "Predict the classes of image files."),
    "search": ("search", "Find the images that match a text."),
    "inspect": ("inspect_model", "Draw a model's attention maps, filters and position embeddings."),
    "demo": ("demo", "Serve a web page to try a model on your own images."),
    "export": ("export_model", "Export a model as a SavedModel, or as a LiteRT or ONNX file."),
    "query": ("query", "Send images to a server that serves an exported model."),
    "convert": ("convert", "Convert a checkpoint from another library or to another format."),
    "check-tpu": ("check_tpu", "Check whether a run fits a TPU, on a machine without one."),
    "verify-data": (
        "verify_data",
        "Find unreadable images, duplicates and empty classes in a dataset.",
    ),
    "show-batch": ("show_batch", "Draw batches as the model sees them."),
    "info": ("info", "Print versions, devices and the environment for a bug report."),
}
"""Maps each command to its module in `keras_vit.commands` and a description."""

HELP = """usage: keras-vit COMMAND [--flag=value ...]

{commands}

keras-vit COMMAND --help describes its flags.
"""


def main(argv=None):
    """Runs a command; `argv` holds the arguments that follow `keras-vit` and defaults to
    `sys.argv[1:]`."""
    name, *arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("--help", "-h", "help"):
        print(
            HELP.format(
                commands="\n".join(f"  {name:12} {line}" for name, (_, line) in COMMANDS.items())
            ),
            end="",
        )
        return
    name = "info" if name == "--version" else name
    if name not in COMMANDS:
        near = "".join(
            f" Did you mean {word}?" for word in difflib.get_close_matches(name, COMMANDS, 1)
        )
        print(
            f"error: the command must be one of {', '.join(COMMANDS)}.{near} Received: {name}",
            file=sys.stderr,
        )
        sys.exit(2)
    if "--config" in arguments[:-1]:  # `command_line` handles only --config=VALUE
        place = arguments.index("--config")
        arguments[place : place + 2] = [f"--config={arguments[place + 1]}"]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow reads this on import
    if name == "check-tpu":  # keep JAX, which Keras may import, from looking for a TPU
        os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    try:
        from keras_vit.commands import command_line
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    command_line.run(
        lambda: importlib.import_module(f"keras_vit.commands.{COMMANDS[name][0]}"), name, arguments
    )


if __name__ == "__main__":
    main()
