"""Defines the TensorFlow Serving messages for exports and clients, byte-compatible with
`tensorflow-serving-api`.

That package is not a dependency, because it would install tensorflow over tensorflow-cpu or the TPU
wheel. A process can import both that package and this module.
"""

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
    wrappers_pb2,  # noqa: F401  (registers Int64Value)
)
from tensorflow.core.framework import tensor_pb2  # noqa: F401  (registers TensorProto)

_FILE = """
name: "keras_vit.serving.proto"
package: "keras_vit.serving"
syntax: "proto3"
dependency: "google/protobuf/wrappers.proto"
dependency: "tensorflow/core/framework/tensor.proto"
message_type {
  name: "ModelSpec"
  field { number: 1 name: "name" type: TYPE_STRING label: LABEL_OPTIONAL }
  field {
    number: 2 name: "version" type: TYPE_MESSAGE label: LABEL_OPTIONAL
    type_name: ".google.protobuf.Int64Value"
  }
  field { number: 3 name: "signature_name" type: TYPE_STRING label: LABEL_OPTIONAL }
}
message_type {
  name: "PredictRequest"
  field {
    number: 1 name: "model_spec" type: TYPE_MESSAGE label: LABEL_OPTIONAL
    type_name: ".keras_vit.serving.ModelSpec"
  }
  field {
    number: 2 name: "inputs" type: TYPE_MESSAGE label: LABEL_REPEATED
    type_name: ".keras_vit.serving.PredictRequest.InputsEntry"
  }
  field { number: 3 name: "output_filter" type: TYPE_STRING label: LABEL_REPEATED }
  nested_type {
    name: "InputsEntry"
    options { map_entry: true }
    field { number: 1 name: "key" type: TYPE_STRING label: LABEL_OPTIONAL }
    field {
      number: 2 name: "value" type: TYPE_MESSAGE label: LABEL_OPTIONAL
      type_name: ".tensorflow.TensorProto"
    }
  }
}
message_type {
  name: "PredictResponse"
  field {
    number: 2 name: "model_spec" type: TYPE_MESSAGE label: LABEL_OPTIONAL
    type_name: ".keras_vit.serving.ModelSpec"
  }
  field {
    number: 1 name: "outputs" type: TYPE_MESSAGE label: LABEL_REPEATED
    type_name: ".keras_vit.serving.PredictResponse.OutputsEntry"
  }
  nested_type {
    name: "OutputsEntry"
    options { map_entry: true }
    field { number: 1 name: "key" type: TYPE_STRING label: LABEL_OPTIONAL }
    field {
      number: 2 name: "value" type: TYPE_MESSAGE label: LABEL_OPTIONAL
      type_name: ".tensorflow.TensorProto"
    }
  }
}
message_type {
  name: "PredictLog"
  field {
    number: 1 name: "request" type: TYPE_MESSAGE label: LABEL_OPTIONAL
    type_name: ".keras_vit.serving.PredictRequest"
  }
  field {
    number: 2 name: "response" type: TYPE_MESSAGE label: LABEL_OPTIONAL
    type_name: ".keras_vit.serving.PredictResponse"
  }
}
# A PredictionLog stores a request that a server replays to warm up.
message_type {
  name: "PredictionLog"
  field {
    number: 6 name: "predict_log" type: TYPE_MESSAGE label: LABEL_OPTIONAL
    type_name: ".keras_vit.serving.PredictLog"
  }
}
"""

# Use the default pool, because it contains the imported messages.
_pool = descriptor_pool.Default()
_pool.AddSerializedFile(
    text_format.Parse(_FILE, descriptor_pb2.FileDescriptorProto()).SerializeToString()
)
_classes = message_factory.GetMessageClassesForFiles(["keras_vit.serving.proto"], _pool)
MESSAGES = {message.DESCRIPTOR.name: message for message in _classes.values()}
ModelSpec = MESSAGES["ModelSpec"]
PredictRequest = MESSAGES["PredictRequest"]
PredictResponse = MESSAGES["PredictResponse"]
PredictLog = MESSAGES["PredictLog"]
PredictionLog = MESSAGES["PredictionLog"]
