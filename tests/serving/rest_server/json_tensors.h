// Converts tensors from and to the JSON of TensorFlow Serving's REST protocol.
#pragma once

#include <charconv>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "google/protobuf/json/json.h"
#include "google/protobuf/struct.pb.h"
#include "http.h"
#include "json_string.h"
#include "tensorflow/core/framework/tensor.h"

using Json = google::protobuf::Value;

// Parses JSON on an arena, because a batch of images has millions of values. Unlike TensorFlow Serving, rejects NaN.
inline const Json& ParseJson(const std::string& text, google::protobuf::Arena* arena) {
  Json* json = google::protobuf::Arena::Create<Json>(arena);
  const absl::Status status = google::protobuf::json::JsonStringToMessage(text, json);
  if (!status.ok()) throw http::Error(400, "JSON Parse error: " + std::string(status.message().substr(0, 300)));
  return *json;
}

inline const Json* Find(const Json& json, const std::string& name) {
  const auto& fields = json.struct_value().fields();
  const auto field = fields.find(name);
  return field == fields.end() ? nullptr : &field->second;
}

// Decodes {"b64": ...}, the encoding of a byte string.
inline const Json* Encoded(const Json& json) {
  return json.struct_value().fields_size() == 1 ? Find(json, "b64") : nullptr;
}

inline std::string Bytes(const Json& json) {
  if (json.has_string_value()) return json.string_value();
  const Json* encoded = Encoded(json);
  std::string bytes;
  if (encoded == nullptr || !encoded->has_string_value()) {
    throw http::Error(400, "An element of a string tensor must be a string or {\"b64\": string}.");
  }
  if (!absl::Base64Unescape(encoded->string_value(), &bytes)) throw http::Error(400, "Unable to base64 decode");
  return bytes;
}

template <typename T>
T Number(const Json& json) {
  const double number = json.number_value();
  if (!json.has_number_value()) throw http::Error(400, "An element of this tensor must be a number.");
  // Also rejects fractions for integer tensors. TensorFlow Serving converts some of these silently.
  if (std::abs(number) > std::numeric_limits<T>::max() || number < std::numeric_limits<T>::lowest() ||
      (std::is_integral_v<T> && number != std::floor(number))) {
    throw http::Error(400, "A number does not fit the dtype of the tensor. Received: " + std::to_string(number));
  }
  return static_cast<T>(number);
}

// Appends the elements of nested lists in order. Throws unless the lists have the shape `dims` from axis `depth` on.
inline void Flatten(const Json& json, const std::vector<int64_t>& dims, size_t depth,
                    std::vector<const Json*>* elements) {
  if (depth == dims.size()) {
    if (json.has_list_value()) throw http::Error(400, "All lists must be nested as deeply as the first.");
    elements->push_back(&json);
    return;
  }
  if (!json.has_list_value() || json.list_value().values_size() != dims[depth]) {
    throw http::Error(400, "Lists at the same depth must have the same length.");
  }
  for (const Json& value : json.list_value().values()) Flatten(value, dims, depth + 1, elements);
}

// Returns a tensor of rows, which must all have the shape of the first row. The graph checks the shape itself.
inline tensorflow::Tensor TensorFromRows(const std::vector<const Json*>& rows, tensorflow::DataType dtype) {
  if (rows.empty()) throw http::Error(400, "The request must have at least one row.");
  std::vector<int64_t> dims = {static_cast<int64_t>(rows.size())};
  for (const Json* first = rows[0]; first->has_list_value(); first = &first->list_value().values(0)) {
    dims.push_back(first->list_value().values_size());
    if (dims.back() == 0) break;
  }
  // Check before allocating: the size of the first row times the number of rows may exceed the memory.
  std::vector<const Json*> elements;
  for (const Json* row : rows) Flatten(*row, dims, 1, &elements);
  tensorflow::Tensor tensor(dtype, tensorflow::TensorShape(dims));
  const auto fill = [&](auto* next, auto element) {
    for (const Json* json : elements) *next++ = element(*json);
  };
  switch (dtype) {
    case tensorflow::DT_FLOAT: fill(tensor.flat<float>().data(), Number<float>); break;
    case tensorflow::DT_DOUBLE: fill(tensor.flat<double>().data(), Number<double>); break;
    case tensorflow::DT_INT32: fill(tensor.flat<int32_t>().data(), Number<int32_t>); break;
    case tensorflow::DT_INT64: fill(tensor.flat<int64_t>().data(), Number<int64_t>); break;
    case tensorflow::DT_UINT8: fill(tensor.flat<uint8_t>().data(), Number<uint8_t>); break;
    case tensorflow::DT_STRING: fill(tensor.flat<tensorflow::tstring>().data(), Bytes); break;
    default: throw http::Error(400, "JSON cannot represent tensors of " + tensorflow::DataTypeString(dtype));
  }
  return tensor;
}

template <typename T>
void AppendNumber(T number, std::string* json) {
  if (std::isnan(number)) {
    *json += "NaN";  // not valid JSON, but TensorFlow Serving writes these three values
  } else if (std::isinf(number)) {
    *json += number > 0 ? "Infinity" : "-Infinity";
  } else {
    char digits[32];
    json->append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
  }
}

// Appends a slice of `tensor` whose first axis is `dimension` and whose first element is `*next`, and advances `*next`.
inline void AppendSlice(const tensorflow::Tensor& tensor, int dimension, bool as_bytes, int64_t* next,
                        std::string* json) {
  if (dimension < tensor.dims()) {
    *json += '[';
    for (int64_t i = 0; i < tensor.dim_size(dimension); ++i) {
      if (i > 0) *json += ", ";
      AppendSlice(tensor, dimension + 1, as_bytes, next, json);
    }
    *json += ']';
    return;
  }
  const int64_t i = (*next)++;
  switch (tensor.dtype()) {
    case tensorflow::DT_FLOAT: return AppendNumber(tensor.flat<float>()(i), json);
    case tensorflow::DT_DOUBLE: return AppendNumber(tensor.flat<double>()(i), json);
    case tensorflow::DT_INT32: return AppendNumber(tensor.flat<int32_t>()(i), json);
    case tensorflow::DT_INT64: return AppendNumber(tensor.flat<int64_t>()(i), json);
    case tensorflow::DT_STRING: {
      const std::string text(tensor.flat<tensorflow::tstring>()(i));
      if (!as_bytes) return AppendQuoted(text, json);
      *json += "{\"b64\": ";
      AppendQuoted(absl::Base64Escape(text), json);
      *json += '}';
      return;
    }
    default:
      throw http::Error(400, "JSON cannot represent tensors of " + tensorflow::DataTypeString(tensor.dtype()));
  }
}
