"""The command `keras-vit`, outside of the package, whose import takes seconds."""

import importlib
import os
import sys
import time

START = time.monotonic()

COMMANDS = {
    "train": ("train", "Train a model as a config says, evaluate it and export it."),
    "sweep": ("sweep", "Train at several learning rates and with the best one on all data."),
    "evaluate": ("evaluate", "Evaluate a model: accuracy, few-shot, calibration and others."),
    "predict": ("predict", "Predict the classes of image files."),
    "inspect": ("inspect_model", "Draw attention maps, filters and position embeddings of a model."),
    "demo": ("demo", "Serve a page to try a model on images of yours."),
    "export": ("export_model", "Export a model as a SavedModel, LiteRT or ONNX file."),
    "query": ("query", "Send images to a server of an exported model."),
    "convert": ("convert", "Convert a checkpoint of another library, or to another format."),
    "check-tpu": ("check_tpu", "Say whether a run fits a TPU, on a machine without one."),
    "verify-data": ("verify_data", "Find unreadable images, duplicates and empty classes of a dataset."),
    "show-batch": ("show_batch", "Draw a batch as the model sees it."),
    "info": ("info", "Print versions, devices and the environment for a bug report."),
}
"""The commands by name: a module of `keras_vit.commands`, and what it does."""

HELP = """usage: keras-vit COMMAND [--flag=value ...]

{commands}

keras-vit COMMAND --help describes its flags.
"""


def main(argv=None):
    """Runs a command; `argv` are the words after `keras-vit`, those of this process if None."""
    name, *arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("--help", "-h", "help"):
        print(HELP.format(commands="\n".join(f"  {name:12} {line}" for name, (_, line) in COMMANDS.items())), end="")
        return
    name = "info" if name == "--version" else name
    if name not in COMMANDS:
        print(f"error: the commands are {', '.join(COMMANDS)}. Received: {name}", file=sys.stderr)
        sys.exit(2)
    if "--config" in arguments[:-1]:  # ml_collections needs the form with "="
        place = arguments.index("--config")
        arguments[place : place + 2] = [f"--config={arguments[place + 1]}"]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported
    if name == "check-tpu":  # JAX, which Keras may import, must not look for a TPU
        os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    try:
        from keras_vit.commands import command_line
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    command_line.run(lambda: importlib.import_module(f"keras_vit.commands.{COMMANDS[name][0]}"), name, arguments)


if __name__ == "__main__":
    main()
