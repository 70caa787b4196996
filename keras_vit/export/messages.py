"""The messages of TensorFlow Serving that an export and a client need, built from protobuf descriptors.

They read and write the same bytes as those of `tensorflow-serving-api`, which cannot be an extra because it would
install tensorflow over tensorflow-cpu or the TPU's wheel. Their protobuf package has another name, so that both can be
imported in one process; tensors and examples are TensorFlow's messages.
"""

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory, wrappers_pb2
from tensorflow.core.example import example_pb2
from tensorflow.core.framework import tensor_pb2
from tensorflow.core.protobuf import error_codes_pb2, meta_graph_pb2

# Each field: its number, "repeated" or "map" (from strings) where it is one, its type, its name, its `oneof`.
MESSAGES = {
    "ModelSpec": (
        "1 string name",
        "2 Int64Value version oneof version_choice",
        "4 string version_label oneof version_choice",
        "3 string signature_name",
    ),
    # Predict
    "PredictRequest": ("1 ModelSpec model_spec", "2 map TensorProto inputs", "3 repeated string output_filter"),
    "PredictResponse": ("2 ModelSpec model_spec", "1 map TensorProto outputs"),
    # Classify
    "ExampleList": ("1 repeated Example examples",),
    "Input": ("1 ExampleList example_list oneof kind",),
    "ClassificationRequest": ("1 ModelSpec model_spec", "2 Input input"),
    "Class": ("1 string label", "2 float score"),
    "Classifications": ("1 repeated Class classes",),
    "ClassificationResult": ("1 repeated Classifications classifications",),
    "ClassificationResponse": ("1 ClassificationResult result", "2 ModelSpec model_spec"),
    # Recorded requests, which a server replays as its warm-up
    "PredictLog": ("1 PredictRequest request", "2 PredictResponse response"),
    "ClassifyLog": ("1 ClassificationRequest request", "2 ClassificationResponse response"),
    "PredictionLog": ("2 ClassifyLog classify_log oneof log_type", "6 PredictLog predict_log oneof log_type"),
    # Metadata and status
    "SignatureDefMap": ("1 map SignatureDef signature_def",),
    "GetModelMetadataRequest": ("1 ModelSpec model_spec", "2 repeated string metadata_field"),
    "GetModelMetadataResponse": ("1 ModelSpec model_spec", "2 map Any metadata"),
    "StatusProto": ("1 Code error_code", "2 string error_message"),
    "ModelVersionStatus": ("1 int64 version", "2 State state", "3 StatusProto status"),
    "GetModelStatusRequest": ("1 ModelSpec model_spec",),
    "GetModelStatusResponse": ("1 repeated ModelVersionStatus model_version_status",),
}
STATES = {"UNKNOWN": 0, "START": 10, "LOADING": 20, "AVAILABLE": 30, "UNLOADING": 40, "END": 50}

_PACKAGE = "keras_vit.serving"
_IMPORTED = {
    "Any": any_pb2.Any,
    "Int64Value": wrappers_pb2.Int64Value,
    "Example": example_pb2.Example,
    "SignatureDef": meta_graph_pb2.SignatureDef,
    "TensorProto": tensor_pb2.TensorProto,
}
_ENUMS = {"State": f"{_PACKAGE}.ModelVersionStatus.State", "Code": error_codes_pb2.Code.DESCRIPTOR.full_name}
_Field = descriptor_pb2.FieldDescriptorProto


def _set_type(field, kind):
    """Sets the type of a field: a scalar, an enumeration, or a message."""
    if kind in ("string", "float", "int64"):
        field.type = getattr(_Field, f"TYPE_{kind.upper()}")
    elif kind in _ENUMS:
        field.type, field.type_name = _Field.TYPE_ENUM, f".{_ENUMS[kind]}"
    else:
        name = _IMPORTED[kind].DESCRIPTOR.full_name if kind in _IMPORTED else f"{_PACKAGE}.{kind}"
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{name}"


def _add_field(message, text):
    number, *label, kind, name = text.partition(" oneof ")[0].split()
    field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if label:
        field.label = _Field.LABEL_REPEATED
    if label == ["map"]:
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        for part_number, part, part_kind in ((1, "key", "string"), (2, "value", kind)):
            _set_type(entry.field.add(name=part, number=part_number, label=_Field.LABEL_OPTIONAL), part_kind)
        kind = f"{message.name}.{entry.name}"
    _set_type(field, kind)
    oneof = text.partition(" oneof ")[2]
    if oneof:
        if oneof not in [declared.name for declared in message.oneof_decl]:
            message.oneof_decl.add(name=oneof)
        field.oneof_index = [declared.name for declared in message.oneof_decl].index(oneof)


def _classes():
    file = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3")
    imported_files = {message.DESCRIPTOR.file.name for message in _IMPORTED.values()}
    file.dependency.extend(imported_files | {error_codes_pb2.DESCRIPTOR.name})
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for text in fields:
            _add_field(message, text)
        if name == "ModelVersionStatus":
            states = message.enum_type.add(name="State")
            for state, number in STATES.items():
                states.value.add(name=state, number=number)
    # The default pool has TensorFlow's messages, which are fields of ours.
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in MESSAGES
    }


globals().update(_classes())
