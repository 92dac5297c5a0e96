#include "engine/scheduler.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/error.h"
#include "core/kv_page.h"

namespace moesaic {
namespace {

// Returns how many tokens the next step could compute.
int missing(const Request& r) {
  const bool waits = r.fetch != nullptr || (r.awaits_mask && !r.sampler->ready());
  return r.length() < r.limit && !waits ? r.length() - r.computed : 0;
}
// True while logits of its prompt are still to be shown.
bool shows_prompt(const Request& r) {
  return r.on_prompt_logits && r.prompt_rows_shown < r.prompt_tokens - 1;
}
bool decodes(const Request& r) { return missing(r) == 1 && r.length() > r.prompt_tokens; }
bool computes_prompt(const Request& r) { return missing(r) > 0 && !decodes(r); }
// True if it may have a draft once its last token is known: it decodes, and more than one token is left.
bool may_draft(const Request& r) {
  return r.speculate && r.held.empty() && decodes(r) && r.length() + 1 < r.limit;
}
// The running step samples one token behind its last one, or none, before those of a draft.
int token_in_flight(const Request& r) { return r.draft.token_in_flight() == nullptr ? 0 : 1; }
// Says how a device samples the token that is so many behind its last one; nothing: the host has to.
std::optional<DeviceSampling> device_sampling(const Request& r, int ahead) {
  if (r.on_logits || r.change_logits || shows_prompt(r)) return {};
  return r.sampler->device_sampling(ahead);
}
// The next step samples the token that is so many behind its last one, at most.
int furthest_ahead(const Request& r) { return token_in_flight(r) + r.draft.unsure() + r.draft.rows_ahead(); }
// Counts those of its next `rows` rows that are of the prompt and whose logits are still to be shown.
int shown_rows(const Request& r, int rows) {
  if (!r.on_prompt_logits) return 0;
  const int end = std::min(r.computed + rows, r.prompt_tokens - 1);
  return std::max(0, end - std::max(r.computed, r.prompt_rows_shown));
}

}  // namespace

std::optional<DeviceSampling> Scheduler::edited_sampling(const Request& r, int ahead) const {
  const bool drafts = speculator_ != nullptr &&
                      (speculator_->drafter().follows_steps() || !r.draft.proposal(r.tokens.size()).empty());
  if (!options_.can_edit || drafts || r.on_logits || r.change_logits || shows_prompt(r)) return {};
  return r.sampler->edited_sampling(ahead);
}

bool Scheduler::host_samples(const Request& r) const {
  const int ahead = token_in_flight(r);
  return !device_sampling(r, ahead) && !edited_sampling(r, ahead);
}

void Scheduler::compute_again(WantedRow& row) {
  Request& r = *row.request;
  row.again = true;
  r.draft.forget_token();
  r.awaits_mask = true;
  --r.computed;
}

const Request* Scheduler::awaiting_mask() const {
  const auto at = std::ranges::find_if(
      running_, [](const auto& r) { return r->awaits_mask && !r->done() && !r->sampler->ready(); });
  return at == running_.end() ? nullptr : at->get();
}

void Scheduler::cache_blocks(Request& r) {
  if (!options_.prefix_cache) return;
  // A step in flight may have computed one position too many, launched before the request's end was known.
  const auto sure = std::min(static_cast<size_t>(r.computed), r.tokens.size());
  pages_.cache_blocks(r.pages, std::span(r.tokens).first(sure));
  pages_.offer(r.pages, r.proven);
}

// Returns how many tokens at its beginning are in the cache and need not be computed. If the store has more,
// it plans to fetch them and returns 0.
int Scheduler::adopt(Request& r) {
  if (!options_.prefix_cache || !r.reuse_prefix) return 0;
  auto places = r.skip_store ? std::vector<KvPlace>()
                             : pages_.adopt_stored(r.pages, r.tokens, static_cast<int>(running_.size()));
  if (places.empty()) return pages_.adopt(r.pages, r.tokens);
  r.fetch = std::make_shared<KvFetch>(std::move(places));
  return 0;
}

// One page is left free for each request that runs: soon it will need it.
bool Scheduler::begin(Request& r) {
  const int cached = adopt(r);
  if (!pages_.extend(r.pages, static_cast<int>(r.tokens.size()), static_cast<int>(running_.size()))) {
    release(r);
    return false;
  }
  if (r.fetch == nullptr) begun(r, cached);
  return true;
}

// It is known what it has to compute.
void Scheduler::begun(Request& r, int cached) {
  // The next turn of a conversation goes on from this prompt, and the same prompt may be asked again.
  r.pages.forks.insert(r.pages.forks.end(), {r.prompt_tokens, r.prompt_tokens - 1});
  r.computed = cached;
  if (r.begun) return;
  r.begun = true;
  r.reused = cached;
  if (options_.prefix_cache) r.kept = std::max(0, pages_.shareable(r.prompt_tokens) - cached);
  counted_.prompt_tokens += r.prompt_tokens;
  counted_.prefix_queried += options_.prefix_cache && r.reuse_prefix ? r.prompt_tokens : 0;
  counted_.prefix_hits += cached;
  if (r.on_begin) r.on_begin();
  r.tell_prompt(cached);
}

// It has its pages.
void Scheduler::start(std::shared_ptr<Request> request) {
  ++request->share->running;
  request->begun_as = ++begun_;
  request->turn_steps = 0;
  running_.push_back(std::move(request));
}

void Scheduler::preempt(const std::shared_ptr<Request>& request) {
  Request& r = *request;
  if (speculator_ != nullptr) speculator_->yielded(r);
  waiting_.push_front(r.client, r.id, request);  // where that has no memory, the request still runs
  release(r);
  r.computed = 0, r.proven = 0;
  r.awaits_mask = false;
  r.draft.forget_behind();
  ++r.restarts;
  r.yielded_in = step_;
  --r.share->running;
  ++counted_.preemptions;
}

void Scheduler::preempt_last() {
  preempt(running_.back());
  running_.pop_back();
}

// Preempts others until there are pages for one token more. False: the request itself was the last one.
bool Scheduler::make_room(Request& r) {
  while (!pages_.reserve(r.pages, r.computed - r.draft.unsure(), r.computed + 1 + r.draft.rows_ahead())) {
    const bool itself = running_.back().get() == &r;
    preempt_last();
    if (itself) return false;
  }
  return true;
}

// Wants those among the next `rows` that were not shown before the request was preempted.
void Scheduler::want_prompt_rows(const std::shared_ptr<Request>& request, int first_row, int rows,
                                 ScheduledBatch& out) {
  const Request& r = *request;
  if (!r.on_prompt_logits) return;
  const int end = std::min(r.computed + rows, r.prompt_tokens - 1);
  for (int position = std::max(r.computed, r.prompt_rows_shown); position < end; ++position) {
    want_row({.request = request, .prompt = true}, first_row + position - r.computed, out);
  }
}

// Requests that fetch the same windows each hold pages for them until they have arrived. Where too few pages
// are left meanwhile, the rows wait.
void Scheduler::plan(const std::shared_ptr<Request>& request, int rows, Plan& plan) {
  Request& r = *request;
  const int ahead = r.draft.rows_ahead();
  if (!pages_.reserve(r.pages, r.computed - r.draft.unsure(), r.computed + rows + ahead))
    return MOESAIC_CHECK(fetches());
  plan.parts.push_back({request, rows});
  if (computes_prompt(r)) plan.prompts += rows * row_cost(r);
  plan.rows += rows + ahead;
  plan.rows_ahead += ahead;
  plan.host_rows += shown_rows(r, rows);
  if (!plan.device || r.computed + rows < r.length() || !host_samples(r)) return;
  ++plan.host_rows;
  if (r.host_row <= plan.host_rows_before) r.host_row = ++host_rows_;
}

double Scheduler::row_cost(const Request& r) const { return 1 + r.computed / options_.keys_as_row; }

// One prompt goes on in each step, however deep it is.
int Scheduler::rows_for(const Request& r, const Plan& plan) const {
  constexpr int kFewest = kPageTokens;
  int rows = std::min(missing(r), plan.most_rows - plan.rows);
  if (plan.decodes) {
    const double left = plan.most_prompts - plan.prompts;
    rows = std::min(rows, std::max(static_cast<int>(left / row_cost(r)), plan.prompts > 0 ? 0 : kFewest));
  }
  const int room = kHostRows - plan.host_rows;
  if (shows_prompt(r)) return std::min(rows, room);
  // The last row waits for a step in which the host has room for it.
  return plan.device && room <= 0 && rows == missing(r) && host_samples(r) ? rows - 1 : rows;
}

// begin() reads all of the request's tokens, so it is not tried in each step.
bool Scheduler::still_lacks_pages(const Request& r) const {
  constexpr uint64_t kSteps = 8;  // others may have cached what it begins with meanwhile
  return r.id == lacking_.request && pages_.free_pages() <= lacking_.free_pages &&
         running_.size() >= lacking_.running && step_ < lacking_.step + kSteps;
}

void Scheduler::admit(Plan& plan) {
  const auto has_room = [&] {
    return plan.rows < plan.most_rows && !(plan.decodes && plan.prompts >= plan.most_prompts);
  };
  while (std::ssize(running_) < options_.max_batch && has_room()) {
    const std::shared_ptr<Request>* next = next_waiting();
    if (next == nullptr || still_lacks_pages(**next)) return;
    if (!begin(**next)) {
      lacking_ = {(*next)->id, pages_.free_pages(), running_.size(), step_};
      return;
    }
    start(take_next());
    const int rows = rows_for(*running_.back(), plan);
    if (rows > 0) this->plan(running_.back(), rows, plan);
  }
}

// One page is left free for each request that runs, as for a request that begins. Pages that were reserved
// for a longer draft before go back.
int Scheduler::reserve_draft(Request& r, int first, int tokens) {
  const int known = r.computed + 1;
  const int room = static_cast<int>(r.pages.window.size()) * pages_.page_tokens() - known;
  if (tokens > room && !pages_.reserve(r.pages, first, known + tokens, static_cast<int>(running_.size())))
    return std::max(0, room);
  pages_.trim(r.pages, known + tokens);
  return tokens;
}

StepAccount Scheduler::add_drafts(const Plan& plan) {
  if (speculator_ == nullptr || plan.parts.empty()) return {};
  std::vector<Request*> decoding;
  int continued = 0;
  const int free_rows = draft_room(plan.rows - plan.rows_ahead) - plan.rows_ahead;
  for (const Plan::Part& part : plan.parts) {
    Request& r = *part.request;
    if (free_rows > 0 && may_draft(r) && r.draft.is_free()) {
      decoding.push_back(&r);
    } else {
      r.draft.withdraw_proposal();
    }
    if (r.draft.may_continue()) ++continued;
  }
  return speculator_->draft(decoding,
                            {.rows = plan.rows - plan.rows_ahead,
                             .free_rows = free_rows,
                             .continued = continued,
                             .ahead_rows = plan.rows_ahead},
                            reserve());
}

void Scheduler::want_row(WantedRow wanted, int row, ScheduledBatch& out) {
  wanted.restarts = wanted.request->restarts;
  out.batch.logit_rows.push_back(row);
  out.wanted.push_back(std::move(wanted));
}

// The rows of a draft that is in flight count as computed, and may not hold: a continuation's rows stand in
// the batch where they stand if none of them does.
void Scheduler::schedule(const Plan::Part& part, ScheduledBatch& out) {
  Request& r = *part.request;
  Batch& b = out.batch;
  const bool continues = r.draft.may_continue();
  const std::span<const int32_t> draft = r.draft.proposal(r.tokens.size());
  const int drafted = continues ? r.draft.rows_ahead() : static_cast<int>(draft.size());
  const int first = b.rows(), begin = r.computed - r.draft.unsure(), rows = part.rows + drafted;
  if (continues)
    b.continuations.push_back({.sequence = static_cast<int>(b.sequences.size()),
                               .source = r.draft.token_in_flight()->sequence,
                               .sampling = {}});
  for (int i = 0; i < rows; ++i) {
    const bool known = begin + i < std::ssize(r.tokens), guessed = !continues && i >= part.rows;
    b.tokens.push_back(known ? r.tokens[begin + i] : guessed ? draft[i - part.rows] : 0);
    b.token_sources.push_back(known || guessed || continues ? -1 : *r.draft.token_in_flight()->token);
    b.positions.push_back(begin + i);
  }
  want_prompt_rows(part.request, first, part.rows, out);
  r.computed += rows;
  r.awaits_mask = false;
  out.requests.push_back(part.request);
  b.sequences.push_back(
      {.first_row = first,
       .rows = rows,
       .context = begin + rows,
       .full_pages = {r.pages.full.begin(), r.pages.full.begin() + std::ssize(r.pages.window)},
       .window_pages = r.pages.window});
  if (r.computed < r.length()) return;
  for (int i = 0; i <= drafted; ++i)
    want_row({.request = part.request, .draft_row = i}, first + part.rows - 1 + i, out);
  out.drafts |= drafted > 0;
}

// A request that was preempted since has nothing computed. The pages of a draft that was begun behind the
// step stay.
int Scheduler::end_step(Request& r) {
  const DraftState::Verified draft = r.draft.take(r.tokens);
  if (draft.drafted == 0) return 0;
  speculator_->verified(r, draft);
  const int refused = draft.drafted - draft.accepted;
  r.computed = std::max(0, r.computed - refused);
  pages_.trim(r.pages, r.computed + 1 + draft.behind);
  return refused;
}

bool Scheduler::would_draft() {
  std::vector<Request*> waiting;
  for (const auto& r : running_) {
    if (may_draft(*r) && token_in_flight(*r) > 0) waiting.push_back(r.get());
  }
  const auto rows = static_cast<int>(waiting.size());
  return speculator_ != nullptr && rows > 0 && speculator_->would_draft(waiting, rows, draft_room(rows));
}

// The host has to sample a request's first tokens (min_tokens), all of them, or those from some place on
// (overrides). So a device that may sample two tokens of a request may sample those between them.
bool Scheduler::can_continue() const {
  const auto samples = [](const auto& r) {
    return device_sampling(*r, 0) && device_sampling(*r, furthest_ahead(*r));
  };
  bool all = std::ranges::all_of(running_, samples);
  // Requests of a single client begin when there is a place.
  if (clients_.size() > 1 || std::ssize(running_) < options_.max_batch)
    waiting_.for_each([&](const auto& r) { all = all && samples(r); });
  return all;
}

std::optional<BegunDraft> Scheduler::draft_ahead(const ScheduledBatch& step) {
  if (speculator_ == nullptr) return {};
  // Rows of the next step without drafts.
  int decoding = 0, prompts = 0;
  for (const auto& r : running_) {
    if (computes_prompt(*r)) {
      prompts += missing(*r);
    } else {
      ++decoding;
    }
  }
  // A request that waits begins where a step has a row to spare.
  if (waiting_.size() > 0 && std::ssize(running_) < options_.max_batch) ++prompts;
  const int rows = std::max(decoding, std::min({decoding + prompts, options_.mixed_rows, options_.max_rows}));
  return speculator_->draft_ahead(step.batch, step.requests, draft_room(rows), reserve());
}

// The host samples what the device does not. With a drafter the host then takes all rows, as it is known only
// when they are sampled which of them hold.
void Scheduler::set_sampling(ScheduledBatch& scheduled) const {
  Batch& b = scheduled.batch;
  std::vector<DeviceSampling> sampling;
  for (WantedRow& row : scheduled.wanted) {
    const int ahead = token_in_flight(*row.request) + row.draft_row;
    auto one = row.prompt ? std::nullopt : device_sampling(*row.request, ahead);
    if (!one && !row.prompt) {
      one = edited_sampling(*row.request, ahead);
      row.edited = one.has_value();
      // The edited row is sampled anew; until then its log-probabilities are all that counts.
      if (one) one = DeviceSampling{.logprobs = one->logprobs};
    }
    if (!one && speculator_ != nullptr) {
      b.host_rows.clear();
      for (WantedRow& other : scheduled.wanted) other.edited = false;
      return MOESAIC_CHECK(b.continuations.empty());
    }
    if (!one) b.host_rows.push_back(static_cast<int32_t>(std::ssize(sampling)));
    sampling.push_back(one.value_or(DeviceSampling()));
  }
  for (Continuation& c : b.continuations) {
    const auto of = static_cast<size_t>(c.sequence);
    const Request& r = *scheduled.requests[of];
    for (int i = 0; i < b.sequences[of].rows + r.draft.unsure(); ++i)
      c.sampling.push_back(device_sampling(r, 1 + i).value());
  }
  b.sampling = std::move(sampling);
  for (size_t i = 0; i < scheduled.wanted.size(); ++i)
    scheduled.wanted[i].host = std::ranges::binary_search(b.host_rows, static_cast<int32_t>(i));
}

// The first logit row of a sequence is that of its next token, unless logits of its prompt are shown: then
// all are the host's.
void Scheduler::launch(const ScheduledBatch& scheduled) {
  for (size_t i = 0; i < scheduled.requests.size(); ++i) {
    DraftState::Place place{.sequence = static_cast<int>(i)};
    const auto [first, count] = wanted_rows(scheduled.batch, place.sequence);
    if (count > 0 && !scheduled.wanted[static_cast<size_t>(first)].host) place.token = first;
    Request& r = *scheduled.requests[i];
    r.draft.launch(place, r.tokens.size());
  }
}

// The clients take turns from step to step; a client's own come in their order.
std::vector<std::shared_ptr<Request>> Scheduler::prompts_in_turn() const {
  std::vector<std::shared_ptr<Request>> prompts;
  std::ranges::copy_if(running_, std::back_inserter(prompts),
                       [](const auto& r) { return computes_prompt(*r); });
  std::ranges::stable_sort(prompts, {}, [](const auto& r) { return r->share->prompt_turn; });
  return prompts;
}

// Requests that decode and whose logits the host gets take turns if a step has no room for all of them: those
// that had no row for longest come first, and are first again next time. Half of the room is kept for prompts
// if one needs it.
void Scheduler::give_host_turns() {
  const bool prompts = std::ranges::any_of(
      running_, [&](const auto& r) { return computes_prompt(*r) && (shows_prompt(*r) || host_samples(*r)); });
  const size_t rows = prompts ? kHostRows / 2 : kHostRows;
  std::vector<Request*> turns;
  for (const auto& r : running_) {
    if (decodes(*r) && host_samples(*r)) turns.push_back(r.get());
  }
  std::ranges::stable_sort(turns, {}, &Request::host_row);
  turns.resize(std::min(turns.size(), rows));
  for (Request* r : turns) r->host_row = ++host_rows_;
}

ScheduledBatch Scheduler::next_batch(bool device_samples, double prompt_rate) {
  if (store_ != nullptr) take_fetched(prompt_rate);
  for (const auto& r : running_) {
    cache_blocks(*r);
    pages_.slide(r->pages, r->computed - r->draft.unsure());
  }
  Plan plan{.device = device_samples && speculator_ == nullptr, .host_rows_before = host_rows_};
  ++step_;
  const uint64_t preemptions = counted_.preemptions;
  order_running();
  admit_newcomers();
  if (plan.device) give_host_turns();
  for (size_t i = 0; i < running_.size(); ++i) {
    const auto r = running_[i];
    if (!computes_prompt(*r) && r->fetch == nullptr) ++r->turn_steps;
    if (!decodes(*r)) continue;
    if (plan.device && host_samples(*r) && r->host_row <= plan.host_rows_before) continue;  // not its turn
    if (plan.rows + 1 + r->draft.rows_ahead() > options_.max_rows) continue;
    if (make_room(*r)) this->plan(r, 1, plan);
  }
  plan.decodes = std::ranges::any_of(running_, [](const auto& r) { return decodes(*r); });
  plan.most_prompts = plan.decodes ? std::min(options_.mixed_rows, options_.max_rows) : options_.max_rows;
  plan.most_rows = std::min(plan.most_prompts + plan.rows_ahead, options_.max_rows);
  for (const auto& r : prompts_in_turn()) {
    const int rows = rows_for(*r, plan);
    if (rows <= 0) continue;
    this->plan(r, rows, plan);
    r->share->prompt_turn = step_;
  }
  if (counted_.preemptions == preemptions) admit(plan);
  ScheduledBatch out{.account = add_drafts(plan)};
  for (const Plan::Part& part : plan.parts) schedule(part, out);
  if (device_samples) set_sampling(out);
  launch(out);
  return out;
}

void Scheduler::fail_all(const Status& status) {
  doubtful_ = true;
  const auto fail = [&](const auto& r) {
    if (r->done()) return;
    r->finish = FinishReason::kError;
    try {
      r->error = status;
    } catch (const std::bad_alloc&) {
      r->error = {StatusCode::kOutOfMemory, "out of memory"};  // so short a text needs no memory
    }
  };
  std::ranges::for_each(running_, fail);
  waiting_.for_each(fail);
}

// True if the request is over; it gives back all that it had.
bool Scheduler::ended(Request& r) {
  if (!r.done() && r.cancel.stop_requested()) r.finish = FinishReason::kCancelled;
  if (!r.done()) return false;
  doubtful_ |= r.error.code() == StatusCode::kInternal;  // a logit that is not finite
  if (speculator_ != nullptr) speculator_->ended(r);
  if (!doubtful_) cache_blocks(r);
  release(r);
  if (--r.share->requests == 0) clients_.erase(r.client);
  return true;
}

void Scheduler::collect() {
  erase_running([&](const auto& r) {
    const bool over = ended(*r);
    if (over) --r->share->running;
    return over;
  });
  waiting_.erase_if([&](const auto& r) { return ended(*r); });
  if (!std::exchange(doubtful_, false)) return;
  for (const auto& r : running_) r->pages.cached_blocks = 0;
  pages_.forget();
}

EngineStats Scheduler::stats() const {
  EngineStats s = counted_;
  s.running = static_cast<int>(running_.size());
  s.waiting = static_cast<int>(waiting_.size());
  s.clients = static_cast<int>(clients_.size());
  s.full = pages_.full_use(), s.window = pages_.window_use();
  return s;
}

}  // namespace moesaic
