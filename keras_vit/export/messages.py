"""Defines the TensorFlow Serving messages for exports and clients, byte-compatible with
`tensorflow-serving-api`.

That package is not a dependency, because it would install tensorflow over tensorflow-cpu or the TPU
wheel. A process can import both that package and this module.
"""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, wrappers_pb2
from tensorflow.core.framework import tensor_pb2

# Fields of each message: number, optionally "repeated" or "map" (with string keys), type and name.
MESSAGES = {
    "ModelSpec": ("1 string name", "2 Int64Value version", "3 string signature_name"),
    "PredictRequest": (
        "1 ModelSpec model_spec",
        "2 map TensorProto inputs",
        "3 repeated string output_filter",
    ),
    "PredictResponse": ("2 ModelSpec model_spec", "1 map TensorProto outputs"),
    "PredictLog": ("1 PredictRequest request", "2 PredictResponse response"),
    # A PredictionLog stores a request that a server replays to warm up.
    "PredictionLog": ("6 PredictLog predict_log",),
}
_PACKAGE = "keras_vit.serving"
_IMPORTED = {"Int64Value": wrappers_pb2.Int64Value, "TensorProto": tensor_pb2.TensorProto}
_Field = descriptor_pb2.FieldDescriptorProto


def _add_field(message, number, name, kind, label=_Field.LABEL_OPTIONAL):
    field = message.field.add(name=name, number=int(number), label=label)
    if kind == "string":
        field.type = _Field.TYPE_STRING
    else:
        full_name = (
            _IMPORTED[kind].DESCRIPTOR.full_name if kind in _IMPORTED else f"{_PACKAGE}.{kind}"
        )
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{full_name}"


def _classes():
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3"
    )
    file.dependency.extend(message.DESCRIPTOR.file.name for message in _IMPORTED.values())
    for message_name, fields in MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for text in fields:
            number, *label, kind, name = text.split()
            if label == ["map"]:
                entry = message.nested_type.add(name=f"{name.title()}Entry")
                entry.options.map_entry = True
                _add_field(entry, 1, "key", "string")
                _add_field(entry, 2, "value", kind)
                kind = f"{message_name}.{entry.name}"
            _add_field(
                message,
                number,
                name,
                kind,
                _Field.LABEL_REPEATED if label else _Field.LABEL_OPTIONAL,
            )
    # Use the default pool, because it contains the imported messages.
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in MESSAGES
    }


_CLASSES = _classes()
ModelSpec = _CLASSES["ModelSpec"]
PredictRequest = _CLASSES["PredictRequest"]
PredictResponse = _CLASSES["PredictResponse"]
PredictLog = _CLASSES["PredictLog"]
PredictionLog = _CLASSES["PredictionLog"]
