// A client for tests: bytes to a server on this machine, and what comes back.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

namespace moesaic::server {

class HttpClient {
 public:
  explicit HttpClient(uint16_t port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{.tv_sec = 20, .tv_usec = 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) std::abort();
  }
  HttpClient(HttpClient&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient() {
    if (socket_ >= 0) close(socket_);
  }

  // False: the server has closed the connection.
  bool write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  // All until the end, or until `last` has come.
  std::string read(std::string_view last = {}) {
    std::string answer;
    char part[4096];
    while (last.empty() || answer.find(last) == std::string::npos) {
      const ssize_t got = recv(socket_, part, sizeof part, 0);
      if (got <= 0) break;
      answer.append(part, static_cast<size_t>(got));
    }
    return answer;
  }

 private:
  int socket_;
};

// The statuses of all answers that stand in some bytes, each with a space behind it.
inline std::string statuses_of(std::string_view answers) {
  std::string statuses;
  constexpr std::string_view kLine = "HTTP/1.";
  for (size_t at = answers.find(kLine); at != std::string_view::npos; at = answers.find(kLine, at + 1)) {
    const std::string_view status = answers.substr(std::min(at + kLine.size() + 2, answers.size()), 4);
    if (status.size() == 4 && status[0] >= '1' && status[0] <= '5' && status[3] == ' ') statuses += status;
  }
  return statuses;
}

}  // namespace moesaic::server
