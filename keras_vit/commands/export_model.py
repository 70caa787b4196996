"""Exports a trained model as a SavedModel for a server, or as a LiteRT or ONNX file.

    keras-vit export --model=runs/digits --output=served/digits
    keras-vit export --model=mine.keras --output=served/mine --class_names=names.txt
    keras-vit export --variant=ViT_B16 --weights=augreg --class_names=published --output=served/vit
    keras-vit export --model=runs/digits --format=litert_int8 --output=digits.tflite
    keras-vit export --model=runs/digits --format=auto --output=digits --calibrate=photos

--format=auto measures the available formats on this machine and writes the fastest accurate one: a
SavedModel to the folder --output, or a file whose name is --output plus .tflite or .onnx. float32
counts as accurate. bfloat16 and int8 count as accurate if they predict the model's class for at
least 99 % of the images in --calibrate; they are never selected for a model without classes, such
as one for depths. Without --calibrate, bfloat16 is compared on images of noise, and int8 is never
selected.

LiteRT and ONNX files contain no class names, preprocessing or signatures, so the flags for these
require --format=saved_model.
"""

import tempfile

from absl import flags

from keras_vit import export, files
from keras_vit.commands import command_line, shared_flags
from keras_vit.commands.image_files import Classifier, evenly_spaced, find_images, reader_of
from keras_vit.export import choosing, comparison, devices
from keras_vit.export.dense_signatures import predicts_of

# Flags for a SavedModel only, with the names of arguments of `export.saved_model`.
SERVING = (
    "version",
    "name",
    "class_names",
    "signatures",
    "precision",
    "device",
    "top",
    "max_megapixels",
    "max_batch_size",
)
MOST_IMAGES = 128  # maximum number of images to read from --calibrate
FLAGS = flags.FLAGS


def define_flags():
    shared_flags.define_model()
    shared_flags.define_class_names()
    flags.DEFINE_string(
        "output", "", "Folder for the versions of a SavedModel, or file to write in another format."
    )
    flags.DEFINE_enum(
        "format",
        "saved_model",
        ["saved_model", *choosing.FILE_FORMATS, "auto"],
        "Format to write; see above.",
    )
    flags.DEFINE_string(
        "calibrate",
        "",
        f"Folder of images; up to {MOST_IMAGES} are used to calibrate onnx_int8 and to compare "
        "outputs.",
    )
    flags.DEFINE_integer(
        "version", 0, "Version number, 1 or more; 0 for the next unused number.", lower_bound=0
    )
    flags.DEFINE_string(
        "name", "", "Name of the model on the server; by default, the name of --output."
    )
    flags.DEFINE_list(
        "signatures",
        None,
        f"Signatures of the SavedModel, one or more of {', '.join(export.SIGNATURES)}; by default, "
        "serving_default and tensor, or only tensor for more than 4 channels.",
    )
    flags.DEFINE_enum(
        "precision", "float32", ["float32", "bfloat16"], "Compute precision of the SavedModel."
    )
    flags.DEFINE_enum(
        "device",
        None,
        devices.DEVICES,
        "Kind of device that the SavedModel is for; by default, cpu if this machine has no GPU or "
        "TPU. The outputs differ only by rounding.",
    )
    flags.DEFINE_integer("top", 5, "Number of classes in a prediction, best first.", lower_bound=1)
    flags.DEFINE_bool(
        "exif",
        None,
        "Whether to apply the EXIF orientation of photographs; by default, as in the run.",
    )
    flags.DEFINE_float(
        "max_megapixels", 50.0, "Maximum size of an image, in millions of pixels.", lower_bound=1e-6
    )
    flags.DEFINE_integer(
        "max_batch_size", 512, "Maximum number of images in a request.", lower_bound=1
    )


def check_flags():
    """Raises a `ValueError` for flags that do not fit together, before the model is loaded."""
    if not FLAGS.output:
        raise ValueError("--output is required. Received: output=''")
    if FLAGS.variant and not FLAGS.weights:
        raise ValueError(
            f"--variant requires --weights. Received: variant={FLAGS.variant!r}, weights=''"
        )
    if FLAGS.format == "auto" and FLAGS.output.endswith((".tflite", ".onnx")):
        raise ValueError(
            "--output must not end in .tflite or .onnx, because --format=auto selects the file "
            f"extension. Received: output={FLAGS.output!r}"
        )
    unused = [f"--{name}" for name in SERVING if FLAGS[name].present]
    # Otherwise, --exif affects how the images of --calibrate are read.
    if FLAGS["exif"].present and not FLAGS.calibrate:
        unused.append("--exif")
    if unused and FLAGS.format != "saved_model":
        raise ValueError(
            f"These flags require --format=saved_model. Received: {', '.join(unused)} with "
            f"--format={FLAGS.format}"
        )
    if FLAGS.format == "onnx_int8" and not FLAGS.calibrate:
        raise ValueError(
            "--format=onnx_int8 requires --calibrate, a folder of images. Received: calibrate=''"
        )
    signatures = FLAGS.signatures or ("tensor",)
    if FLAGS.calibrate and FLAGS.format == "saved_model" and "tensor" not in signatures:
        raise ValueError(
            "--calibrate requires the signature `tensor` of a SavedModel. "
            f"Received: calibrate={FLAGS.calibrate!r}, signatures={','.join(signatures)}"
        )
    if FLAGS.format != "saved_model":
        command_line.check_output(FLAGS.output, takes_folder=FLAGS.format == "auto")


def main():
    check_flags()
    paths = find_images([FLAGS.calibrate]) if FLAGS.calibrate else []
    model, details, _ = shared_flags.chosen_model()
    details = shared_flags.with_class_names(details, FLAGS.class_names, model)
    if FLAGS.exif is not None:
        details = {**details, "exif": FLAGS.exif}
    if paths and FLAGS.format == "saved_model" and predicts_of(model):
        raise ValueError(
            "--calibrate must be empty for the SavedModel of a model that predicts pixels, which "
            "returns masks or depths instead of probabilities. Received: "
            f"calibrate={FLAGS.calibrate!r}"
        )
    images = None
    if paths:
        images, _ = reader_of(model, details).read_all(evenly_spaced(paths, MOST_IMAGES))
    if FLAGS.format == "auto":
        export_fastest(model, details, images)
    elif FLAGS.format == "saved_model":
        export_saved_model(model, details, FLAGS.precision, images)
    else:
        file_format, quantization = choosing.FILE_FORMATS[FLAGS.format]
        print(file_format.write(model, FLAGS.output, quantization, images))


def export_fastest(model, details, images):
    """Measures the formats and writes the fastest accurate one."""
    export.check(model, class_names=details.get("class_names"))  # a SavedModel may be the fastest
    with tempfile.TemporaryDirectory() as folder:
        measurements = choosing.measure(model, folder, images)
        name, reason = choosing.choose(measurements, calibrated=images is not None)
        print(reason)
        if name in choosing.SAVED_MODELS:
            export_saved_model(model, details, choosing.SAVED_MODELS[name])
            return
        file_format, _ = choosing.FILE_FORMATS[name]
        output = FLAGS.output + file_format.ending
        files.copy(measurements[name][0].path, output)
    print(f"wrote {output}")


def export_saved_model(model, details, precision, images=None):
    """Writes a SavedModel. If there are images, compares its probabilities with the model's."""
    options = {name: FLAGS[name].value or None for name in SERVING}
    options |= details | {"precision": precision}
    path = export.saved_model(model, FLAGS.output, **options)
    if FLAGS.device is None and devices.chosen_device(None) == "cpu":
        print("--device=cpu was chosen, because no GPU or TPU was found")
    if precision == "bfloat16" and devices.chosen_device(FLAGS.device) == "cpu":
        print(f"on CPUs with AMX, it is faster with {devices.ENVIRONMENT} in the environment")
    print(f"exported to {path}")
    if images is not None:
        expected = comparison.in_batches(Classifier(model, details).probabilities, images)
        reference = comparison.Reference(images, expected, comparison.count_of(images))
        size = comparison.saved_model_size(path)
        probabilities = comparison.saved_model_probabilities(path, images)
        print(comparison.compare(path, size, model, reference, probabilities))
