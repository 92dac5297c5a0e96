#include "openai/response_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "openai/fields.h"
#include "openai/sse.h"

namespace moesaic::openai {
namespace {

constexpr const char *kFolder = "moesaic-responses", *kOption = "--stored-responses", *kPrefix = "resp_";
constexpr const char* kOutputs = "outputs";
constexpr size_t kMostId = 64, kMostWaiting = 64 << 20;

bool is_id(const std::string& name) {
  const auto is_letter = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '_'; };
  return name.starts_with(kPrefix) && name.size() <= kMostId && std::ranges::all_of(name, is_letter);
}

Hash128 checksum(const HashKey& key, const std::string& id, std::string_view text) {
  return SipHash(key).add(std::as_bytes(std::span(id))).add(std::as_bytes(std::span(text))).finish();
}

struct Member {
  const char* name;
  std::string StoredResponse::*value;
};
constexpr std::array<Member, 4> kMembers{{{"owner", &StoredResponse::owner},
                                          {"holder", &StoredResponse::holder},
                                          {"response", &StoredResponse::response},
                                          {"items", &StoredResponse::items}}};

std::string text_of(const StoredResponse& stored) {
  Json json;
  for (const Member& m : kMembers) json[m.name] = stored.*m.value;
  for (const StoredItem& item : stored.outputs)
    json[kOutputs].push_back(Json::array({item.id, item.begin, item.size}));
  return dump(json);
}

// False for those of another version.
bool read_outputs(const Json& outputs, StoredResponse& stored) {
  for (const Json& one : outputs) {
    if (!one.is_array() || one.size() != 3 || !one[0].is_string() || !one[1].is_number_unsigned() ||
        !one[2].is_number_unsigned())
      return false;
    const StoredItem item{one[0].get<std::string>(), one[1].get<size_t>(), one[2].get<size_t>()};
    if (item.begin > stored.items.size() || item.size > stored.items.size() - item.begin) return false;
    stored.outputs.push_back(item);
  }
  return true;
}

// Nothing for the text of another version.
std::optional<StoredResponse> stored_of(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  StoredResponse stored;
  for (const Member& m : kMembers) {
    const auto at = json.find(m.name);
    if (at == json.end() || !at->is_string()) return {};
    stored.*m.value = at->get<std::string>();
  }
  if (!read_outputs(text::member(json, kOutputs), stored)) return {};
  return stored;
}

}  // namespace

// An output's id is also in the store's index.
size_t StoredResponse::bytes() const {
  size_t bytes = owner.size() + holder.size() + response.size() + items.size();
  for (const StoredItem& item : outputs) bytes += 2 * (sizeof item + item.id.size());
  return bytes;
}

Result<std::unique_ptr<ResponseFolder>> ResponseFolder::open(const std::string& folder) {
  ASSIGN_OR_RETURN(PrivateFolder files, PrivateFolder::open(folder, kFolder, kOption));
  return std::unique_ptr<ResponseFolder>(new ResponseFolder(std::move(files)));
}

ResponseFolder::ResponseFolder(PrivateFolder folder)
    : folder_(std::move(folder)), thread_([this] { work(); }) {}

ResponseFolder::~ResponseFolder() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

Status ResponseFolder::read_all(size_t most_bytes, const Found& found) const {
  ASSIGN_OR_RETURN(const auto files, folder_.list(is_id, "stored responses"));
  size_t ignored = 0;
  std::string one;  // a file of them, and why
  for (const PrivateFolder::File& file : files) {
    Hash128 sum;
    std::string text;
    const char* fault = file.bytes < sizeof sum || file.bytes > most_bytes ? "it has a wrong size" : nullptr;
    if (fault == nullptr) {
      text.resize(file.bytes - sizeof sum);
      fault = folder_
                  .read(file.name, std::as_writable_bytes(std::span(&sum, 1)),
                        std::as_writable_bytes(std::span(text)))
                  .text;
    }
    if (fault == nullptr && sum != checksum(key(), file.name, text)) fault = "its checksum is wrong";
    std::optional<StoredResponse> stored;
    if (fault == nullptr) stored = stored_of(text);
    if (stored) {
      found(file.name, std::move(*stored));
    } else if (++ignored == 1) {
      one = fmt::format("{}: {}", file.name, fault != nullptr ? fault : "another version wrote it");
    }
  }
  // A lost key makes all files unreadable, at each start.
  if (ignored > 0)
    notice(fmt::format("{}/{}; it is ignored{}", folder_.path(), one,
                       ignored == 1 ? "" : fmt::format(", as are {} others", ignored - 1)));
  return {};
}

void ResponseFolder::write(const std::string& id, std::shared_ptr<const StoredResponse> stored) {
  const std::lock_guard lock(mutex_);
  const size_t bytes = stored->bytes();
  if (waiting_bytes_ + bytes > kMostWaiting) {
    lost("the disk is too slow");
    return;
  }
  waiting_bytes_ += bytes;
  changes_.push_back({id, std::move(stored)});
  changed_.notify_one();
}

void ResponseFolder::remove(const std::string& id) {
  const std::lock_guard lock(mutex_);
  changes_.push_back({id, nullptr});
  changed_.notify_one();
}

// The caller has locked.
void ResponseFolder::lost(const char* why) {
  if (!std::exchange(lost_one_, true))
    notice(fmt::format("{}: {}; responses that are made until it is mended are lost at the end",
                       folder_.path(), why));
}

void ResponseFolder::work() {
  for (;;) {
    Change change;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return ends_ || !changes_.empty(); });
      if (changes_.empty()) return;
      change = std::move(changes_.front());
      changes_.pop_front();
    }
    apply(change);
  }
}

void ResponseFolder::apply(const Change& change) {
  if (change.stored == nullptr) {
    folder_.remove(change.id);
    return;
  }
  const std::string text = text_of(*change.stored);
  const Hash128 sum = checksum(key(), change.id, text);
  const int why = folder_.write(change.id, std::as_bytes(std::span(&sum, 1)), std::as_bytes(std::span(text)));
  const std::lock_guard lock(mutex_);
  waiting_bytes_ -= change.stored->bytes();
  if (why == 0) {
    lost_one_ = false;
  } else {
    lost(std::strerror(why));
  }
}

}  // namespace moesaic::openai
