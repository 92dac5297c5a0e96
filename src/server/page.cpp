#include "server/page.h"

#include <algorithm>
#include <string>

#include "openai/api_error.h"
#include "server/handlers.h"
#include "server/page_files.h"

namespace moesaic::server {
namespace {

constexpr std::string_view kFolder = "/page/";

// The page may run its own scripts and reach this server, and nothing else, whatever a model writes into it.
// Text becomes HTML through DOMPurify alone (trusted-types).
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self'; connect-src "
    "'self'; "
    "require-trusted-types-for 'script'; trusted-types dompurify; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

const PageFile* find(std::string_view path) {
  const auto files = page_files();
  const auto at = std::find_if(files.begin(), files.end(), [&](const PageFile& f) { return f.path == path; });
  return at == files.end() ? nullptr : &*at;
}

// The file's path of /page/VERSION/path; empty: not one of this program's.
std::string_view path_in_page(std::string_view path) {
  path.remove_prefix(std::min(path.size(), path.find(kFolder)));
  path.remove_prefix(std::min(path.size(), kFolder.size()));
  if (!path.starts_with(page_version())) return {};
  path.remove_prefix(page_version().size());
  return path.starts_with('/') ? path.substr(1) : std::string_view();
}

HttpAnswer file_answer(const PageFile& file, const char* cache) {
  HttpAnswer answer{.body = std::string(file.bytes), .content_type = std::string(file.type)};
  answer.headers = {{"Cache-Control", cache},
                    {"X-Content-Type-Options", "nosniff"},
                    {"Referrer-Policy", "no-referrer"},
                    {"Cross-Origin-Resource-Policy", "same-origin"},
                    {"Content-Security-Policy", kPolicy}};
  if (file.compressed) answer.headers.emplace_back("Content-Encoding", "gzip");
  return answer;
}

}  // namespace

asio::awaitable<void> page(HttpExchange& exchange, App&) {
  HttpAnswer answer = file_answer(*find(""), "no-cache");
  co_await exchange.send(std::move(answer));
}

asio::awaitable<void> page_file(HttpExchange& exchange, App&) {
  const std::string_view path = path_in_page(exchange.request().path);
  const PageFile* file = path.empty() ? nullptr : find(path);
  if (file == nullptr) {
    const openai::Refusal missing =
        openai::not_found("the page has no such file; load it again", "not_found");
    co_await send_error(exchange, *missing);
    co_return;
  }
  HttpAnswer answer = file_answer(*file, "public, max-age=31536000, immutable");
  co_await exchange.send(std::move(answer));
}

}  // namespace moesaic::server
