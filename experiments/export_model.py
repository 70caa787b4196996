"""Exports a trained model for a server, or in another format.

python experiments/export_model.py --model=runs/digits --target=served/digits
python experiments/export_model.py --model=mine.keras --target=served/mine --class_names=names.txt
python experiments/export_model.py --variant=ViT_B16 --weights=augreg --class_names=published --target=served/vit
python experiments/export_model.py --model=runs/digits --format=litert_int8 --target=digits.tflite
"""

import command_line
from absl import flags
from model_flags import build_model, load_model, read_class_names

from keras_vit import export

FORMATS = {
    "litert": export.litert,
    "litert_int8": lambda model, path: export.litert(model, path, quantization="int8"),
    "onnx": export.onnx,
    "keras_int8": export.int8,
}
FLAGS = flags.FLAGS
flags.DEFINE_string("model", "", "A run's workdir, the folder of an export, or a .keras file.")
flags.DEFINE_string("variant", "", "Instead of a model: a constructor of keras_vit, such as ViT_B16, for --weights.")
flags.DEFINE_string("weights", "", "The name of published weights, a path, or an https or gs URL.")
flags.DEFINE_string(
    "target", "", "The folder of the model's versions; for another format, the file to write (keras_int8: the folder)."
)
flags.DEFINE_enum("format", "saved_model", ["saved_model", *FORMATS], "The format to write.")
flags.DEFINE_integer("version", 0, "Number of the version, 1 or more; 0 is the next free one.", lower_bound=0)
flags.DEFINE_string("name", "", "The model's name on the server; the name of --target if not given.")
flags.DEFINE_string("class_names", "", "A text file, one name a line; 'published' for ImageNet's and ImageNet-21k's.")
flags.DEFINE_list("signatures", ["serving_default", "tensor"], f"Some of {', '.join(export.SIGNATURES)}.")
flags.DEFINE_enum("precision", "float32", ["float32", "bfloat16"], "The precision that the export computes in.")
flags.DEFINE_integer("top", 5, "How many classes a prediction names, best first.", lower_bound=1)
flags.DEFINE_bool(
    "exif", None, "Whether photographs are turned as their EXIF orientation says; the run's if not given."
)
flags.DEFINE_float("max_megapixels", 50.0, "Larger images are refused, in millions of pixels.", lower_bound=0)
flags.DEFINE_integer("max_batch_size", 512, "Larger batches are refused, in images.", lower_bound=1)


def main(_):
    if not FLAGS.target or bool(FLAGS.model) == bool(FLAGS.variant and FLAGS.weights):
        raise ValueError(
            "--target is needed, and either --model or --variant with --weights. Received: "
            f"target={FLAGS.target!r}, model={FLAGS.model!r}, variant={FLAGS.variant!r}, weights={FLAGS.weights!r}"
        )
    model, details = load_model(FLAGS.model) if FLAGS.model else (build_model(FLAGS.variant, FLAGS.weights), {})
    if FLAGS.format != "saved_model":
        print(FORMATS[FLAGS.format](model, FLAGS.target))
        return
    if FLAGS.class_names:
        details["class_names"] = read_class_names(FLAGS.class_names, model.output_shape[-1])
    if FLAGS.exif is not None:
        details["exif"] = FLAGS.exif
    path = export.saved_model(
        model,
        FLAGS.target,
        version=FLAGS.version or None,
        name=FLAGS.name or None,
        signatures=FLAGS.signatures,
        precision=FLAGS.precision,
        top=FLAGS.top,
        max_megapixels=FLAGS.max_megapixels,
        max_batch_size=FLAGS.max_batch_size,
        **details,
    )
    print(f"exported to {path}")


if __name__ == "__main__":
    command_line.run(main)
