// A small HTTP/1.1 server over POSIX sockets. Each thread of a fixed pool processes one request at a time. Idle
// connections use no thread.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "json_string.h"

namespace http {

struct Request {
  std::string method, path, body;
  bool keep_alive = true;
};

struct Response {
  int code = 200;
  std::string json;
};

// An error response with an HTTP status code.
class Error : public std::runtime_error {
 public:
  Error(int code, const std::string& message) : std::runtime_error(message), code(code) {}
  const int code;
};

struct Limits {
  size_t header_bytes = 16 << 10;
  size_t body_bytes = 64 << 20;
  size_t in_flight_bytes = 256 << 20;     // total of all bodies in memory
  size_t connections = 1024;
  std::chrono::seconds request_time{60};  // time limit for receiving a request, and for its response
  std::chrono::seconds idle_time{60};     // time limit between requests
};

// Number of body bytes that may still be allocated.
class Budget {
 public:
  explicit Budget(size_t bytes) : bytes_(bytes) {}

  // Reserves bytes until destruction.
  class Lease {
   public:
    Lease() = default;
    Lease(const Lease&) = delete;
    ~Lease() { Release(); }
    // Returns false if the budget has too few bytes.
    bool Take(Budget* budget, size_t bytes) {
      size_t available = budget->bytes_;
      do {
        if (available < bytes) return false;
      } while (!budget->bytes_.compare_exchange_weak(available, available - bytes));
      budget_ = budget, held_ = bytes;
      return true;
    }
    void Release() {
      if (budget_ != nullptr) budget_->bytes_ += held_;
      budget_ = nullptr;
    }

   private:
    Budget* budget_ = nullptr;
    size_t held_ = 0;
  };

 private:
  std::atomic<size_t> bytes_;
};

using Handler = std::function<Response(const Request&)>;
using Clock = std::chrono::steady_clock;

inline const char* Reason(int code) {
  switch (code) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 411: return "Length Required";
    case 413: return "Content Too Large";
    case 431: return "Request Header Fields Too Large";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    default: return "Internal Server Error";
  }
}

class Connection {
 public:
  Connection(int socket, const Limits& limits) : socket_(socket), limits_(limits) {
    const int on = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  ~Connection() { close(socket_); }
  Connection(const Connection&) = delete;

  int socket() const { return socket_; }
  // Returns true if bytes of the next request have already arrived.
  bool HasReceived() const { return !received_.empty(); }
  Clock::time_point idle_since() const { return idle_since_; }
  void SetIdle() { idle_since_ = Clock::now(); }

  // Reads the next request and reserves the bytes of its body. Returns false if the client disconnects without a
  // request. Throws Error for a malformed request.
  bool Read(Request* request, Budget* budget, Budget::Lease* lease) {
    deadline_ = Clock::now() + limits_.request_time;
    size_t end;
    while ((end = received_.find("\r\n\r\n")) == std::string::npos) {
      if (received_.size() > limits_.header_bytes) throw Error(431, "The headers are too large.");
      const bool nothing_received = received_.empty();
      if (!Receive()) {
        if (nothing_received) return false;
        throw Incomplete("The request ended before the end of its headers.");
      }
    }
    const Head head = ParseHead(received_.substr(0, end + 2), request);
    received_.erase(0, end + 4);
    if (head.length > limits_.body_bytes) {
      throw Error(413, "The body must have at most " + std::to_string(limits_.body_bytes) + " bytes.");
    }
    if (!lease->Take(budget, head.length)) {
      throw Error(503, "The bodies of concurrent requests are too large. Try again later.");
    }
    if (head.expects_continue && received_.empty()) Send("HTTP/1.1 100 Continue\r\n\r\n");
    received_.reserve(head.length);
    while (received_.size() < head.length) {
      if (!Receive()) throw Incomplete("The request ended before the end of its body.");
    }
    request->body = std::move(received_);
    received_ = request->body.substr(head.length);
    request->body.resize(head.length);
    return true;
  }

  // Returns false if the client has disconnected.
  bool Respond(const Response& response, bool keep_alive) {
    deadline_ = Clock::now() + limits_.request_time;
    return Send("HTTP/1.1 " + std::to_string(response.code) + " " + Reason(response.code) +
                "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(response.json.size()) +
                "\r\nConnection: " + (keep_alive ? "keep-alive" : "close") + "\r\n\r\n" + response.json);
  }

  // Reads the rest of the request. Otherwise, close() would reset the connection before the client reads the response.
  void Drain() {
    shutdown(socket_, SHUT_WR);
    deadline_ = Clock::now() + std::min(limits_.request_time, std::chrono::seconds(5));
    do received_.clear();
    while (Receive());
  }

 private:
  struct Head {
    size_t length = 0;
    bool expects_continue = false;
  };

  static std::string Lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text;
  }

  // Parses the request line and the headers, each with its line break.
  static Head ParseHead(const std::string& text, Request* request) {
    const size_t line = text.find("\r\n"), first = text.find(' '), last = text.rfind(' ', line);
    if (first >= last || last == std::string::npos || line - last != 9 || text.compare(last + 1, 7, "HTTP/1.") != 0) {
      throw Error(400, "The first line must be like `METHOD PATH HTTP/1.1`.");
    }
    *request = {text.substr(0, first), text.substr(first + 1, last - first - 1), "", text[line - 1] != '0'};
    Head head;
    bool has_length = false;
    for (size_t begin = line + 2, end; begin < text.size(); begin = end + 2) {
      end = text.find("\r\n", begin);
      const size_t colon = text.find(':', begin);
      if (colon >= end) throw Error(400, "A header must be like `name: value`.");
      const size_t value_begin = std::min(text.find_first_not_of(" \t", colon + 1), end);
      const size_t value_end = text.find_last_not_of(" \t", end - 1) + 1;
      const std::string name = Lower(text.substr(begin, colon - begin));
      if (name.empty() || name.find_first_of(" \t") != std::string::npos) {
        throw Error(400, "A header must start with its name, without a space before the colon.");
      }
      const std::string value = Lower(text.substr(value_begin, std::max(value_end, value_begin) - value_begin));
      if (name == "content-length") {
        const bool number = !value.empty() && value.find_first_not_of("0123456789") == std::string::npos;
        if (!number || value.size() > 15 || has_length) {
          throw Error(400, "Content-Length must be given once, as a number of bytes.");
        }
        head.length = std::stoull(value);
        has_length = true;
      } else if (name == "transfer-encoding") {
        throw Error(501, "A body must have a Content-Length and must not be chunked.");
      } else if (name == "connection") {
        request->keep_alive = value == "keep-alive" || (value != "close" && request->keep_alive);
      } else if (name == "expect") {
        head.expects_continue = value == "100-continue";
      }
    }
    if (request->method == "POST" && !has_length) throw Error(411, "A POST request must have a Content-Length.");
    if (request->method != "POST" && head.length > 0) throw Error(400, "Only POST requests may have a body.");
    return head;
  }

  // Returns the error for an incomplete request: a timeout, or `message` if the client has disconnected.
  Error Incomplete(const std::string& message) const {
    return timed_out_ ? Error(408, "The request did not arrive in time.") : Error(400, message);
  }

  // Waits until the socket is ready. Returns false on timeout.
  bool Wait(short events) {
    const auto remaining = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
    pollfd waiting{socket_, events, 0};
    timed_out_ = remaining <= 0 || poll(&waiting, 1, remaining) <= 0;
    return !timed_out_;
  }

  // Appends received bytes. Returns false on timeout or if the client has disconnected.
  bool Receive() {
    if (!Wait(POLLIN)) return false;
    char bytes[1 << 16];
    const ssize_t count = recv(socket_, bytes, sizeof bytes, 0);
    if (count > 0) received_.append(bytes, count);
    return count > 0;
  }

  bool Send(const std::string& text) {
    for (size_t sent = 0; sent < text.size();) {
      if (!Wait(POLLOUT)) return false;
      const ssize_t count = send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count <= 0) return false;
      sent += count;
    }
    return true;
  }

  const int socket_;
  const Limits& limits_;
  bool timed_out_ = false;
  std::string received_;  // bytes that are not parsed yet
  Clock::time_point deadline_, idle_since_ = Clock::now();
};

inline Response ErrorResponse(int code, std::string message) {
  // TensorFlow's messages may contain bytes of an image, which are not valid UTF-8.
  std::replace_if(message.begin(), message.end(), [](unsigned char c) { return c >= 0x80; }, '?');
  return {code, "{\"error\": " + Quoted(message) + "}"};
}

// Returns the response of `work`, or the error response for its exception.
inline Response CatchErrors(const std::function<Response()>& work) {
  try {
    return work();
  } catch (const Error& error) {
    return ErrorResponse(error.code, error.what());
  } catch (const std::bad_alloc&) {
    return ErrorResponse(503, "The server has too little memory for this request. Try again later.");
  } catch (const std::exception& error) {
    return ErrorResponse(500, error.what());
  }
}

// Serves the next request of a connection. Returns true if the connection stays open.
inline bool ServeRequest(Connection* connection, Budget* budget, const Handler& handler) {
  Request request;
  Budget::Lease lease;
  bool was_read = false, disconnected = false;
  const Response response = CatchErrors([&] {
    disconnected = !connection->Read(&request, budget, &lease);
    was_read = !disconnected;
    return was_read ? handler(request) : Response();
  });
  if (disconnected) return false;
  request.body = std::string();
  lease.Release();  // the client may read the response slowly
  // After a malformed request, the start of the next request is unknown.
  const bool keep_alive = was_read && request.keep_alive;
  if (!connection->Respond(response, keep_alive)) return false;
  if (!keep_alive) connection->Drain();
  return keep_alive;
}

// Returns a listening socket. If `*port` is 0, chooses a free port and stores it in `*port`.
inline int Listen(int* port) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  socklen_t size = sizeof address;
  address.sin_family = AF_INET;
  address.sin_port = htons(*port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);  // localhost only, because the server is for tests
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener, 128) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw std::runtime_error("port " + std::to_string(*port) + ": " + std::strerror(errno));
  }
  *port = ntohs(address.sin_port);
  return listener;
}

// Watches idle connections and queues those with a request.
class Dispatcher {
 public:
  Dispatcher(int listener, const Limits& limits) : listener_(listener), limits_(limits) {
    if (pipe(wake_) != 0) throw std::runtime_error(std::strerror(errno));
  }

  // Waits for and returns the next connection with a request.
  std::unique_ptr<Connection> Next() {
    std::unique_lock<std::mutex> lock(mutex_);
    ready_condition_.wait(lock, [&] { return !ready_.empty(); });
    std::unique_ptr<Connection> connection = std::move(ready_.front());
    ready_.pop_front();
    return connection;
  }

  // Takes a connection back after a request. A null pointer is a closed connection.
  void Return(std::unique_ptr<Connection> connection) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (connection == nullptr) {
      --count_;
    } else if (connection->HasReceived()) {
      ready_.push_back(std::move(connection));
      ready_condition_.notify_one();
    } else {
      connection->SetIdle();
      returned_.push_back(std::move(connection));
      (void)!write(wake_[1], "", 1);
    }
  }

  // Watches the listener and the idle connections until the process ends.
  void Run() {
    std::vector<std::unique_ptr<Connection>> idle;
    while (true) {
      std::vector<pollfd> sockets = {{listener_, POLLIN, 0}, {wake_[0], POLLIN, 0}};
      for (const auto& connection : idle) sockets.push_back({connection->socket(), POLLIN, 0});
      poll(sockets.data(), sockets.size(), 1000);
      const std::lock_guard<std::mutex> lock(mutex_);
      std::vector<std::unique_ptr<Connection>> still_idle;
      for (size_t i = 0; i < idle.size(); ++i) {
        if (sockets[i + 2].revents != 0) {
          ready_.push_back(std::move(idle[i]));
          ready_condition_.notify_one();
        } else if (Clock::now() - idle[i]->idle_since() < limits_.idle_time) {
          still_idle.push_back(std::move(idle[i]));
        } else {
          --count_;  // destroying `idle` closes the connection
        }
      }
      idle = std::move(still_idle);
      char bytes[64];
      if (sockets[1].revents != 0) (void)!read(wake_[0], bytes, sizeof bytes);
      std::move(returned_.begin(), returned_.end(), std::back_inserter(idle));
      returned_.clear();
      if (sockets[0].revents != 0) Accept(&idle);
    }
  }

 private:
  void Accept(std::vector<std::unique_ptr<Connection>>* idle) {
    const int socket = accept(listener_, nullptr, nullptr);
    if (socket < 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // the process may be out of file descriptors
    } else if (count_ >= limits_.connections) {
      close(socket);
    } else {
      ++count_;
      idle->push_back(std::make_unique<Connection>(socket, limits_));
    }
  }

  const int listener_;
  const Limits& limits_;
  int wake_[2];
  std::mutex mutex_;
  std::condition_variable ready_condition_;
  std::deque<std::unique_ptr<Connection>> ready_;
  std::vector<std::unique_ptr<Connection>> returned_;
  size_t count_ = 0;
};

// Serves until the process ends. Requests wait in a queue for a free thread.
inline void Serve(int listener, int threads, const Limits& limits, const Handler& handler) {
  Dispatcher dispatcher(listener, limits);
  Budget budget(limits.in_flight_bytes);
  std::vector<std::thread> workers;
  for (int i = 0; i < threads; ++i) {
    workers.emplace_back([&] {
      while (true) {
        std::unique_ptr<Connection> connection = dispatcher.Next();
        try {
          if (!ServeRequest(connection.get(), &budget, handler)) connection.reset();
        } catch (const std::bad_alloc&) {  // too little memory even for an error response
          connection.reset();
        }
        dispatcher.Return(std::move(connection));
      }
    });
  }
  dispatcher.Run();
}

}  // namespace http
