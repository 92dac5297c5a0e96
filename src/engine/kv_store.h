// Keeps parts of blocks beyond the pages of the device, in host memory and in a folder, and brings them back
// (docs/design/kv-store.md).
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "engine/disk_tier.h"
#include "engine/kv_tier.h"

namespace moesaic {

struct KvStoreOptions {
  uint64_t host_bytes = 0;  // 0: nothing in host memory
  std::string folder;       // empty: nothing on disk
  uint64_t disk_bytes = 0;  // 0: half of what is free there
  int readers = 0;          // threads that read; 0: helper_threads()
  // A part has at least this time to come, however quickly its prompt could be computed.
  std::chrono::milliseconds least_patience{20};
  bool any() const { return host_bytes > 0 || !folder.empty(); }
};
inline constexpr double kMostKvGib = 1 << 20;
// Reads the value of --kv-disk, DIR[:GiB].
Result<KvStoreOptions> kv_disk_option(const std::string& disk);
// Reads the values of --kv-host, in GiB, and --kv-disk.
Result<KvStoreOptions> kv_store_options(double host_gib, const std::string& disk);
// Fails where a store is asked for beside no prefix cache.
Status check_kv_store(const KvStoreOptions& options, bool prefix_cache);

// They are opened before a model's weights are loaded, as that takes longer than to find that another process
// has the folder, and behind all checks that take no time, as they make the folder. Nothing in it goes before
// KvStore::open.
struct KvTiers {
  static Result<KvTiers> open(const KvStoreOptions& options);
  KvStoreOptions options;
  HashKey key = random_hash_key();     // makes the blocks' names: the folder's key, if there is one
  std::unique_ptr<KvTier> host, disk;  // null: there is none
};

// A part and the page that it is in, or is to be in.
struct KvPlace {
  KvPart part;
  int32_t page = -1;
};

// Parts on their way into a request's pages.
class KvFetch {
 public:
  using Clock = std::chrono::steady_clock;
  enum class State { kPlanned, kBegun, kArrived, kFailed };
  explicit KvFetch(std::vector<KvPlace> places) : places_(std::move(places)) {}

 private:
  friend class KvStore;
  std::vector<KvPlace> places_;
  State state_ = State::kPlanned;   // the store's mutex guards this and what follows
  size_t taken_ = 0, arrived_ = 0;  // places that readers have begun with, and have done
  bool whole_ = true;               // no part was missing or damaged so far
  Clock::time_point begun_;
};

// The engine's thread calls all but stats(), and never waits for a disk.
class KvStore {
 public:
  // The backend's cache must be allocated, and the backend outlives the store. fingerprint: of the model.
  static Result<std::unique_ptr<KvStore>> open(KvTiers tiers, Backend& backend, const ModelConfig& config,
                                               const KvLayout& layout, uint64_t fingerprint);
  // Keeps what was offered, for at most so long. The pages must still be there.
  static constexpr auto kLastWords = std::chrono::seconds(3);
  ~KvStore();
  KvStore(const KvStore&) = delete;
  KvStore& operator=(const KvStore&) = delete;

  const KvNames& names() const { return names_; }
  bool has(const KvPartId& id) const;

  // The part is in the page and stays there until forget(): it is kept when its turn comes. A part that is
  // kept already counts as used now.
  void offer(const KvPlace& place);
  // Call it before the page gets other contents. It waits while the page is being copied, and for nothing
  // else.
  void forget(KvKind kind, int32_t page);
  void forget_all();  // nobody knows what the pages hold

  // False while a read has been running for more than a second.
  bool answers() const;
  // Starts it. From here until it is over or cancel() returns the pages belong to the store, and no step in
  // flight may touch them.
  void begin(const std::shared_ptr<KvFetch>& fetch);
  // kFailed also where it is not worth waiting for: nothing comes for as long as all would take to compute,
  // or what is left would take longer than that. compute_seconds: this time; 0: not known.
  KvFetch::State state(KvFetch& fetch, double compute_seconds) const;
  // The pages are the caller's again.
  void cancel(KvFetch& fetch);
  // Waits until some fetch may have got further, at most a millisecond.
  void wait() const;

  // Counts only what the tiers did. Any thread may call it.
  KvStoreStats stats() const;
  // Waits until all that was offered is kept or dropped. For tests.
  void settle() const;

 private:
  using Clock = KvFetch::Clock;
  struct Offer {
    KvPlace place;
    uint32_t generation = 0;  // the page's
  };
  struct Writer {
    std::unique_ptr<KvTier> tier;
    std::unique_ptr<KvCopier> copier;
    std::deque<Offer> offers;
    std::optional<std::pair<KvKind, int32_t>> copying;
    bool busy = false;
    uint64_t dropped = 0, read_bytes = 0;  // read: for requests
    std::thread thread;
  };

  KvStore(const ModelConfig& config, const Backend& backend, const KvLayout& layout);
  Status check_room(const KvStoreOptions& options, double free) const;
  Status start(Backend& backend, int readers);
  size_t bytes_of(KvKind kind) const { return layers_of(kind).size() * page_bytes_; }
  const std::vector<int>& layers_of(KvKind kind) const { return layers_[static_cast<size_t>(kind)]; }
  uint32_t& generation_of(KvKind kind, int32_t page) {
    return generations_[static_cast<size_t>(kind)][static_cast<size_t>(page)];
  }
  // A reader reads a part at a time. Several share a fetch, as checking a part takes longer than reading it
  // from a fast disk.
  struct Reader {
    std::unique_ptr<KvCopier> copier;
    const KvFetch* writing = nullptr;          // into its pages
    std::optional<Clock::time_point> reading;  // a part, since then
    std::thread thread;
  };

  // False where there is no room, or no memory.
  bool queue(Writer& writer, const Offer& offer) const;
  void write(Writer& writer);
  bool keep(Writer& writer, const Offer& offer);
  bool copy(Writer& writer, const Offer& offer, KvBytes& bytes);
  void read(Reader& reader);
  std::shared_ptr<KvFetch> next_fetch() const;
  void read_part(Reader& reader, KvFetch& fetch, std::unique_lock<std::mutex>& lock);
  bool write_page(Reader& reader, KvFetch& fetch, const KvPlace& place, const KvBytes& bytes,
                  std::unique_lock<std::mutex>& lock);
  std::optional<Clock::time_point> longest_read() const;
  void end(KvFetch& fetch, bool arrived);
  std::shared_ptr<const KvBytes> find(const KvPart& part);
  size_t parts_until(const KvFetch& fetch) const;

  std::array<std::vector<int>, 2> layers_;  // layers of each kind
  size_t page_bytes_;
  size_t most_offers_;
  Clock::duration least_patience_{};
  KvNames names_;
  std::vector<std::unique_ptr<Writer>> writers_;  // host memory's first
  KvTier* host_ = nullptr;                        // or none
  std::vector<std::unique_ptr<Reader>> readers_;

  mutable std::mutex mutex_;  // guards what follows, writers' offers and counts, and what readers do
  mutable std::condition_variable changed_;
  std::array<std::vector<uint32_t>, 2> generations_;  // for each kind's pages: how often forget() was called
  std::deque<std::shared_ptr<KvFetch>> fetches_;      // those begun and not over
  double seconds_per_part_ = 0;                       // a recent average, with all readers at work
  bool closing_ = false;
  Clock::time_point close_at_;
};

}  // namespace moesaic
