#include "engine/kv_store.h"

#include <algorithm>
#include <new>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "engine/disk_tier.h"

namespace moesaic {
namespace {

constexpr auto kPatience = std::chrono::seconds(1);      // with a part that does not come
constexpr auto kGrace = std::chrono::milliseconds(250);  // before rates are compared
constexpr auto kEngineWait = std::chrono::milliseconds(1);

// All that K and V of a token depend on beside the tokens.
std::string model_of(const Backend& backend, const ModelConfig& config, const KvLayout& layout,
                     uint64_t fingerprint) {
  std::string kinds;
  for (const bool sliding : config.sliding) kinds += sliding ? 's' : 'f';
  return fmt::format("1 {:016x} {} {} {} {}", fingerprint, backend.kv_page_format(), backend.kv_page_bytes(),
                     layout.page_tokens, kinds);
}

double seconds_of(KvFetch::Clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

// ---- beginning and end ----

KvStore::KvStore(const ModelConfig& config, const Backend& backend, const KvLayout& layout)
    : page_bytes_(backend.kv_page_bytes()),
      most_offers_(2 * static_cast<size_t>(layout.full_pages + layout.window_pages)) {
  for (int layer = 0; layer < config.layers; ++layer)
    layers_[config.sliding[static_cast<size_t>(layer)] ? 1 : 0].push_back(layer);
  generations_[0].resize(static_cast<size_t>(layout.full_pages));
  generations_[1].resize(static_cast<size_t>(layout.window_pages));
}

Result<std::unique_ptr<KvStore>> KvStore::open(const KvStoreOptions& options, Backend& backend,
                                               const ModelConfig& config, const KvLayout& layout,
                                               uint64_t fingerprint) {
  if (backend.kv_page_format().empty())
    return error(StatusCode::kUnsupported, "{}: its KV cache cannot be kept (--kv-host, --kv-disk)",
                 backend.caps().name);
  std::unique_ptr<KvStore> store(new KvStore(config, backend, layout));
  HashKey key = random_hash_key();
  const auto add = [&](std::unique_ptr<KvTier> tier) {
    store->writers_.push_back(std::make_unique<Writer>());
    store->writers_.back()->tier = std::move(tier);
  };
  if (options.host_bytes > 0) add(std::make_unique<HostTier>(options.host_bytes));
  if (!options.folder.empty()) {
    ASSIGN_OR_RETURN(auto disk, DiskTier::open(options.folder, options.disk_bytes));
    key = disk->key();
    add(std::move(disk));
  }
  store->names_ = KvNames(key, model_of(backend, config, layout, fingerprint));
  RETURN_IF_ERROR(store->start(backend));
  return store;
}

Status KvStore::start(Backend& backend) try {
  read_copier_ = backend.kv_copier();
  bool copies = read_copier_ != nullptr;
  for (const auto& writer : writers_) {
    writer->copier = backend.kv_copier();
    copies = copies && writer->copier != nullptr;
  }
  if (!copies)
    return error(StatusCode::kUnsupported, "{}: its KV cache cannot be copied beside its steps",
                 backend.caps().name);
  reader_ = std::thread([this] { read(); });
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
  if (reader_.joinable()) reader_.join();
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
    KvTierStats& of = dynamic_cast<const HostTier*>(writer->tier.get()) != nullptr ? stats.host : stats.disk;
    of = writer->tier->stats();
    of.dropped = writer->dropped;
  }
  return stats;
}

// ---- what is kept ----

void KvStore::offer(const KvPlace& place) {
  const std::lock_guard lock(mutex_);
  const Offer offer{place, generation_of(place.part.id.kind, place.page)};
  for (const auto& writer : writers_) {
    if (writer->offers.size() < most_offers_) {
      writer->offers.push_back(offer);
    } else {
      ++writer->dropped;
    }
  }
  changed_.notify_all();
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
  if (writers_.front().get() == &w) return false;
  const auto in_host_memory = writers_.front()->tier->get(part, bytes.size());
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

bool KvStore::answers() const {
  const std::lock_guard lock(mutex_);
  return !reading_ || Clock::now() - *reading_ < kPatience;
}

void KvStore::begin(const std::shared_ptr<KvFetch>& fetch) {
  const std::lock_guard lock(mutex_);
  if (fetch->state_ != KvFetch::State::kPlanned) return;
  fetch->state_ = KvFetch::State::kBegun;
  fetch->begun_ = Clock::now();
  fetches_.push_back(fetch);
  changed_.notify_all();
}

// Those that are read before the fetch's last part, this one included.
size_t KvStore::parts_until(const KvFetch& fetch) const {
  size_t parts = 0;
  const auto add = [&](const KvFetch& f) { parts += f.places_.size() - f.arrived_; };
  if (reading_fetch_ != nullptr) add(*reading_fetch_);
  if (reading_fetch_ == &fetch) return parts;
  for (const auto& f : fetches_) {
    add(*f);
    if (f.get() == &fetch) break;
  }
  return parts;
}

KvFetch::State KvStore::state(KvFetch& fetch, double compute_seconds) const {
  const std::lock_guard lock(mutex_);
  if (fetch.state_ != KvFetch::State::kBegun) return fetch.state_;
  const auto now = Clock::now();
  if (reading_ && now - *reading_ > kPatience) return KvFetch::State::kFailed;
  if (now - fetch.begun_ < kGrace || compute_seconds <= 0) return fetch.state_;
  const double left = static_cast<double>(parts_until(fetch)) * seconds_per_part_;
  return left > compute_seconds ? KvFetch::State::kFailed : fetch.state_;
}

void KvStore::cancel(KvFetch& fetch) {
  std::unique_lock lock(mutex_);
  fetch.state_ = KvFetch::State::kFailed;
  std::erase_if(fetches_, [&](const auto& f) { return f.get() == &fetch; });
  changed_.wait(lock, [&] { return writing_ != &fetch; });
}

void KvStore::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kEngineWait);
}

std::shared_ptr<const KvBytes> KvStore::find(const KvPart& part) try {
  for (const auto& writer : writers_)
    if (auto bytes = writer->tier->get(part, bytes_of(part.id.kind))) return bytes;
  return nullptr;
} catch (const std::bad_alloc&) {
  return nullptr;
}

void KvStore::read() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closing_ || !fetches_.empty(); });
    if (closing_) return;
    const std::shared_ptr<KvFetch> fetch = fetches_.front();
    fetches_.pop_front();
    reading_fetch_ = fetch.get();
    read_all(*fetch, lock);
    reading_.reset();
    reading_fetch_ = nullptr;
    changed_.notify_all();
  }
}

// Under the lock but for reading and copying.
void KvStore::read_all(KvFetch& fetch, std::unique_lock<std::mutex>& lock) {
  for (const KvPlace& place : fetch.places_) {
    reading_ = Clock::now();
    lock.unlock();
    const auto bytes = find(place.part);
    lock.lock();
    if (fetch.state_ != KvFetch::State::kBegun || closing_) return;
    writing_ = &fetch;
    lock.unlock();
    const bool written =
        bytes != nullptr && read_copier_->write(layers_of(place.part.id.kind), place.page, *bytes).ok();
    lock.lock();
    writing_ = nullptr;
    changed_.notify_all();
    if (fetch.state_ != KvFetch::State::kBegun) return;
    if (!written) {
      fetch.state_ = KvFetch::State::kFailed;
      return;
    }
    ++fetch.arrived_;
    constexpr double kNew = 0.2;
    seconds_per_part_ += kNew * (seconds_of(Clock::now() - *reading_) - seconds_per_part_);
  }
  fetch.state_ = KvFetch::State::kArrived;
}

}  // namespace moesaic
