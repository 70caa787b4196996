// Serves a SavedModel over TensorFlow Serving's REST protocol. The TensorFlow wheel is the only dependency.
//
// Tests serve exports with this server, so that they do not need TensorFlow Serving. rest_server.py builds and starts
// it. It serves POST .../<model>[/versions/<n>]:predict and :classify, GET .../<model>[/versions/<n>] and .../metadata.
#include <malloc.h>

#include <charconv>
#include <condition_variable>
#include <iostream>
#include <map>
#include <mutex>

#include "http.h"
#include "json_string.h"
#include "model.h"
#include "predict.h"

namespace {

// Limits the number of requests in progress, because each keeps its parsed JSON in memory.
class Semaphore {
 public:
  explicit Semaphore(int count) : count_(count) {}

  // Holds the semaphore until destruction.
  class Lock {
   public:
    explicit Lock(Semaphore* semaphore) : semaphore_(semaphore) {
      std::unique_lock<std::mutex> lock(semaphore_->mutex_);
      semaphore_->free_.wait(lock, [&] { return semaphore_->count_ > 0; });
      --semaphore_->count_;
    }
    ~Lock() {
      const std::lock_guard<std::mutex> lock(semaphore_->mutex_);
      ++semaphore_->count_;
      semaphore_->free_.notify_one();
    }
    Lock(const Lock&) = delete;

   private:
    Semaphore* const semaphore_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable free_;
  int count_;
};

std::string StatusJson(const Model& model) {
  return "{\"model_version_status\": [{\"version\": \"" + std::to_string(model.version) +
         "\", \"state\": \"AVAILABLE\", \"status\": {\"error_code\": \"OK\", \"error_message\": \"\"}}]}";
}

std::string MetadataJson(const Model& model) {
  google::protobuf::json::PrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_fields_with_no_presence = true;
  std::string signatures;
  for (const auto& [name, signature] : model.Signatures()) {
    std::string json;
    if (!google::protobuf::json::MessageToJsonString(signature, &json, options).ok()) continue;
    signatures += (signatures.empty() ? "" : ", ") + Quoted(name) + ": " + json;
  }
  return "{\"model_spec\": {\"name\": " + Quoted(model.name) + ", \"signature_name\": \"\", \"version\": \"" +
         std::to_string(model.version) + "\"}, \"metadata\": {\"signature_def\": {\"signature_def\": {" + signatures +
         "}}}}";
}

http::Response Handle(const Model& model, Semaphore* semaphore, const http::Request& request) {
  const std::string base = "/v1/models/" + model.name;
  const std::string versioned = base + "/versions/" + std::to_string(model.version);
  std::string action = request.path;
  for (const std::string& prefix : {versioned, base}) {
    const char next = request.path.size() > prefix.size() ? request.path[prefix.size()] : ':';
    if (request.path.compare(0, prefix.size(), prefix) == 0 && (next == ':' || next == '/')) {
      action = request.path.substr(prefix.size());
      break;
    }
  }
  const bool post = request.method == "POST", get = request.method == "GET";
  if (action == ":predict" || action == ":classify") {
    if (!post) throw http::Error(405, action + " needs a POST request.");
    const Semaphore::Lock semaphore_lock(semaphore);
    return {200, (action == ":predict" ? Predict : Classify)(model, request.body)};
  }
  if (action == "" || action == "/metadata") {
    if (!get) throw http::Error(405, "Status and metadata need a GET request.");
    return {200, action == "" ? StatusJson(model) : MetadataJson(model)};
  }
  throw http::Error(404, "The path is unknown. The model is at " + base + " and " + versioned + ".");
}

using Flags = std::map<std::string, std::string>;

Flags ParseFlags(int argc, char** argv) {
  Flags flags = {{"model_base_path", ""},
                 {"model_name", "model"},
                 {"rest_api_port", "8501"},
                 {"rest_api_num_threads", "32"},
                 {"max_request_megabytes", "64"},
                 {"request_seconds", "60"}};
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = std::min(argument.find('='), argument.size());
    const auto flag = argument.compare(0, 2, "--") == 0 ? flags.find(argument.substr(2, equals - 2)) : flags.end();
    if (flag == flags.end() || equals == argument.size()) throw std::runtime_error("unknown flag " + argument);
    flag->second = argument.substr(equals + 1);
  }
  return flags;
}

int Integer(const Flags& flags, const std::string& name, int lowest, int highest) {
  const std::string& text = flags.at(name);
  int number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || number < lowest || number > highest) {
    throw std::runtime_error("--" + name + " must be an integer from " + std::to_string(lowest) + " to " +
                             std::to_string(highest) + ". Received: --" + name + "=" + text);
  }
  return number;
}

}  // namespace

int main(int argc, char** argv) {
  mallopt(M_ARENA_MAX, 2);  // one arena per thread would keep the freed memory of large requests
  try {
    const Flags flags = ParseFlags(argc, argv);
    int port = Integer(flags, "rest_api_port", 0, 65535);
    const int threads = Integer(flags, "rest_api_num_threads", 1, 1024);
    http::Limits limits;
    limits.body_bytes = static_cast<size_t>(Integer(flags, "max_request_megabytes", 1, 2047)) << 20;
    limits.in_flight_bytes = 4 * limits.body_bytes;
    limits.request_time = std::chrono::seconds(Integer(flags, "request_seconds", 1, 3600));
    const Model model(flags.at("model_name"), flags.at("model_base_path"));
    Semaphore semaphore(std::max(2u, std::thread::hardware_concurrency()));
    const int listener = http::Listen(&port);
    std::cout << "version " << model.version << ", " << model.warm_up_requests << " warm-up requests, port " << port
              << std::endl;
    http::Serve(listener, threads, limits, [&](const auto& request) { return Handle(model, &semaphore, request); });
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 2;
  }
}
