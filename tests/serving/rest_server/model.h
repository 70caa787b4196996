// The newest version of a SavedModel, loaded and warmed up as in TensorFlow Serving.
#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "http.h"
#include "tensorflow/cc/saved_model/loader.h"
#include "warm_up.h"

using Tensors = std::map<std::string, tensorflow::Tensor>;

class Model {
 public:
  Model(const std::string& name, const std::string& base_path) : name(name) {
    for (const auto& entry : std::filesystem::directory_iterator(base_path)) {
      const std::string number = entry.path().filename();
      const bool digits = number.find_first_not_of("0123456789") == std::string::npos;
      if (digits && number.size() < 19) version = std::max<int64_t>(version, std::stoll(number));
    }
    if (version == 0) {
      throw std::runtime_error("--model_base_path must contain a version to serve. Received: --model_base_path=" +
                               base_path);
    }
    const std::string folder = base_path + "/" + std::to_string(version);
    Check(tensorflow::LoadSavedModel({}, {}, folder, {"serve"}, &bundle_));
    for (const auto& request : ReadWarmUpRequests(folder + "/assets.extra/tf_serving_warmup_requests")) {
      Run(Signature(request.signature), request.inputs);
      ++warm_up_requests;
    }
  }

  const auto& Signatures() const { return bundle_.GetSignatures(); }

  const tensorflow::SignatureDef& Signature(const std::string& signature) const {
    const auto entry = Signatures().find(signature);
    // Signatures with two leading underscores are internal to TensorFlow and must not run.
    if (entry != Signatures().end() && signature.compare(0, 2, "__") != 0) return entry->second;
    throw http::Error(400, "Serving signature name: \"" + signature + "\" not found in signature def");
  }

  // Returns the outputs by name. As in TensorFlow Serving, neither this function nor the session compares the shapes of
  // inputs with the signature, so a graph without its own checks may abort the process.
  Tensors Run(const tensorflow::SignatureDef& signature, const Tensors& inputs) const {
    std::vector<std::pair<std::string, tensorflow::Tensor>> feeds;
    for (const auto& [input, info] : signature.inputs()) {
      const auto tensor = inputs.find(input);
      if (tensor == inputs.end()) throw http::Error(400, "The input \"" + input + "\" is missing.");
      feeds.emplace_back(info.name(), tensor->second);
    }
    std::vector<std::string> names, fetches;
    for (const auto& [output, info] : signature.outputs()) {
      names.push_back(output);
      fetches.push_back(info.name());
    }
    std::vector<tensorflow::Tensor> results;
    Check(bundle_.GetSession()->Run(feeds, fetches, {}, &results));
    Tensors outputs;
    for (size_t i = 0; i < names.size(); ++i) outputs.emplace(names[i], std::move(results[i]));
    return outputs;
  }

  const std::string name;
  int64_t version = 0;
  int warm_up_requests = 0;

 private:
  static void Check(const absl::Status& status) {
    if (status.ok()) return;
    throw http::Error(absl::IsInvalidArgument(status) ? 400 : 500, std::string(status.message()));
  }

  tensorflow::SavedModelBundleLite bundle_;
};
