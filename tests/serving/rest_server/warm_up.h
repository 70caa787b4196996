// Warm-up requests of an export. The server runs them before it accepts connections.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "google/protobuf/io/coded_stream.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/lib/io/record_reader.h"
#include "tensorflow/core/platform/env.h"

struct WarmUpRequest {
  std::string signature;
  std::map<std::string, tensorflow::Tensor> inputs;
};

// Returns the length-delimited fields of a serialized message by number. TensorFlow's libraries do not have the message
// types of TensorFlow Serving, so the few fields are parsed by hand.
inline std::multimap<int, std::string> Fields(const std::string& message) {
  std::multimap<int, std::string> fields;
  google::protobuf::io::CodedInputStream input(reinterpret_cast<const uint8_t*>(message.data()), message.size());
  bool valid = true;
  while (const uint32_t tag = valid ? input.ReadTag() : 0) {
    uint64_t number;
    uint32_t size;
    std::string bytes;
    switch (tag & 7) {
      case 0: valid = input.ReadVarint64(&number); break;
      case 1: valid = input.Skip(8); break;
      case 2:
        valid = input.ReadVarint32(&size) && input.ReadString(&bytes, size);
        fields.emplace(tag >> 3, std::move(bytes));
        break;
      case 5: valid = input.Skip(4); break;
      default: valid = false;
    }
  }
  if (!valid) throw std::runtime_error("a record of the warm-up file is malformed");
  return fields;
}

// Returns the field with a number, or an empty string if the message does not have it.
inline std::string Field(const std::string& message, int number) {
  const auto fields = Fields(message);
  const auto field = fields.find(number);
  return field == fields.end() ? "" : field->second;
}

// Parses the request (field 1) in the predict_log (field 6) of a PredictionLog.
inline WarmUpRequest ParseWarmUpRequest(const std::string& log) {
  const std::string request = Field(Field(log, 6), 1);
  if (request.empty()) throw std::runtime_error("a record of the warm-up file is not a Predict request");
  WarmUpRequest warm_up{Field(Field(request, 1), 3), {}};  // model_spec.signature_name
  if (warm_up.signature.empty()) warm_up.signature = "serving_default";
  const auto fields = Fields(request);
  for (auto [input, end] = fields.equal_range(2); input != end; ++input) {  // map entries: key (1), value (2)
    tensorflow::TensorProto proto;
    tensorflow::Tensor tensor;
    if (!proto.ParseFromString(Field(input->second, 2)) || !tensor.FromProto(proto)) {
      throw std::runtime_error("a tensor of the warm-up file is malformed");
    }
    warm_up.inputs.emplace(Field(input->second, 1), tensor);
  }
  return warm_up;
}

inline std::vector<WarmUpRequest> ReadWarmUpRequests(const std::string& path) {
  std::vector<WarmUpRequest> requests;
  if (!std::filesystem::exists(path)) return requests;
  std::unique_ptr<tensorflow::RandomAccessFile> file;
  absl::Status status = tensorflow::Env::Default()->NewRandomAccessFile(path, &file);
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
  tensorflow::io::SequentialRecordReader reader(file.get());
  tensorflow::tstring record;
  while ((status = reader.ReadRecord(&record)).ok()) requests.push_back(ParseWarmUpRequest(std::string(record)));
  // OutOfRange is the end of the file.
  if (!absl::IsOutOfRange(status)) throw std::runtime_error(std::string(status.message()));
  return requests;
}
