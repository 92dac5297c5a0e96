// Requests wait for their parts from the store (kv_store.h); meanwhile they keep their place and their pages.
#include <algorithm>
#include <utility>

#include "engine/scheduler.h"

namespace moesaic {

Scheduler::~Scheduler() {
  for (const auto& r : running_) {
    if (!doubtful_) cache_blocks(*r);
    release(*r);
  }
}

void Scheduler::keep(KvStore* store) {
  store_ = store;
  pages_.keep(store);
}

void Scheduler::begin_fetches() {
  for (const auto& r : running_)
    if (r->fetch != nullptr) store_->begin(r->fetch);
}

bool Scheduler::fetches() const {
  return std::ranges::any_of(running_, [](const auto& r) { return r->fetch != nullptr; });
}

void Scheduler::take_fetched(double prompt_rate) {
  erase_running([&](const auto& r) {
    if (r->fetch == nullptr) return false;
    const auto tokens = static_cast<double>(r->tokens.size());
    const auto state = store_->state(*r->fetch, prompt_rate > 0 ? tokens / prompt_rate : 0);
    if (state == KvFetch::State::kArrived) take_fetched(*r);
    if (state != KvFetch::State::kFailed || compute_instead(*r)) return false;
    preempt(r);
    return true;
  });
}

void Scheduler::take_fetched(Request& r) {
  r.fetch = nullptr;
  const size_t cached = r.pages.cached_blocks, blocks = r.pages.window.size();
  if (speculator_ != nullptr) speculator_->loaded(std::span(r.pages.full).subspan(cached, blocks - cached));
  const int length = pages_.fetched(r.pages, r.tokens);
  counted_.store.fetched_tokens +=
      static_cast<uint64_t>(length - r.pages.usable_blocks * pages_.page_tokens());
  begun(r, length);
}

// Keeps its place if it finds pages: what it shared with others, but for their windows, is computed, too.
bool Scheduler::compute_instead(Request& r) {
  release(r);
  ++counted_.store.abandoned;
  r.skip_store = true;
  const int cached = adopt(r);
  if (!pages_.extend(r.pages, static_cast<int>(r.tokens.size()), 0)) return false;
  begun(r, cached);
  return true;
}

void Scheduler::release(Request& r) {
  if (r.fetch != nullptr) store_->cancel(*std::exchange(r.fetch, nullptr));
  pages_.release(r.pages);
}

}  // namespace moesaic
