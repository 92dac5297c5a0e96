#include "server/request_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <cctype>

#include "base/strings.h"
#include "server/origin.h"

namespace moesaic::server {
namespace {

using boost::beast::iequals;
using openai::ApiError;

constexpr size_t kChunkLine = 20;  // bytes: CR LF, 16 digits, CR LF

ApiError malformed(std::string_view what) {
  return {.http = 400, .message = fmt::format("not HTTP as it should be: {}", what)};
}

ApiError header_too_large(const Limits& limits) {
  return {
      .http = 431,
      .message = fmt::format("the header, or a body's trailer and chunk extensions, have more than {} bytes",
                             limits.header_bytes)};
}

bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// A request line's version, if it looks like one, is not this server's.
bool is_other_version(std::string_view head) {
  const std::string_view line = head.substr(0, head.find('\r'));
  const std::string_view version = line.substr(line.rfind(' ') + 1);
  return version.size() == 8 && version.starts_with("HTTP/") && is_digits(version.substr(5, 1)) &&
         version[6] == '.' && is_digits(version.substr(7)) && version != "HTTP/1.0" && version != "HTTP/1.1";
}

// The codings of a Transfer-Encoding field.
openai::Refusal check_codings(std::string_view field) {
  int codings = 0;
  for (size_t begin = 0; begin <= field.size(); ++codings) {
    const size_t end = std::min(field.find(',', begin), field.size());
    const std::string_view coding = trimmed(field.substr(begin, end - begin), " \t");
    if (coding.empty()) return malformed("an empty transfer coding");
    if (!iequals(coding, "chunked"))
      return ApiError{.http = 501, .message = "the only transfer coding that is understood is chunked"};
    begin = end + 1;
  }
  return codings == 1 ? openai::Refusal() : malformed("chunked is named twice");
}

// Leaves the path of a target in origin form, in absolute form, whose host counts then, or of OPTIONS *.
openai::Refusal read_target(RequestHead& head) {
  std::string_view target = head.target;
  const size_t scheme = target.find("://");
  if (scheme != std::string_view::npos && !target.starts_with('/')) {
    if (!iequals(target.substr(0, scheme), "http") && !iequals(target.substr(0, scheme), "https"))
      return malformed("the request's target is neither a path nor a URL");
    target.remove_prefix(scheme + 3);
    const size_t end = std::min(target.find_first_of("/?#"), target.size());
    head.host = target.substr(0, end);
    if (!valid_host(head.host)) return malformed("the host in the request's target");
    target.remove_prefix(end);
    if (target.empty() || target.front() == '?') {
      head.path = "/";
      return {};
    }
  }
  const bool asterisk = target == "*" && head.method == "OPTIONS";
  if (!asterisk && !target.starts_with('/'))
    return malformed("the request's target is neither a path nor a URL");
  const size_t mark = std::min(target.find('?'), target.size());
  head.path = target.substr(0, mark);
  if (mark < target.size()) head.query = target.substr(mark + 1);
  return {};
}

}  // namespace

HeadScan::Found HeadScan::fail(const char* error) {
  error_ = error;
  return Found::kError;
}

HeadScan::Found HeadScan::scan(std::string_view bytes) {
  for (; at_ < bytes.size(); ++at_) {
    const auto c = static_cast<unsigned char>(bytes[at_]);
    const char before = at_ > 0 ? bytes[at_ - 1] : '\n';
    if ((c == '\n') != (before == '\r')) return fail("a line's end is not CR LF");
    if (before == '\n' && (c == ' ' || c == '\t')) return fail("a line begins with a space");
    if (c == 0x7f || (c < 0x20 && c != '\t' && c != '\r' && c != '\n')) return fail("a control character");
    if (c == '\n' && at_ >= 3 && bytes[at_ - 2] == '\n') {
      ++at_;
      return Found::kEnd;
    }
  }
  return Found::kNothing;
}

// take_head() has refused a header before it could reach Beast's limit.
RequestParser::RequestParser(const Limits& limits, Body& body) : limits_(limits), body_(body) {
  header_limit(static_cast<uint32_t>(limits.header_bytes) + 4);
  body_limit(limits.body_bytes);
}

bool RequestParser::take_head(const HeadScan& scan, std::string_view bytes) {
  if (scan.size() > limits_.header_bytes) refuse(header_too_large(limits_));
  if (scan.error() != nullptr) refuse(malformed(scan.error()));
  if (refusal_) return false;
  error_code error;
  put({bytes.data(), scan.size()}, error);
  if (is_other_version(bytes)) {
    refuse(ApiError{.http = 505, .message = "this server speaks HTTP/1.1 and HTTP/1.0"});
  } else if (error) {
    refuse(error);
  } else if (!is_header_done()) {
    refuse(malformed("a header without an end"));
  }
  head_done_ = true;
  return !refusal_;
}

// The size of a chunk's first line, or of the last chunk with the trailer, in bytes that begin with it; 0: it
// is not there yet. Beast gets it whole: in parts it is lenient about line ends, and fails an assertion of
// its own where the last chunk ends byte by byte (1.81).
size_t RequestParser::chunk_line(std::string_view bytes) {
  const size_t begin = least_framing_ > 0 ? 2 : 0;  // the end of the data before
  if (bytes.size() <= begin) return 0;
  if (begin > 0 && !bytes.starts_with("\r\n")) refuse(malformed("a chunk is longer than its size"));
  std::string_view line = bytes.substr(begin);
  const size_t digits = std::min(line.find_first_not_of('0'), line.size());
  const bool last =
      digits > 0 && digits < line.size() && std::isxdigit(static_cast<unsigned char>(line[digits])) == 0;
  const bool ends = last || line.find('\n') != std::string_view::npos;
  if (!last && ends) line = line.substr(0, line.find('\n') + 1);
  HeadScan scan;
  const HeadScan::Found found = scan.scan(line);
  if (begin + scan.size() > limits_.header_bytes + kChunkLine) refuse(header_too_large(limits_));
  if (scan.error() != nullptr) refuse(malformed(scan.error()));
  const bool whole = last ? found == HeadScan::Found::kEnd : ends;
  return whole && !refusal_ ? begin + scan.size() : 0;
}

size_t RequestParser::take_body(std::string_view bytes) {
  if (chunked() && chunk_left_ == 0) bytes = bytes.substr(0, chunk_line(bytes));
  if (bytes.empty()) return 0;
  error_code error;
  const size_t before = body_.size();
  const size_t used = put({bytes.data(), bytes.size()}, error);
  framing_ += used - (body_.size() - before);
  if (error) refuse(error);
  if (chunked() && framing_ > least_framing_ + limits_.header_bytes) refuse(header_too_large(limits_));
  return used;
}

void RequestParser::refuse(ApiError error) {
  if (!refusal_) refusal_ = std::move(error);
}

void RequestParser::refuse(const error_code& error) {
  if (error == http::error::body_limit) {
    refuse(
        ApiError{.http = 413, .message = fmt::format("the body has more than {} bytes", limits_.body_bytes)});
  } else {
    refuse(malformed(error.message()));
  }
}

void RequestParser::on_request_impl(http::verb, view method, view target, int version, error_code&) {
  head_.method = method;
  head_.target = target;
  head_.version = version;
}

void RequestParser::on_response_impl(int, view, int, error_code&) {}

void RequestParser::on_field_impl(http::field field, view name, view value, error_code& ec) {
  if (head_done_) return;  // the field is a trailer's
  read_field(field, name, value);
  if (refusal_) ec = http::error::bad_field;
}

// Fields that may stand once only, since two programs could take different ones.
void RequestParser::read_once(std::string& target, std::string_view value, const char* name) {
  if (!target.empty()) refuse(malformed(fmt::format("two {} fields", name)));
  target = value;
}

void RequestParser::read_field(http::field field, std::string_view name, std::string_view value) {
  switch (field) {
    case http::field::host:
      head_.host = value;
      if (++hosts_ > 1) refuse(malformed("two Host fields"));
      break;
    case http::field::content_length:
      length_ = value;
      if (++lengths_ > 1) refuse(malformed("two Content-Length fields"));
      break;
    case http::field::transfer_encoding:
      coding_ = value;
      if (++codings_ > 1) refuse(malformed("two Transfer-Encoding fields"));
      break;
    case http::field::authorization:
      read_once(head_.authorization, value, "Authorization");
      break;
    case http::field::origin:
      read_once(head_.origin, value, "Origin");
      break;
    case http::field::content_encoding:
      if (!value.empty() && !iequals(value, "identity")) head_.content_coding = value;
      break;
    case http::field::expect:
      head_.expect = value;
      break;
    case http::field::access_control_request_headers:
      head_.asked_headers = value;
      break;
    default:
      if (iequals(name, "X-Api-Key")) read_once(head_.api_key, value, "X-Api-Key");
      if (iequals(name, "X-Request-Id")) head_.id = value;
      if (iequals(name, "Anthropic-Version")) head_.anthropic = true;
      if (iequals(name, "Sec-Fetch-Site")) head_.fetch_site = value;
      if (iequals(name, "Access-Control-Request-Private-Network")) head_.asked_network = value;
  }
}

// RFC 9112, sections 3.2 and 6.3.
openai::Refusal RequestParser::check_framing() const {
  if (hosts_ == 0 && head_.version >= 11) return malformed("the Host field is missing");
  if (hosts_ > 0 && !valid_host(head_.host)) return malformed("the Host field");
  if (lengths_ > 0 && !is_digits(length_)) return malformed("the Content-Length field");
  if (codings_ == 0) return {};
  if (head_.version < 11) return malformed("Transfer-Encoding in HTTP/1.0");
  if (lengths_ > 0) return malformed("Transfer-Encoding beside Content-Length");
  return check_codings(coding_);
}

void RequestParser::on_header_impl(error_code& ec) {
  openai::Refusal refusal = check_framing();
  if (!refusal) refusal = read_target(head_);
  if (!refusal) return;
  refuse(*std::move(refusal));
  ec = http::error::bad_field;
}

void RequestParser::on_body_init_impl(const boost::optional<uint64_t>&, error_code&) {}

size_t RequestParser::on_body_impl(view bytes, error_code& ec) {
  if (body_.append(bytes)) return bytes.size();
  refuse(bodies_full());
  ec = http::error::buffer_overflow;
  return 0;
}

// The shortest form of a chunk: its size, its data, and a CR LF behind each.
void RequestParser::on_chunk_header_impl(uint64_t size, view, error_code&) {
  chunk_left_ = size;
  least_framing_ += std::max<size_t>(1, (std::bit_width(size) + 3) / 4) + 4;
}

size_t RequestParser::on_chunk_body_impl(uint64_t, view bytes, error_code& ec) {
  chunk_left_ -= bytes.size();
  return on_body_impl(bytes, ec);
}

void RequestParser::on_finish_impl(error_code&) {}

}  // namespace moesaic::server
