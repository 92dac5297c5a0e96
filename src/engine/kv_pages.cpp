#include "engine/kv_pages.h"

#include "base/error.h"
#include "base/reserve_more.h"

namespace moesaic {

KvPages::KvPages(const KvLayout& layout, int window)
    : layout_(layout),
      window_(window),
      full_(layout.full_pages),
      windowed_(layout.window_pages),
      blocks_(layout.full_pages),
      tokens_(static_cast<size_t>(layout.full_pages) * layout.page_tokens),
      block_of_(layout.window_pages, -1) {
  index_.reserve(blocks_.size());
}

// ---- what is cached ----

Hash128 KvPages::name_of(const Key& key) const {
  return names_.next(name_before(key.salt, key.parent), key.tokens);
}

std::span<const int32_t> KvPages::tokens_of(std::span<const int32_t> tokens, int block) const {
  const auto size = static_cast<size_t>(layout_.page_tokens);
  return tokens.subspan(block * size, size);
}

int32_t KvPages::find(const Key& key) const {
  const auto [begin, end] = index_.equal_range(name_of(key).lo);
  const auto found = std::find_if(begin, end, [&](const auto& entry) {
    const Block& b = blocks_[entry.second];
    return b.parent == key.parent && (key.parent >= 0 || b.salt == key.salt) &&
           std::ranges::equal(key.tokens, tokens_of(tokens_, entry.second));
  });
  return found == end ? -1 : found->second;
}

void KvPages::insert(int32_t page, const Key& key) {
  Block b{.cached = true,
          .name = name_of(key),
          .parent = key.parent,
          .salt = key.parent < 0 ? key.salt : std::string()};
  index_.emplace(b.name.lo, page);
  blocks_[page] = std::move(b);
  std::ranges::copy(key.tokens, tokens_.begin() + int64_t{page} * layout_.page_tokens);
}

void KvPages::tell_stored(int32_t page, std::span<const int32_t> tokens) const {
  if (!watcher_) return;
  const Block& b = blocks_[page];
  const auto before = b.parent < 0 ? std::nullopt : std::optional(blocks_[b.parent].name.lo);
  watcher_({.kind = KvEvent::Kind::kStored, .hash = b.name.lo, .parent = before, .tokens = tokens});
}

void KvPages::remove(int32_t page) {
  Block& b = blocks_[page];
  const auto [begin, end] = index_.equal_range(b.name.lo);
  index_.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == page; }));
  forget_in_store(KvKind::kFull, page);
  if (b.window >= 0) {
    forget_in_store(KvKind::kWindow, b.window);
    block_of_[b.window] = -1;
    windowed_.discard(b.window);  // who holds a block's window page holds its full page
  }
  const uint64_t hash = std::exchange(b, {}).name.lo;
  if (watcher_) watcher_({.kind = KvEvent::Kind::kRemoved, .hash = hash});
}

// One window page for a cached block: its own, or else the table's.
void KvPages::share_window(int32_t full, int32_t& window) {
  Block& b = blocks_[full];
  if (window < 0 || window == b.window) return;
  if (b.window < 0) {
    b.window = window;
    block_of_[window] = full;
    return;
  }
  windowed_.hold(b.window);
  give_back_window(std::exchange(window, b.window), false);
}

void KvPages::cache_blocks(PageTable& table, std::span<const int32_t> tokens) {
  const int whole = static_cast<int>(tokens.size()) / layout_.page_tokens;
  for (int& i = table.cached_blocks; i < whole;) {
    const int32_t parent = i > 0 ? table.full[i - 1] : -1;
    int32_t& page = table.full[i];
    const Key key{.parent = parent, .salt = table.salt, .tokens = tokens_of(tokens, i)};
    const int32_t known = find(key);
    if (known < 0) insert(page, key);
    if (known >= 0 && known != page) {
      full_.hold(known);
      full_.give_back(std::exchange(page, known), PagePool::Worth::kNone);
    }
    share_window(page, table.window[i]);
    ++i;
    if (known < 0) tell_stored(page, key.tokens);
  }
}

bool KvPages::window_is_there(std::span<const int32_t> chain, int blocks) const {
  const int first = reach(blocks * layout_.page_tokens);
  return std::all_of(chain.begin() + first, chain.begin() + blocks,
                     [&](int32_t page) { return blocks_[page].window >= 0; });
}

// The full pages of the longest cached prefix, whether its windows are there or not.
std::vector<int32_t> KvPages::cached_chain(const std::string& salt, std::span<const int32_t> tokens) const {
  // At least one token is left to compute: its logits are wanted.
  const int most = (static_cast<int>(tokens.size()) - 1) / layout_.page_tokens;
  std::vector<int32_t> chain;
  for (int32_t page = -1; std::ssize(chain) < most; chain.push_back(page)) {
    page = find({.parent = page, .salt = salt, .tokens = tokens_of(tokens, static_cast<int>(chain.size()))});
    if (page < 0) break;
  }
  return chain;
}

int KvPages::adopt(PageTable& table, std::span<const int32_t> tokens) {
  const std::vector<int32_t> chain = cached_chain(table.salt, tokens);
  auto blocks = static_cast<int>(chain.size());
  table.forks.push_back(blocks * layout_.page_tokens);
  while (!window_is_there(chain, blocks)) --blocks;
  reserve_more(table.full, static_cast<size_t>(blocks));
  reserve_more(table.window, static_cast<size_t>(blocks));
  for (int i = 0; i < blocks; ++i) {
    const bool in_window = i >= reach(blocks * layout_.page_tokens);
    table.full.push_back(chain[i]);
    table.window.push_back(in_window ? blocks_[chain[i]].window : -1);
    full_.hold(chain[i]);
    if (in_window) windowed_.hold(table.window.back());
  }
  table.cached_blocks = blocks;
  return blocks * layout_.page_tokens;
}

// ---- what outlives its pages ----

void KvPages::keep(KvStore* store) {
  MOESAIC_CHECK(index_.empty());
  store_ = store;
  names_ = store->names();
}

KvPart KvPages::part_of(const PageTable& table, int block, KvKind kind) const {
  return {.id = {blocks_[table.full[block]].name, kind},
          .before = block > 0 ? blocks_[table.full[block - 1]].name : Hash128()};
}

// The block must be cached. Its window page may be an idle one that the table has given back.
void KvPages::offer_window(const PageTable& table, int block) {
  const int32_t page = blocks_[table.full[block]].window;
  if (store_ != nullptr && page >= 0) store_->offer({part_of(table, block, KvKind::kWindow), page});
}

void KvPages::offer(PageTable& table, int tokens) {
  if (store_ == nullptr) return;
  for (int& i = table.offered; i < std::min(table.cached_blocks, tokens / layout_.page_tokens); ++i) {
    store_->offer({part_of(table, i, KvKind::kFull), table.full[i]});
    if (at_fork(table, i)) offer_window(table, i);
  }
}

// The names of the longest beginning of which each block is in the cache or in the store.
std::vector<Hash128> KvPages::stored_chain(const PageTable& table, std::span<const int32_t> chain,
                                           std::span<const int32_t> tokens) const {
  const size_t most = (tokens.size() - 1) / static_cast<size_t>(layout_.page_tokens);
  std::vector<Hash128> names;
  for (const int32_t page : chain) names.push_back(blocks_[page].name);
  while (names.size() < most) {
    const Hash128 before = names.empty() ? names_.root(table.salt) : names.back();
    const Hash128 name = names_.next(before, tokens_of(tokens, static_cast<int>(names.size())));
    if (!store_->has({name, KvKind::kFull})) break;
    names.push_back(name);
  }
  return names;
}

bool KvPages::window_is_stored(std::span<const int32_t> chain, std::span<const Hash128> names,
                               int blocks) const {
  for (int i = reach(blocks * layout_.page_tokens); i < blocks; ++i) {
    const bool here = i < std::ssize(chain) && blocks_[chain[i]].window >= 0;
    if (!here && !store_->has({names[i], KvKind::kWindow})) return false;
  }
  return true;
}

// True if there are pages for all `tokens` tokens of a sequence, and window pages for the end of its first
// `blocks` blocks. The cache already has the blocks of `chain`.
bool KvPages::stored_would_fit(std::span<const int32_t> chain, int blocks, int tokens, int spare) const {
  const auto held = std::ranges::count_if(chain, [&](int32_t page) { return full_.holders(page) > 0; });
  if (full_.free_pages() + held < pages_of(tokens) + spare) return false;
  int windows = 0;  // free ones, idle or empty
  for (int i = reach(blocks * layout_.page_tokens); i < blocks; ++i) {
    const int32_t page = i < std::ssize(chain) ? blocks_[chain[i]].window : -1;
    windows += page < 0 || windowed_.holders(page) == 0 ? 1 : 0;
  }
  return windowed_.free_pages() >= windows;
}

// Nothing is taken before it is sure that it fits: what is given back again may have been evicted for it.
std::vector<KvPlace> KvPages::adopt_stored(PageTable& table, std::span<const int32_t> tokens, int spare) {
  if (store_ == nullptr || !store_->answers()) return {};
  const auto length = static_cast<int>(tokens.size());
  std::vector<int32_t> chain = cached_chain(table.salt, tokens);
  if (!stored_would_fit(chain, 0, length, spare)) return {};  // it could not begin at all
  std::vector<Hash128> names = stored_chain(table, chain, tokens);
  const auto whole = static_cast<int>(names.size());
  auto blocks = whole, cached = static_cast<int>(chain.size());
  while (!window_is_there(chain, cached)) --cached;
  while (blocks > cached && !window_is_stored(chain, names, blocks)) --blocks;
  names.resize(static_cast<size_t>(blocks));
  chain.resize(std::min(chain.size(), names.size()));
  if (blocks <= cached || !stored_would_fit(chain, blocks, length, spare)) return {};
  std::vector<KvPlace> places = take_stored(table, chain, names);
  table.usable_blocks = cached;
  table.forks.push_back(whole * layout_.page_tokens);
  MOESAIC_CHECK(extend(table, length, spare));
  return places;
}

// Pages of the cache are held before others are taken, which may have to be evicted. Nothing may throw
// between adding these to the table and holding them, as a table gives back all pages that it has.
std::vector<KvPlace> KvPages::take_stored(PageTable& table, std::span<const int32_t> chain,
                                          std::span<const Hash128> names) {
  const auto blocks = static_cast<int>(names.size()), cached = static_cast<int>(chain.size());
  const int first = reach(blocks * layout_.page_tokens);
  std::vector<KvPlace> places;
  places.reserve(2 * names.size());
  table.full.reserve(names.size());
  table.window.assign(static_cast<size_t>(blocks), -1);
  table.full.assign(chain.begin(), chain.end());
  table.cached_blocks = cached;
  for (int i = 0; i < cached; ++i) {
    full_.hold(chain[i]);
    if (i < first) continue;
    table.window[i] = blocks_[chain[i]].window;
    if (table.window[i] >= 0) windowed_.hold(table.window[i]);
  }
  for (int i = 0; i < blocks; ++i) {
    const Hash128 before = i > 0 ? names[i - 1] : Hash128();
    if (i >= cached) {
      table.full.push_back(take_full());
      places.push_back({{{names[i], KvKind::kFull}, before}, table.full[i]});
    }
    if (i < first || table.window[i] >= 0) continue;
    table.window[i] = take_window();
    places.push_back({{{names[i], KvKind::kWindow}, before}, table.window[i]});
  }
  return places;
}

int KvPages::fetched(PageTable& table, std::span<const int32_t> tokens) {
  const int length = static_cast<int>(table.window.size()) * layout_.page_tokens;
  for (int i = reach(length); i < table.cached_blocks; ++i) share_window(table.full[i], table.window[i]);
  cache_blocks(table, tokens.first(static_cast<size_t>(length)));
  return length;
}

void KvPages::forget() {
  if (store_ != nullptr) store_->forget_all();
  for (int32_t page = 0; page < full_.pages(); ++page) {
    const Block b = std::exchange(blocks_[page], {});
    if (b.cached && full_.holders(page) == 0) full_.discard(page);
    if (b.window >= 0 && windowed_.holders(b.window) == 0) windowed_.discard(b.window);
  }
  std::fill(block_of_.begin(), block_of_.end(), -1);
  index_.clear();
  if (watcher_) watcher_({.kind = KvEvent::Kind::kCleared});
}

void KvPages::check(std::span<const PageTable* const> tables) const {
  std::vector<int> full(blocks_.size()), window(block_of_.size());
  for (const PageTable* t : tables) {
    for (const int32_t page : t->full) ++full[page];
    for (const int32_t page : t->window) window[page < 0 ? 0 : page] += page < 0 ? 0 : 1;
    for (int i = 0; i < t->cached_blocks; ++i) MOESAIC_CHECK(blocks_[t->full[i]].cached);
  }
  int cached = 0;
  for (int32_t page = 0; page < full_.pages(); ++page) {
    const Block& b = blocks_[page];
    MOESAIC_CHECK(full_.holders(page) == full[page] && (full[page] < 2 || b.cached));
    MOESAIC_CHECK(!b.cached || b.parent < 0 || blocks_[b.parent].cached);
    MOESAIC_CHECK(b.window < 0 || (block_of_[b.window] == page && window[b.window] <= full[page]));
    cached += b.cached ? 1 : 0;
  }
  for (int32_t page = 0; page < windowed_.pages(); ++page) {
    MOESAIC_CHECK(windowed_.holders(page) == window[page]);
    MOESAIC_CHECK(block_of_[page] < 0 || blocks_[block_of_[page]].window == page);
  }
  MOESAIC_CHECK(std::ssize(index_) == cached);
}

// ---- what a sequence has ----

bool KvPages::at_fork(const PageTable& table, int block) const {
  return std::any_of(table.forks.begin(), table.forks.end(), [&](int position) {
    const int end = position / layout_.page_tokens;
    return block < end && block >= reach(end * layout_.page_tokens);
  });
}

int32_t KvPages::take_full() {
  const int32_t page = full_.take();
  try {
    if (blocks_[page].cached) remove(page);
  } catch (...) {
    full_.give_back(page, PagePool::Worth::kNone);
    throw;
  }
  return page;
}

int32_t KvPages::take_window() {
  const int32_t page = windowed_.take();
  if (block_of_[page] < 0) return page;
  forget_in_store(KvKind::kWindow, page);
  blocks_[std::exchange(block_of_[page], -1)].window = -1;
  return page;
}

void KvPages::give_back_window(int32_t page, bool worthy) {
  using enum PagePool::Worth;
  if (page < 0) return;
  windowed_.give_back(page, block_of_[page] < 0 ? kNone : worthy ? kHigh : kLow);
}

// The table has room for its pages before they are taken: a page that could not be added to it would be lost.
bool KvPages::extend(PageTable& table, int context, int spare) {
  const int lacking = std::max(0, pages_of(context) - static_cast<int>(table.full.size()));
  if (full_.free_pages() < lacking + spare) return false;
  reserve_more(table.full, static_cast<size_t>(lacking));
  for (int i = 0; i < lacking; ++i) table.full.push_back(take_full());
  return true;
}

bool KvPages::would_fit(const PageTable& table, std::span<const int32_t> tokens, bool reuse,
                        std::span<const PageTable* const> yielding, int spare) const {
  std::unordered_map<int32_t, int> holders;  // by page of the yielding tables: holders without these tables
  for (const PageTable* other : yielding) {
    for (const int32_t page : other->full) --holders.try_emplace(page, full_.holders(page)).first->second;
  }
  const auto freed = std::ranges::count_if(holders, [](const auto& of) { return of.second == 0; });
  std::vector<int32_t> chain;
  if (reuse) chain = cached_chain(table.salt, tokens);
  auto blocks = static_cast<int>(chain.size());
  while (!window_is_there(chain, blocks)) --blocks;
  // A hit that somebody holds takes no free page.
  const auto shared = std::count_if(chain.begin(), chain.begin() + blocks, [&](int32_t page) {
    const auto of = holders.find(page);
    return (of == holders.end() ? full_.holders(page) : of->second) > 0;
  });
  return full_.free_pages() + freed + shared >= pages_of(static_cast<int>(tokens.size())) + spare;
}

void KvPages::slide(PageTable& table, int first) {
  for (int i = std::min(reach(first), static_cast<int>(table.window.size())) - 1; i >= 0; --i) {
    if (table.window[i] < 0) break;
    give_back_window(std::exchange(table.window[i], -1), at_fork(table, i));
  }
}

void KvPages::trim(PageTable& table, int context) {
  const auto kept = static_cast<size_t>(pages_of(context));
  for (; table.window.size() > kept; table.window.pop_back()) give_back_window(table.window.back(), false);
  for (; table.full.size() > kept; table.full.pop_back())
    full_.give_back(table.full.back(), PagePool::Worth::kNone);
}

bool KvPages::reserve(PageTable& table, int first, int context, int spare) {
  slide(table, first);
  const int lacking = std::max(0, pages_of(context) - static_cast<int>(table.window.size()));
  if (windowed_.free_pages() < lacking) return false;
  reserve_more(table.window, static_cast<size_t>(lacking));
  if (!extend(table, context, spare)) return false;
  for (int i = 0; i < lacking; ++i) table.window.push_back(take_window());
  return true;
}

bool KvPages::reserve_computed(PageTable& table, int tokens) {
  table.window.assign(reach(tokens), -1);
  if (reserve(table, tokens, tokens)) return true;
  table = {.salt = std::move(table.salt)};
  return false;
}

void KvPages::release(PageTable& table) {
  // From behind: later blocks are idle longer.
  for (auto i = static_cast<int>(table.window.size()) - 1; i >= 0; --i) {
    if (table.window[i] >= 0 && i < table.offered) offer_window(table, i);
    give_back_window(table.window[i], true);
  }
  for (auto i = std::ssize(table.full) - 1; i >= 0; --i)
    full_.give_back(table.full[i], i < table.cached_blocks ? PagePool::Worth::kLow : PagePool::Worth::kNone);
  table = {.salt = std::move(table.salt)};
}

}  // namespace moesaic
