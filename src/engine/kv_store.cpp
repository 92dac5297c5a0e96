#include "engine/kv_store.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <charconv>
#include <new>
#include <system_error>

#include "base/error.h"
#include "base/helper_threads.h"
#include "base/seconds.h"

namespace moesaic {
namespace {

constexpr auto kPatience = std::chrono::seconds(1);      // with a part that does not come
constexpr auto kGrace = std::chrono::milliseconds(250);  // before rates are compared
constexpr auto kEngineWait = std::chrono::milliseconds(1);

uint64_t bytes_of_gib(double gib) { return static_cast<uint64_t>(gib * (1 << 30)); }

// Names everything that K and V of a token depend on besides the tokens.
std::string model_of(const Backend& backend, const ModelConfig& config, const KvLayout& layout,
                     uint64_t fingerprint) {
  std::string kinds;
  for (const bool sliding : config.sliding) kinds += sliding ? 's' : 'f';
  return fmt::format("1 {:016x} {} {} {} {}", fingerprint, backend.kv_page_format(), backend.kv_page_bytes(),
                     layout.page_tokens, kinds);
}

}  // namespace

// ---- options ----

Result<KvStoreOptions> kv_disk_option(const std::string& disk) {
  KvStoreOptions options{.folder = disk};
  const size_t colon = disk.rfind(':');
  if (colon == std::string::npos) return options;
  double gib = 0;
  const char *size = disk.data() + colon + 1, *end = disk.data() + disk.size();
  if (std::find(size, end, '/') != end) return options;  // the colon is part of a folder's name
  const bool number = std::from_chars(size, end, gib).ptr == end && size != end;
  if (!number || !(gib > 0 && gib <= kMostKvGib) || colon == 0)
    return invalid(
        "'{}' is not DIR or DIR:GiB, more than 0 and at most {} GiB; a DIR with a colon needs a slash at its "
        "end",
        disk, kMostKvGib);
  options.folder = disk.substr(0, colon), options.disk_bytes = std::max(uint64_t{1}, bytes_of_gib(gib));
  return options;
}

Result<KvStoreOptions> kv_store_options(double host_gib, const std::string& disk) {
  if (!(host_gib >= 0 && host_gib <= kMostKvGib))
    return invalid("--kv-host: {} GiB; expected 0 to {}", host_gib, kMostKvGib);
  Result<KvStoreOptions> options = kv_disk_option(disk);
  if (!options.ok()) return invalid("--kv-disk: {}", options.status().message());
  options->host_bytes = bytes_of_gib(host_gib);
  return options;
}

Status check_kv_store(const KvStoreOptions& options, bool prefix_cache) {
  if (prefix_cache || !options.any()) return {};
  return error(StatusCode::kUsage,
               "--kv-host and --kv-disk keep what the prefix cache has, and it is off (--no-prefix-cache)");
}

// ---- beginning and end ----

KvStore::KvStore(const ModelConfig& config, const Backend& backend, const KvLayout& layout)
    : page_bytes_(backend.kv_page_bytes()),
      most_offers_(2 * static_cast<size_t>(layout.full_pages + layout.window_pages)) {
  for (int layer = 0; layer < config.layers; ++layer)
    layers_[config.sliding[static_cast<size_t>(layer)] ? 1 : 0].push_back(layer);
  generations_[0].resize(static_cast<size_t>(layout.full_pages));
  generations_[1].resize(static_cast<size_t>(layout.window_pages));
}

Result<KvTiers> KvTiers::open(const KvStoreOptions& options) {
  KvTiers tiers{.options = options};
  if (options.host_bytes > 0) tiers.host = std::make_unique<HostTier>(options.host_bytes);
  if (options.folder.empty()) return tiers;
  ASSIGN_OR_RETURN(auto disk, DiskTier::open(options.folder, options.disk_bytes));
  tiers.key = disk->key();
  tiers.disk = std::move(disk);
  return tiers;
}

Result<std::unique_ptr<KvStore>> KvStore::open(KvTiers tiers, Backend& backend, const ModelConfig& config,
                                               const KvLayout& layout, uint64_t fingerprint) {
  if (backend.kv_page_format().empty())
    return error(StatusCode::kUnsupported, "{}: its KV cache cannot be kept (--kv-host, --kv-disk)",
                 backend.caps().name);
  std::unique_ptr<KvStore> store(new KvStore(config, backend, layout));
  // A host's KV cache was allocated, and takes its memory only when it is first written to.
  const double promised = backend.device().backend == "cpu" ? kv_bytes(layout, config, backend) : 0;
  RETURN_IF_ERROR(store->check_room(tiers.options, available_host_memory() - promised));
  store->least_patience_ = tiers.options.least_patience;
  store->names_ = KvNames(tiers.key, model_of(backend, config, layout, fingerprint));
  const auto add = [&](std::unique_ptr<KvTier> tier) {
    if (tier == nullptr) return;
    store->writers_.push_back(std::make_unique<Writer>());
    store->writers_.back()->tier = std::move(tier);
  };
  store->host_ = tiers.host.get();
  add(std::move(tiers.host));
  add(std::move(tiers.disk));
  RETURN_IF_ERROR(store->start(backend, tiers.options.readers));
  for (const auto& writer : store->writers_) writer->tier->trim();
  return store;
}

// A store that could not keep a conversation's end would keep nothing of use.
Status KvStore::check_room(const KvStoreOptions& options, double free) const {
  const uint64_t block = bytes_of(KvKind::kFull) + bytes_of(KvKind::kWindow);
  const bool on_disk = !options.folder.empty() && options.disk_bytes > 0;
  const auto check = [&](const char* option, uint64_t bytes) -> Status {
    if (bytes >= block) return {};
    return invalid("{}: {:.6f} GiB are too few: 32 tokens of this model take {} bytes", option,
                   static_cast<double>(bytes) / (1 << 30), block);
  };
  if (options.host_bytes > 0) RETURN_IF_ERROR(check("--kv-host", options.host_bytes));
  if (on_disk) RETURN_IF_ERROR(check("--kv-disk", options.disk_bytes));
  if (static_cast<double>(options.host_bytes) <= free) return {};
  return error(StatusCode::kOutOfMemory, "--kv-host: {:.1f} GiB are more than the {:.1f} GiB that are free",
               static_cast<double>(options.host_bytes) / (1 << 30), std::max(0.0, free) / (1 << 30));
}

Status KvStore::start(Backend& backend, int readers) try {
  if (readers == 0) readers = helper_threads();
  bool copies = true;
  for (int i = 0; i < readers; ++i) {
    readers_.push_back(std::make_unique<Reader>());
    readers_.back()->copier = backend.kv_copier();
    copies = copies && readers_.back()->copier != nullptr;
  }
  for (const auto& writer : writers_) {
    writer->copier = backend.kv_copier();
    copies = copies && writer->copier != nullptr;
  }
  if (!copies)
    return error(StatusCode::kUnsupported, "{}: its KV cache cannot be copied beside its steps",
                 backend.caps().name);
  for (const auto& reader : readers_) reader->thread = std::thread([this, r = reader.get()] { read(*r); });
  for (const auto& writer : writers_) writer->thread = std::thread([this, w = writer.get()] { write(*w); });
  return {};
} catch (const std::system_error& e) {
  return error(StatusCode::kOutOfMemory, "cannot start a thread: {}", e.what());
}

KvStore::~KvStore() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    close_at_ = Clock::now() + kLastWords;
    changed_.notify_all();
  }
  for (const auto& reader : readers_)
    if (reader->thread.joinable()) reader->thread.join();
  for (const auto& writer : writers_)
    if (writer->thread.joinable()) writer->thread.join();
}

bool KvStore::has(const KvPartId& id) const {
  return std::ranges::any_of(writers_, [&](const auto& writer) { return writer->tier->has(id); });
}

KvStoreStats KvStore::stats() const {
  KvStoreStats stats;
  const std::lock_guard lock(mutex_);
  for (const auto& writer : writers_) {
    KvTierStats& of = writer->tier.get() == host_ ? stats.host : stats.disk;
    of = writer->tier->stats();
    of.dropped = writer->dropped, of.read_bytes = writer->read_bytes;
  }
  return stats;
}

// ---- what is kept ----

bool KvStore::queue(Writer& writer, const Offer& offer) const try {
  if (writer.offers.size() >= most_offers_) return false;
  writer.offers.push_back(offer);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

// A writer that has offers already needs no waking.
void KvStore::offer(const KvPlace& place) {
  const std::lock_guard lock(mutex_);
  const Offer offer{place, generation_of(place.part.id.kind, place.page)};
  for (const auto& writer : writers_) {
    if (!queue(*writer, offer)) {
      ++writer->dropped;
      continue;
    }
    if (writer->offers.size() == 1) changed_.notify_all();
  }
}

void KvStore::forget(KvKind kind, int32_t page) {
  std::unique_lock lock(mutex_);
  ++generation_of(kind, page);
  changed_.wait(lock, [&] {
    return std::ranges::none_of(writers_, [&](const auto& w) { return w->copying == std::pair(kind, page); });
  });
}

void KvStore::forget_all() {
  std::unique_lock lock(mutex_);
  for (auto& of_kind : generations_)
    for (uint32_t& generation : of_kind) ++generation;
  for (const auto& writer : writers_) writer->offers.clear();
  changed_.wait(lock, [&] {
    return std::ranges::none_of(writers_, [](const auto& w) { return w->copying.has_value(); });
  });
}

void KvStore::settle() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return std::ranges::all_of(writers_, [](const auto& w) { return w->offers.empty() && !w->busy; });
  });
}

void KvStore::write(Writer& w) {
  // Beyond `ulimit -f` a write is to fail and not to end the process.
  sigset_t too_large;
  sigemptyset(&too_large);
  sigaddset(&too_large, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &too_large, nullptr);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closing_ || !w.offers.empty(); });
    if (w.offers.empty() || (closing_ && Clock::now() >= close_at_)) return;
    const Offer offer = w.offers.front();
    w.offers.pop_front();
    w.busy = true;
    lock.unlock();
    const bool kept = keep(w, offer);
    lock.lock();
    w.busy = false;
    w.dropped += kept ? 0 : 1;
    changed_.notify_all();
  }
}

bool KvStore::keep(Writer& w, const Offer& offer) try {
  const KvPart& part = offer.place.part;
  if (w.tier->has(part.id)) {
    w.tier->touch(part);
    return true;
  }
  KvBytes bytes(bytes_of(part.id.kind));
  if (copy(w, offer, bytes)) return w.tier->put(part, bytes);
  if (host_ == nullptr || w.tier.get() == host_) return false;
  const auto in_host_memory = host_->get(part, bytes.size());
  return in_host_memory != nullptr && w.tier->put(part, *in_host_memory);
} catch (const std::bad_alloc&) {
  return false;
}

// False if the page has other contents by now.
bool KvStore::copy(Writer& w, const Offer& offer, KvBytes& bytes) {
  const KvKind kind = offer.place.part.id.kind;
  {
    const std::lock_guard lock(mutex_);
    if (generation_of(kind, offer.place.page) != offer.generation) return false;
    w.copying = {kind, offer.place.page};
  }
  const Status status = w.copier->read(layers_of(kind), offer.place.page, bytes);
  const std::lock_guard lock(mutex_);
  w.copying.reset();
  changed_.notify_all();
  return status.ok();
}

// ---- what comes back ----

// Returns when the oldest read that is under way began; nothing: none is.
std::optional<KvStore::Clock::time_point> KvStore::longest_read() const {
  std::optional<Clock::time_point> since;
  for (const auto& reader : readers_)
    if (reader->reading && (!since || *reader->reading < *since)) since = reader->reading;
  return since;
}

bool KvStore::answers() const {
  const std::lock_guard lock(mutex_);
  const auto since = longest_read();
  return !since || Clock::now() - *since < kPatience;
}

void KvStore::begin(const std::shared_ptr<KvFetch>& fetch) {
  const std::lock_guard lock(mutex_);
  if (fetch->state_ != KvFetch::State::kPlanned) return;
  fetch->state_ = KvFetch::State::kBegun;
  fetch->begun_ = Clock::now();
  fetches_.push_back(fetch);
  changed_.notify_all();
}

// Counts the parts that are read until the fetch's last one is here.
size_t KvStore::parts_until(const KvFetch& fetch) const {
  size_t parts = 0;
  for (const auto& f : fetches_) {
    parts += f->places_.size() - f->arrived_;
    if (f.get() == &fetch) break;
  }
  return parts;
}

KvFetch::State KvStore::state(KvFetch& fetch, double compute_seconds) const {
  const std::lock_guard lock(mutex_);
  if (fetch.state_ != KvFetch::State::kBegun) return fetch.state_;
  const auto now = Clock::now();
  const auto at_most = [&](Clock::duration time) {
    const auto compute =
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(compute_seconds));
    return compute_seconds > 0 ? std::min(time, std::max<Clock::duration>(least_patience_, compute)) : time;
  };
  const auto since = longest_read();
  if (since && now - *since > at_most(kPatience)) return KvFetch::State::kFailed;
  if (now - fetch.begun_ < at_most(kGrace) || compute_seconds <= 0) return fetch.state_;
  const double left = static_cast<double>(parts_until(fetch)) * seconds_per_part_;
  return left > compute_seconds ? KvFetch::State::kFailed : fetch.state_;
}

void KvStore::cancel(KvFetch& fetch) {
  std::unique_lock lock(mutex_);
  end(fetch, false);
  changed_.wait(lock, [&] {
    return std::ranges::none_of(readers_, [&](const auto& reader) { return reader->writing == &fetch; });
  });
}

void KvStore::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kEngineWait);
}

std::shared_ptr<const KvBytes> KvStore::find(const KvPart& part) try {
  for (const auto& writer : writers_) {
    auto bytes = writer->tier->get(part, bytes_of(part.id.kind));
    if (bytes == nullptr) continue;
    const std::lock_guard lock(mutex_);
    writer->read_bytes += bytes->size();
    return bytes;
  }
  return nullptr;
} catch (const std::bad_alloc&) {
  return nullptr;
}

// Returns the first fetch with parts that no reader has begun; null: there is none.
std::shared_ptr<KvFetch> KvStore::next_fetch() const {
  const auto has_parts = [](const auto& fetch) { return fetch->taken_ < fetch->places_.size(); };
  const auto fetch = std::ranges::find_if(fetches_, has_parts);
  return fetch == fetches_.end() ? nullptr : *fetch;
}

void KvStore::read(Reader& reader) {
  std::unique_lock lock(mutex_);
  while (true) {
    std::shared_ptr<KvFetch> fetch;
    changed_.wait(lock, [&] { return closing_ || (fetch = next_fetch()) != nullptr; });
    if (closing_) return;
    reader.reading = Clock::now();
    read_part(reader, *fetch, lock);
    reader.reading.reset();
    changed_.notify_all();
  }
}

// The lock is given up while bytes are read and copied. Where a part is damaged, the others are read all the
// same: those that are damaged, too, are gone before the prompt is computed, and all of them are kept anew.
void KvStore::read_part(Reader& reader, KvFetch& fetch, std::unique_lock<std::mutex>& lock) {
  const KvPlace& place = fetch.places_[fetch.taken_++];
  lock.unlock();
  const auto bytes = find(place.part);
  lock.lock();
  if (fetch.state_ != KvFetch::State::kBegun || closing_) return;
  fetch.whole_ = fetch.whole_ && bytes != nullptr;
  if (fetch.whole_ && !write_page(reader, fetch, place, *bytes, lock)) return;
  constexpr double kNew = 0.2;
  const double seconds = seconds_since(*reader.reading) / static_cast<double>(readers_.size());
  seconds_per_part_ += kNew * (seconds - seconds_per_part_);
  if (++fetch.arrived_ == fetch.places_.size()) end(fetch, fetch.whole_);
}

void KvStore::end(KvFetch& fetch, bool arrived) {
  fetch.state_ = arrived ? KvFetch::State::kArrived : KvFetch::State::kFailed;
  std::erase_if(fetches_, [&](const auto& f) { return f.get() == &fetch; });
}

// False if the fetch has ended by it, or meanwhile.
bool KvStore::write_page(Reader& reader, KvFetch& fetch, const KvPlace& place, const KvBytes& bytes,
                         std::unique_lock<std::mutex>& lock) {
  reader.writing = &fetch;
  lock.unlock();
  const bool written = reader.copier->write(layers_of(place.part.id.kind), place.page, bytes).ok();
  lock.lock();
  reader.writing = nullptr;
  changed_.notify_all();
  if (fetch.state_ != KvFetch::State::kBegun) return false;
  if (!written) end(fetch, false);
  return written;
}

}  // namespace moesaic
