#include <poll.h>

#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>

#include "server/connection.h"

namespace moesaic::server {

void TimedSocket::expires_after(std::chrono::steady_clock::duration time) {
  timed_out_ = false;
  timer_.expires_after(time);
  timer_.async_wait([self = shared_from_this(), serial = ++serial_](const boost::system::error_code& error) {
    if (!error) self->end_time(serial);
  });
}

void TimedSocket::end_time(uint64_t serial) {
  if (serial != serial_) return;
  timed_out_ = true;
  boost::system::error_code ignored;
  socket_.cancel(ignored);
}

std::function<void()> TimedSocket::over_now() {
  return [self = shared_from_this(), serial = serial_] {
    asio::post(self->socket_.get_executor(), [self, serial] { self->end_time(serial); });
  };
}

void TimedSocket::expires_never() {
  ++serial_;
  timer_.cancel();
}

void TimedSocket::watch(std::function<void()> gone) {
  gone_ = std::move(gone);
  socket_.async_wait(tcp::socket::wait_read,
                     [self = shared_from_this()](const boost::system::error_code& error) {
                       if (error != asio::error::operation_aborted) self->look();
                     });
}

void TimedSocket::forget() {
  if (!gone_) return;
  gone_ = nullptr;
  next_look_.cancel();
  boost::system::error_code ignored;
  socket_.cancel(ignored);
}

void TimedSocket::stop() {
  gone_ = nullptr;
  next_look_.cancel();
  expires_never();
  boost::system::error_code ignored;
  socket_.close(ignored);
}

// Readable means closed, or that the next request has come early. Behind its bytes poll() alone sees an end,
// now and then.
void TimedSocket::look() {
  if (!gone_) return;
  pollfd socket = {.fd = socket_.native_handle(), .events = POLLRDHUP, .revents = 0};
  if (poll(&socket, 1, 0) > 0) return std::exchange(gone_, nullptr)();
  next_look_.expires_after(std::chrono::seconds(1));
  next_look_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    if (!error) self->look();
  });
}

}  // namespace moesaic::server
