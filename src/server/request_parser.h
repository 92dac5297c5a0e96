// A request as it comes from a client: HTTP/1.1 by Boost.Beast's parser, and stricter where RFC 9112 leaves a
// choice that lets two programs see different requests in the same bytes.
#pragma once

#include <boost/beast/http/basic_parser.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "openai/api_error.h"
#include "server/body.h"
#include "server/options.h"

namespace moesaic::server {

namespace http = boost::beast::http;

// Looks for the end of a header in bytes that come bit by bit, and for what no header may have: control
// characters, line ends that are not CR LF, folded lines.
class HeadScan {
 public:
  enum class Found { kNothing, kEnd, kError };
  // bytes: all so far, of which the next call looks at the new ones only.
  Found scan(std::string_view bytes);
  // Bytes that have been looked at; with kEnd: the header's, empty line included.
  size_t size() const { return at_; }
  const char* error() const { return error_; }  // null: none

 private:
  Found fail(const char* error);

  size_t at_ = 0;
  const char* error_ = nullptr;
};

// The fields that anybody here reads.
struct RequestHead {
  std::string method, target, path;  // path: the target without its query, and without scheme and host
  std::string query;                 // behind the path's '?'
  unsigned version = 11;
  std::string host;  // with the port, where there is one; of the target, where the target has one
  std::string origin, authorization, api_key, id, expect, fetch_site, asked_headers, asked_network;
  std::string content_coding;  // the body's, where it has one
  bool anthropic = false;      // there is a field anthropic-version
};

// One request: first its whole header by take_head(), then the body by put(). Trailer fields are read and
// forgotten. What cannot be taken is in refusal(), and the connection is of no more use.
class RequestParser : public http::basic_parser<true> {
 public:
  // body: where it goes.
  RequestParser(const Limits& limits, Body& body);

  // With what a scan of these bytes found: an end, an error, or too many bytes. False: refusal() says why.
  bool take_head(const HeadScan& scan, std::string_view bytes);
  // Takes what it can of a body's next bytes, and says how many. 0: it needs more than these, or refuses
  // them.
  size_t take_body(std::string_view bytes);

  RequestHead& head() { return head_; }
  const RequestHead& head() const { return head_; }
  const openai::Refusal& refusal() const { return refusal_; }

 private:
  using error_code = boost::beast::error_code;
  using view = boost::beast::string_view;

  void on_request_impl(http::verb verb, view method, view target, int version, error_code& ec) override;
  void on_response_impl(int status, view reason, int version, error_code& ec) override;
  void on_field_impl(http::field field, view name, view value, error_code& ec) override;
  // Newer Boosts want it, 1.83 does not know it; it then calls the one above. Trailers are ignored.
  // NOLINTNEXTLINE(modernize-use-override)
  virtual void on_trailer_field_impl(http::field, view, view, error_code&) {}
  void on_header_impl(error_code& ec) override;
  void on_body_init_impl(const boost::optional<uint64_t>& length, error_code& ec) override;
  size_t on_body_impl(view bytes, error_code& ec) override;
  void on_chunk_header_impl(uint64_t size, view extensions, error_code& ec) override;
  size_t on_chunk_body_impl(uint64_t left, view bytes, error_code& ec) override;
  void on_finish_impl(error_code& ec) override;

  void read_field(http::field field, std::string_view name, std::string_view value);
  void read_once(std::string& target, std::string_view value, const char* name);
  openai::Refusal check_framing() const;
  size_t chunk_line(std::string_view bytes);
  void refuse(openai::ApiError error);
  void refuse(const error_code& error);

  const Limits& limits_;
  Body& body_;
  RequestHead head_;
  int hosts_ = 0, lengths_ = 0, codings_ = 0;
  std::string length_, coding_;
  bool head_done_ = false;
  size_t framing_ = 0, least_framing_ = 0;  // bytes of a chunked body beside its data; what they have to be
  uint64_t chunk_left_ = 0;                 // bytes of the current chunk's data
  openai::Refusal refusal_;
};

}  // namespace moesaic::server
