"""Exports a trained model as a SavedModel for a server, or as a LiteRT or ONNX file.

keras-vit export --model=runs/digits --output=served/digits
keras-vit export --model=mine.keras --output=served/mine --class_names=names.txt
keras-vit export --variant=ViT_B16 --weights=augreg --class_names=published --output=served/vit
keras-vit export --model=runs/digits --format=litert_int8 --output=digits.tflite
"""

from absl import flags

from keras_vit import export
from keras_vit.commands import shared_flags

FORMATS = {
    "litert": export.litert,
    "litert_int8": lambda model, path: export.litert(model, path, quantization="int8"),
    "onnx": export.onnx,
}
FLAGS = flags.FLAGS


def define_flags():
    shared_flags.define_model()
    shared_flags.define_class_names()
    flags.DEFINE_string("output", "", "Folder for the versions of a SavedModel, or file to write in another format.")
    flags.DEFINE_enum("format", "saved_model", ["saved_model", *FORMATS], "Format to write.")
    flags.DEFINE_integer("version", 0, "Version number, 1 or more; 0 for the next unused number.", lower_bound=0)
    flags.DEFINE_string("name", "", "Name of the model on the server; by default, the name of --output.")
    flags.DEFINE_list(
        "signatures",
        ["serving_default", "tensor"],
        f"Signatures of the SavedModel, from {', '.join(export.SIGNATURES)}.",
    )
    flags.DEFINE_enum("precision", "float32", ["float32", "bfloat16"], "Compute precision of the SavedModel.")
    flags.DEFINE_integer("top", 5, "Number of classes in a prediction, best first.", lower_bound=1)
    flags.DEFINE_bool("exif", None, "Whether to apply the EXIF orientation of photographs; by default, as in the run.")
    flags.DEFINE_float("max_megapixels", 50.0, "Maximum size of an image, in millions of pixels.", lower_bound=0)
    flags.DEFINE_integer("max_batch_size", 512, "Maximum number of images in a request.", lower_bound=1)


def main():
    if not FLAGS.output or (FLAGS.variant and not FLAGS.weights):
        raise ValueError(
            "--output is required, and --variant requires --weights. Received: "
            f"output={FLAGS.output!r}, variant={FLAGS.variant!r}, weights={FLAGS.weights!r}"
        )
    model, details, _ = shared_flags.chosen_model()
    if FLAGS.format != "saved_model":
        print(FORMATS[FLAGS.format](model, FLAGS.output))
        return
    if FLAGS.class_names:
        details["class_names"] = shared_flags.read_class_names(FLAGS.class_names, model.output_shape[-1])
    if FLAGS.exif is not None:
        details["exif"] = FLAGS.exif
    same = ("signatures", "precision", "top", "max_megapixels", "max_batch_size")
    details |= {name: FLAGS[name].value for name in same}
    path = export.saved_model(model, FLAGS.output, version=FLAGS.version or None, name=FLAGS.name or None, **details)
    print(f"exported to {path}")
