#include <boost/asio/redirect_error.hpp>

#include "server/connection.h"

namespace moesaic::server {

void TimedSocket::expires_after(std::chrono::steady_clock::duration time) {
  timed_out_ = false;
  timer_.expires_after(time);
  timer_.async_wait([self = shared_from_this(), serial = ++serial_](const boost::system::error_code& error) {
    if (error || serial != self->serial_) return;
    self->timed_out_ = true;
    boost::system::error_code ignored;
    self->socket_.cancel(ignored);
  });
}

void TimedSocket::expires_never() {
  ++serial_;
  timer_.cancel();
}

void TimedSocket::watch(std::function<void()> gone) {
  gone_ = std::move(gone);
  socket_.async_wait(
      tcp::socket::wait_read,
      [self = shared_from_this()](const boost::system::error_code& error) { self->looked(error); });
}

void TimedSocket::forget() {
  if (!gone_) return;
  gone_ = nullptr;
  boost::system::error_code ignored;
  socket_.cancel(ignored);
}

void TimedSocket::stop() {
  gone_ = nullptr;
  expires_never();
  boost::system::error_code ignored;
  socket_.close(ignored);
}

// Readable means closed, or the next request come early; then there is nothing more to learn.
void TimedSocket::looked(const boost::system::error_code& error) {
  if (error == asio::error::operation_aborted || !gone_) return;
  char byte = 0;
  boost::system::error_code result = error;
  if (!error) socket_.receive(asio::buffer(&byte, 1), tcp::socket::message_peek, result);
  if (result && result != asio::error::would_block) gone_();
}

}  // namespace moesaic::server
