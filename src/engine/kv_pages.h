// Which pages of the KV cache a sequence has, and which it may share with others: the prefix cache.
//
// Full-attention and sliding layers draw on two pools (core/batch.h). A block is the page_tokens tokens at a
// page boundary of a sequence; it has a page in either pool, but the sliding layers' is given back once the
// window has left it. A block that is computed is cached: found again by its tokens and the blocks before
// it, by a hash chained over them, and compared token by token. The first block of a sequence also has the
// sequence's salt, which is compared as the tokens are, so what two salts have cached is apart. Pages that
// nobody holds stay until room is needed; those of least worth are evicted first, then the longest idle. A
// block is evicted before its predecessors, so a cached block's predecessors are cached too.
//
// A prompt may begin with cached blocks where the sliding layers' pages of the window before its first new
// row are still there: these cannot be computed from the window alone, as each layer's window reaches further
// back than the one above it. Windows are worth most at forks, where prompts diverge: at a prompt's end
// (harmony drops the reasoning from the next turn's prompt), at a sequence's end, and where a prompt departed
// from cached ones (after a system message).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/batch.h"
#include "engine/kv_store.h"
#include "engine/page_pool.h"
#include "moesaic/kv_events.h"

namespace moesaic {

// The page tables of one sequence.
struct PageTable {
  std::vector<int32_t> full, window;  // window: -1 where the page has left the window
  int cached_blocks = 0;              // how many of the first blocks are in the prefix cache
  int usable_blocks = 0;              // how many it could have begun with instead of those from the store
  std::vector<int> forks;             // positions whose window other requests may need
  std::string salt;                   // only sequences with the same one share blocks; release() keeps it
  int offered = 0;                    // how many of the first blocks were offered to the store
};

class KvPages {
 public:
  KvPages(const KvLayout& layout, int window);

  // Begins an empty table with the longest cached prefix of `tokens`, without their last one, whose window is
  // still there. Returns its length in tokens.
  int adopt(PageTable& table, std::span<const int32_t> tokens);
  int page_tokens() const { return layout_.page_tokens; }
  // The first page of the window of a row at `position`.
  int reach(int position) const { return std::max(0, position - window_ + 1) / layout_.page_tokens; }
  // Returns how many of so many tokens cache_blocks() could share: those in whole pages.
  int shareable(int tokens) const { return tokens / layout_.page_tokens * layout_.page_tokens; }
  // True if adopt() and extend() would find the pages of `tokens` for an empty table, with `spare` left, once
  // the tables of `yielding` were released. reuse: adopt() may be called.
  bool would_fit(const PageTable& table, std::span<const int32_t> tokens, bool reuse,
                 std::span<const PageTable* const> yielding, int spare) const;
  // Makes room for positions [0, context) in the full-attention layers. False, with nothing taken, where that
  // would not leave `spare` pages.
  bool extend(PageTable& table, int context, int spare);
  // Gives back window pages that no row from position `first` on reaches.
  void slide(PageTable& table, int first);
  // Gives back the pages behind positions [0, context), in which nothing is computed.
  void trim(PageTable& table, int context);
  // Makes room in all layers for positions [0, context) of a sequence whose next step computes rows from
  // `first` on. False, with nothing taken, if that would not leave `spare` full-attention pages.
  bool reserve(PageTable& table, int first, int context, int spare = 0);
  // Enters the whole blocks of `tokens`, whose K and V are computed, into the prefix cache. Where the cache
  // has a block already, the table takes that one and gives its own back.
  void cache_blocks(PageTable& table, std::span<const int32_t> tokens);
  void release(PageTable& table);
  // Makes room for the first `tokens` of a sequence, whole pages, that are computed elsewhere, as if it had
  // computed them: window pages only where position `tokens` reaches them. False, with nothing taken, if the
  // pages are not there.
  bool reserve_computed(PageTable& table, int tokens);
  // From here on blocks outlive their pages; before anything is cached. The store outlives this.
  void keep(KvStore* store);
  // Begins an empty table as adopt() does, with what the store has where that is more than the cache has, and
  // room for all of `tokens` with `spare` left. Returns what has to be fetched into the table's pages; until
  // fetched() nothing may be computed in them. Empty: the table is, too, and there is nothing to fetch.
  std::vector<KvPlace> adopt_stored(PageTable& table, std::span<const int32_t> tokens, int spare);
  // Everything is there: the fetched blocks are cached now. Returns the length of the beginning, in tokens.
  int fetched(PageTable& table, std::span<const int32_t> tokens);
  // The K and V of the first `tokens` are known to be right: whole blocks that are cached are offered to the
  // store.
  void offer(PageTable& table, int tokens);
  // Tells what becomes of cached blocks from here on.
  void watch(KvWatcher watcher) { watcher_ = std::move(watcher); }
  // No block is cached any more; the caller sets `cached_blocks` of every table to 0.
  void forget();

  PageUse full_use() const { return full_.use(); }
  int free_pages() const { return full_.free_pages(); }
  PageUse window_use() const { return windowed_.use(); }
  // Aborts unless every page's count of holders is what these tables (all there are) say, and the prefix
  // cache is consistent. For tests.
  void check(std::span<const PageTable* const> tables) const;

 private:
  // The contents of a page of the full-attention layers.
  struct Block {
    bool cached = false;
    Hash128 name = {};      // names its tokens and all before
    int32_t parent = -1;    // the full page of the block before
    int32_t window = -1;    // the page of the sliding layers, if it is still there
    std::string salt = {};  // a first block's
  };

  int pages_of(int tokens) const { return (tokens + layout_.page_tokens - 1) / layout_.page_tokens; }
  // A block by what comes before it, or for the first one by its salt, and its tokens.
  struct Key {
    int32_t parent = -1;  // a full page; -1: none
    const std::string& salt;
    std::span<const int32_t> tokens;
  };
  Hash128 name_of(const Key& key) const;
  Hash128 name_before(const std::string& salt, int32_t parent) const {
    return parent < 0 ? names_.root(salt) : blocks_[parent].name;
  }
  std::span<const int32_t> tokens_of(std::span<const int32_t> tokens, int block) const;
  int32_t find(const Key& key) const;  // a full page; -1: none
  std::vector<int32_t> cached_chain(const std::string& salt, std::span<const int32_t> tokens) const;
  bool window_is_there(std::span<const int32_t> chain, int blocks) const;
  std::vector<Hash128> stored_chain(const PageTable& table, std::span<const int32_t> chain,
                                    std::span<const int32_t> tokens) const;
  bool window_is_stored(std::span<const int32_t> chain, std::span<const Hash128> names, int blocks) const;
  bool stored_would_fit(std::span<const int32_t> chain, int blocks, int tokens, int spare) const;
  std::vector<KvPlace> take_stored(PageTable& table, std::span<const int32_t> chain,
                                   std::span<const Hash128> names);
  KvPart part_of(const PageTable& table, int block, KvKind kind) const;
  void offer_window(const PageTable& table, int block);
  void forget_in_store(KvKind kind, int32_t page) {
    if (store_ != nullptr) store_->forget(kind, page);
  }
  void insert(int32_t page, const Key& key);
  void remove(int32_t page);
  // The watcher is told when a change is complete, in case it throws.
  void tell_stored(int32_t page, std::span<const int32_t> tokens) const;
  void share_window(int32_t full, int32_t& window);
  bool at_fork(const PageTable& table, int block) const;
  int32_t take_full();
  int32_t take_window();
  void give_back_window(int32_t page, bool worthy);

  KvLayout layout_;
  int window_;  // tokens
  PagePool full_, windowed_;
  std::vector<Block> blocks_;                         // [full pages]
  std::vector<int32_t> tokens_;                       // [full pages, page_tokens] of cached blocks
  std::vector<int32_t> block_of_;                     // [window pages] the full page of its cached block
  std::unordered_multimap<uint64_t, int32_t> index_;  // half of its block's name -> full page
  KvWatcher watcher_;                                 // or none
  KvNames names_;             // with a key: nobody can choose prompts whose names collide
  KvStore* store_ = nullptr;  // or none
};

}  // namespace moesaic
