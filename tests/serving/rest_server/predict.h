// TensorFlow Serving's REST protocol for Predict and Classify.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "json_tensors.h"
#include "model.h"
#include "tensorflow/core/example/example.pb.h"

inline std::string SignatureName(const Json& request) {
  const Json* name = Find(request, "signature_name");
  if (name == nullptr) return "serving_default";
  if (!name->has_string_value()) throw http::Error(400, "`signature_name` must be a string.");
  return name->string_value();
}

// Returns the values by input. A signature with one input also accepts the value without the name.
inline std::map<std::string, const Json*> ByInput(const Json& value, const tensorflow::SignatureDef& signature) {
  std::map<std::string, const Json*> values;
  if (value.has_struct_value() && Encoded(value) == nullptr) {
    for (const auto& [input, json] : value.struct_value().fields()) values.emplace(input, &json);
  } else if (signature.inputs_size() == 1) {
    values.emplace(signature.inputs().begin()->first, &value);
  } else {
    throw http::Error(400, "The signature has several inputs, so each needs its name.");
  }
  return values;
}

// Parses `{"instances": rows}` or `{"inputs": columns}`.
inline Tensors ParseInputs(const Json& request, const tensorflow::SignatureDef& signature) {
  const Json *instances = Find(request, "instances"), *columns = Find(request, "inputs");
  if ((instances == nullptr) == (columns == nullptr)) {
    throw http::Error(400, "A request must be an object with either `instances` or `inputs`.");
  }
  std::map<std::string, std::vector<const Json*>> rows;  // rows by input
  if (instances != nullptr) {
    if (instances->list_value().values().empty()) {
      throw http::Error(400, "`instances` must be a list of one or more rows.");
    }
    for (const Json& row : instances->list_value().values()) {
      for (const auto& [input, json] : ByInput(row, signature)) rows[input].push_back(json);
    }
  } else {
    for (const auto& [input, column] : ByInput(*columns, signature)) {
      if (!column->has_list_value()) throw http::Error(400, "An input must be a list of rows.");
      for (const Json& row : column->list_value().values()) rows[input].push_back(&row);
    }
  }
  size_t count = rows.empty() ? 0 : rows.begin()->second.size();
  if (instances != nullptr) count = instances->list_value().values_size();
  Tensors tensors;
  for (const auto& [input, values] : rows) {
    const auto info = signature.inputs().find(input);
    if (info == signature.inputs().end()) throw http::Error(400, "The signature has no input \"" + input + "\".");
    tensors.emplace(input, TensorFromRows(values, info->second.dtype()));
    if (values.size() != count) throw http::Error(400, "All inputs must have the same number of rows.");
  }
  return tensors;
}

// Outputs with names that end in "_bytes" are encoded as {"b64": ...}.
inline bool AsBytes(const std::string& name) {
  return name.size() >= 6 && name.compare(name.size() - 6, 6, "_bytes") == 0;
}

inline std::string PredictJson(const Tensors& outputs, bool in_rows) {
  std::map<std::string, int64_t> next;
  const auto append = [&](int dimension, std::string* json) {
    if (outputs.size() == 1) {
      const auto& [name, tensor] = *outputs.begin();
      return AppendSlice(tensor, dimension, AsBytes(name), &next[name], json);
    }
    char separator = '{';
    for (const auto& [name, tensor] : outputs) {
      *json += separator;
      AppendQuoted(name, json);
      *json += ": ";
      AppendSlice(tensor, dimension, AsBytes(name), &next[name], json);
      separator = ',';
    }
    *json += '}';
  };
  std::string json = in_rows ? "{\"predictions\": [" : "{\"outputs\": ";
  if (in_rows) {
    const int64_t count = outputs.begin()->second.dims() == 0 ? 0 : outputs.begin()->second.dim_size(0);
    for (const auto& [name, tensor] : outputs) {
      if (tensor.dims() == 0 || tensor.dim_size(0) != count) {
        throw http::Error(400, "The output \"" + name + "\" has another batch size. Send `inputs`, not `instances`.");
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      if (i > 0) json += ", ";
      append(1, &json);
    }
    json += ']';
  } else {
    append(0, &json);
  }
  return json + "}";
}

inline std::string Predict(const Model& model, const std::string& body) {
  google::protobuf::Arena arena;
  const Json& request = ParseJson(body, &arena);
  const auto& signature = model.Signature(SignatureName(request));
  const Tensors outputs = model.Run(signature, ParseInputs(request, signature));
  return PredictJson(outputs, Find(request, "instances") != nullptr);
}

// Converts a value or a list of strings or numbers to a feature. Numbers become floats.
inline tensorflow::Feature ParseFeature(const Json& json) {
  tensorflow::Feature feature;
  const auto add = [&](const Json& value) {
    if (value.has_number_value()) {
      feature.mutable_float_list()->add_value(Number<float>(value));
    } else {
      feature.mutable_bytes_list()->add_value(Bytes(value));
    }
  };
  if (!json.has_list_value()) add(json);
  for (const Json& value : json.list_value().values()) add(value);
  return feature;
}

// Returns `{"results": [[[class, score], ...], ...]}` for `{"examples": [{feature: value}]}`.
inline std::string Classify(const Model& model, const std::string& body) {
  google::protobuf::Arena arena;
  const Json& request = ParseJson(body, &arena);
  const auto& signature = model.Signature(SignatureName(request));
  const Json* examples = Find(request, "examples");
  if (examples == nullptr || examples->list_value().values().empty()) {
    throw http::Error(400, "`examples` must be a list of one or more examples.");
  }
  tensorflow::Tensor inputs(tensorflow::DT_STRING, {examples->list_value().values_size()});
  for (int i = 0; i < examples->list_value().values_size(); ++i) {
    tensorflow::Example example;
    for (const auto& [name, json] : examples->list_value().values(i).struct_value().fields()) {
      (*example.mutable_features()->mutable_feature())[name] = ParseFeature(json);
    }
    inputs.flat<tensorflow::tstring>()(i) = example.SerializeAsString();
  }
  const Tensors outputs = model.Run(signature, {{"inputs", inputs}});
  if (outputs.count("classes") == 0 || outputs.count("scores") == 0) {
    throw http::Error(400, "A Classify signature must have the outputs `classes` and `scores`.");
  }
  const auto classes = outputs.at("classes").matrix<tensorflow::tstring>();
  const auto scores = outputs.at("scores").matrix<float>();
  std::string json = "{\"results\": [";
  for (int64_t i = 0; i < scores.dimension(0); ++i) {
    json += i > 0 ? ", [" : "[";
    for (int64_t j = 0; j < scores.dimension(1); ++j) {
      json += j > 0 ? ", [" : "[";
      AppendQuoted(std::string(classes(i, j)), &json);
      json += ", ";
      AppendNumber(scores(i, j), &json);
      json += ']';
    }
    json += ']';
  }
  return json + "]}";
}
