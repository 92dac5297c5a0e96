#include "engine/speculator.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/seconds.h"
#include "core/accepted_prefix.h"
#include "drafting/draft_length.h"

namespace moesaic {
namespace {

constexpr double kDrafterRate = 0.1;  // weight of a new measurement of a drafter's time
constexpr int kProbe = 2;             // tokens of a draft that is only tried
// After a rest drafts are tried one after the other, once a head has taken in some rows to look back on.
constexpr int kTrialDrafts = 4, kTrialRows = 8;
// A stop of a device's pipeline is taken to cost this share of the step until a step without one was
// measured. Because of that, drafts that save nothing are soon at rest, and then such steps are measured.
constexpr double kUnknownStop = 0.05;

using Clock = std::chrono::steady_clock;

// So many tokens may be guessed behind those that will be known once all that was launched has run, at most:
// one more is sampled from the last row.
int room(const Request& r) {
  const int known = std::max(static_cast<int>(r.tokens.size()), r.computed + 1);
  return std::max(0, r.limit - known - 1);
}

// A request's rows in a step that was just launched.
struct LaunchedRows {
  std::shared_ptr<Request> request;
  int sequence = 0;        // its index in the step
  int first_position = 0;  // the position of the first row, at least
  int rows = 0;            // rows that hold whatever is sampled
  bool samples = false;    // a token is sampled behind the last of them
  int drafted = 0;         // rows of a draft, which follow them
  int moves = 0;           // the device may move it on by so many rows
  int untaken = 0;         // tokens of the step before that the host has not taken yet, at least
};

LaunchedRows launched_rows(const Batch& step, int sequence, const std::shared_ptr<Request>& request) {
  const Sequence& s = step.sequences[static_cast<size_t>(sequence)];
  const int wanted = wanted_rows(step, sequence).count, drafted = std::max(0, wanted - 1);
  return {.request = request,
          .sequence = sequence,
          .first_position = s.context - s.rows,
          .rows = s.rows - drafted,
          .samples = wanted > 0,
          .drafted = drafted,
          .moves = most_moved(step, sequence),
          .untaken = request->draft.follows_token() ? 1 : 0};
}

// Describes a draft of so many tokens behind these rows.
SequenceAhead draft_behind(const LaunchedRows& l, int tokens) {
  const Request& r = *l.request;
  SequenceAhead ahead{.sequence = l.sequence, .drafts = tokens, .full_pages = r.pages.full};
  // In a prompt, the token behind the last row is sampled, or known as well.
  const int known = l.rows - (l.samples ? 1 : 0);
  for (int i = 0; i < known; ++i)
    ahead.next_tokens.push_back(r.tokens[static_cast<size_t>(l.first_position + 1 + i)]);
  for (int i = 0; tokens > 0 && i < tokens + l.moves + l.drafted; ++i)
    ahead.sampling.push_back(r.sampler->draft_sampling(l.untaken + 1 + i));
  return ahead;
}

// Shortens a draft behind these rows to what the step that verifies it can sample on the device.
int device_room(const LaunchedRows& l, int tokens) {
  const int before = l.untaken + l.moves + 1 + l.drafted;
  while (tokens > 0 && !l.request->sampler->device_sampling(before + tokens)) --tokens;
  return tokens;
}

// Returns the chances of each draft's first 1, 2, .. tokens.
std::vector<std::vector<double>> reach_of(std::span<Request* const> requests,
                                          std::span<const DraftTask> tasks) {
  std::vector<std::vector<double>> reach;
  for (size_t i = 0; i < tasks.size(); ++i)
    reach.push_back(
        requests[i]->drafted.acceptance.reach(tasks[i].grade, static_cast<int>(tasks[i].draft.size())));
  return reach;
}

// Cuts the longest drafts until all of them have as many tokens as there are free rows. Of those that are cut
// the ones from `turn` on get the rows that are left over. Returns whose turn it is then.
size_t shorten(std::vector<int>& lengths, int free_rows, size_t turn) {
  const auto sum = [&](int most) {
    int tokens = 0;
    for (const int length : lengths) tokens += std::min(length, most);
    return tokens;
  };
  int most = kMostDraft;
  while (most > 0 && sum(most) > free_rows) --most;
  int left = free_rows - sum(most);
  const size_t first = turn;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const size_t at = (first + i) % lengths.size();
    if (lengths[at] <= most) continue;
    if (left > 0) turn = at + 1;
    lengths[at] = most + (left-- > 0 ? 1 : 0);
  }
  return turn;
}

}  // namespace

// Compares the request's watched draft with the tokens that have come since the last call.
void Speculator::follow(Request& r) {
  DraftHistory& h = r.drafted;
  if (!std::exchange(h.begun, true)) h.acceptance = all_.as_prior();
  WatchedDraft& w = h.watched;
  const int known = std::min(static_cast<int>(w.tokens.size()), static_cast<int>(r.tokens.size()) - w.begin),
            right = accepted_prefix(w.tokens, std::span(r.tokens).subspan(static_cast<size_t>(w.begin)));
  for (; w.checked < known; ++w.checked) {
    h.acceptance.add(w.grade, w.checked, w.checked < right);
    all_.add(w.grade, w.checked, w.checked < right);
    if (w.checked == right) {
      w = {};
      return;
    }
  }
}

std::vector<DraftTask> Speculator::ask(std::span<Request* const> requests, std::span<const int> most) {
  std::vector<DraftTask> tasks;
  for (size_t i = 0; i < requests.size(); ++i) {
    const Request& r = *requests[i];
    DraftTask& task = tasks.emplace_back(DraftTask{.request = r.id,
                                                   .tokens = r.tokens,
                                                   .prompt_tokens = r.prompt_tokens,
                                                   .salt = r.pages.salt,
                                                   .most = most[i]});
    if (!drafter_->is_costly()) continue;
    task.full_pages = r.pages.full;
    for (int k = 0; k < task.most; ++k) task.sampling.push_back(r.sampler->draft_sampling(k));
  }
  const Clock::time_point begin = Clock::now();
  const Status status = drafter_->draft(tasks);
  if (drafter_->is_costly()) {
    size_t tokens = 0;
    bool known = computed_rows_ <= static_cast<int>(tasks.size()) * (kMostDraft + 1);
    for (size_t i = 0; i < tasks.size(); ++i) {
      tokens += tasks[i].draft.size();
      known &= drafter_->follows_steps() || tasks[i].draft.empty() || requests[i]->drafted.stats.drafts > 0;
    }
    measure_drafter(computed_rows_, tokens, known, seconds_since(begin));
  }
  if (!status.ok()) fail_once(status);
  // A drafter that fails has no guesses: the requests go on without.
  for (DraftTask& task : tasks) {
    if (!status.ok()) task.draft.clear();
    task.draft.resize(std::min(task.draft.size(), static_cast<size_t>(task.most)));
  }
  for (size_t i = 0; i < requests.size(); ++i) watch(*requests[i], tasks[i].draft, tasks[i].grade);
  return tasks;
}

void Speculator::fail_once(const Status& status) {
  if (!std::exchange(failed_, true))
    log(LogLevel::kWarning, drafter_->name() + " gives no drafts: " + status.message());
}

void Speculator::watch(Request& r, std::span<const int32_t> draft, int grade) {
  WatchedDraft& watched = r.drafted.watched;
  if (watched.is_over() && !draft.empty())
    watched = {
        .tokens = {draft.begin(), draft.end()}, .grade = grade, .begin = static_cast<int>(r.tokens.size())};
}

// A head takes in rows before it drafts, and at most steps it is asked for nothing else: the time of a token
// is what comes on top. After a prompt's rows, or before a model has computed them, that is not known.
void Speculator::measure_drafter(int rows, size_t tokens, bool known, double seconds) {
  const bool follows = drafter_->follows_steps();
  if (follows && tokens == 0) return spend_work(rows, seconds);
  known &= tokens > 0;
  double own = 0;
  if (follows) own = work_.seconds(rows);
  if (known) {
    const double each = std::max(0.0, seconds - own) / static_cast<double>(tokens);
    if (token_seconds_ == 0) token_seconds_ = each;
    token_seconds_ +=
        kDrafterRate * (std::clamp(each, token_seconds_ / 2, token_seconds_ * 2) - token_seconds_);
  }
  budget_.spend(known && follows ? own + static_cast<double>(tokens) * token_seconds_ : seconds);
}

// Averages, since other programs stop this one now and then for longer than all of the work takes.
void Speculator::spend_work(int amount, double seconds) {
  work_.add(amount, seconds);
  budget_.spend(work_.seconds(amount));
}

bool Speculator::is_trial() const { return trial_ >= 0 && trial_ < kTrialDrafts; }

bool Speculator::may_pay(int rows, int free_rows) const {
  if (token_seconds_ == 0 || plain_.seconds(rows) == 0) return true;
  const std::vector<double> sure(kProbe, 1.0);
  return choose(std::span(&sure, 1), rows, free_rows).front() > 0;
}

// One request at a time is tried, since rows of many drafts that are only tried would cost as much as a step.
// Drafts that could not pay are tried all the same once in a while, as their cost may have been measured
// badly. It is known what drafts are worth once a step without them was measured.
void Speculator::add_probes(std::span<Request* const> requests, int rows, int free_rows,
                            std::vector<int>& lengths) const {
  if (draft_tokens_ > 0 || !drafter_->is_costly() || !plain_.knows(rows)) return;
  const bool hopeless = !may_pay(rows, free_rows);
  int most_idle = -1;
  for (size_t i = 0; i < requests.size(); ++i) {
    const DraftHistory& h = requests[i]->drafted;
    const int patience = hopeless ? DraftHistory::kMostPatience : is_trial() ? 0 : h.patience;
    if (lengths[i] > 0 || h.idle < patience) continue;
    if (most_idle < 0 || h.idle > requests[static_cast<size_t>(most_idle)]->drafted.idle)
      most_idle = static_cast<int>(i);
  }
  if (most_idle < 0) return;
  const auto chosen = static_cast<size_t>(most_idle);
  lengths[chosen] = std::min(kProbe, room(*requests[chosen]));
}

void Speculator::count_probes(std::span<Request* const> requests, std::span<const int> lengths) {
  for (size_t i = 0; i < requests.size(); ++i) {
    DraftHistory& h = requests[i]->drafted;
    const bool probes = lengths[i] > 0 && h.idle >= h.patience;
    if (lengths[i] == 0) {
      ++h.idle;
    } else {
      h.patience =
          probes ? std::min(2 * h.patience, DraftHistory::kMostPatience) : DraftHistory::kFirstPatience;
      h.idle = 0;
    }
  }
}

std::vector<int> Speculator::choose(std::span<const std::vector<double>> reach, int rows,
                                    int free_rows) const {
  return choose_draft_lengths({.plain = &plain_,
                               .drafted = &drafted_,
                               .rows = rows,
                               .free_rows = free_rows,
                               .token_seconds = token_seconds_,
                               .reach = reach});
}

// A drafter that costs nothing is asked for all that it has.
std::vector<int> Speculator::ask_for(std::span<Request* const> requests, int rows, int free_rows) const {
  std::vector<int> lengths;
  const int most = draft_tokens_ > 0 ? draft_tokens_ : kMostDraft;
  for (const Request* r : requests) lengths.push_back(std::min(room(*r), most));
  if (draft_tokens_ > 0 || !drafter_->is_costly()) return lengths;
  std::vector<std::vector<double>> reach;
  for (size_t i = 0; i < requests.size(); ++i)
    reach.push_back(requests[i]->drafted.acceptance.reach(0, lengths[i]));
  return choose(reach, rows, free_rows);
}

StepAccount Speculator::draft(std::span<Request* const> requests, const NextStep& step,
                              const Reserve& reserve) {
  rows_ = step.rows;
  drafting_seconds_ = 0;
  const bool begun = std::exchange(begun_, false);
  int drafted = step.ahead_rows;
  if (rests_) {
    for (Request* r : requests) r->draft.withdraw_proposal();
    drafter_->skip();
  } else if (begun) {
    drafted += take_guesses(requests, step.free_rows, reserve);
  } else if (!requests.empty() || drafter_->follows_steps()) {
    const Clock::time_point begin = Clock::now();
    drafted += draft_now(requests, step.rows, step.free_rows, reserve);
    drafting_seconds_ = seconds_since(begin);
    if (!drafter_->is_costly()) spend_work(static_cast<int>(requests.size()), drafting_seconds_);
  }
  if (drafted > 0 && is_trial()) ++trial_;
  const StepAccount account = spend_rows(step.rows, drafted);
  settle(static_cast<int>(requests.size()) + step.continued);
  return account;
}

// Takes the drafts that were made behind the last step.
int Speculator::take_guesses(std::span<Request* const> requests, int free_rows,
                             const Reserve& reserve) const {
  std::vector<int> lengths;
  for (Request* r : requests)
    lengths.push_back(std::min(static_cast<int>(r->draft.proposal(r->tokens.size()).size()), room(*r)));
  shorten(lengths, free_rows, turn_);
  int drafted = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    Request* const r = requests[i];
    const std::span<const int32_t> made = r->draft.proposal(r->tokens.size());
    const int tokens = reserve(*r, r->computed, lengths[i]);
    r->draft.propose({made.begin(), made.begin() + tokens}, r->tokens.size());
    drafted += tokens;
  }
  return drafted;
}

std::vector<int> Speculator::lengths_of(std::span<Request* const> requests, int rows, int free_rows) {
  for (Request* r : requests) follow(*r);
  std::vector<int> lengths = ask_for(requests, rows, free_rows);
  add_probes(requests, rows, free_rows, lengths);
  if (draft_tokens_ > 0 || drafter_->is_costly()) turn_ = shorten(lengths, free_rows, turn_);
  count_probes(requests, lengths);
  return lengths;
}

int Speculator::draft_now(std::span<Request* const> requests, int rows, int free_rows,
                          const Reserve& reserve) {
  std::vector<int> lengths = lengths_of(requests, rows, free_rows);
  for (size_t i = 0; drafter_->is_costly() && i < lengths.size(); ++i)
    lengths[i] = reserve(*requests[i], requests[i]->computed, lengths[i]);
  std::vector<DraftTask> tasks = ask(requests, lengths);
  lengths.clear();
  for (const DraftTask& task : tasks) lengths.push_back(static_cast<int>(task.draft.size()));
  if (draft_tokens_ == 0 && !drafter_->is_costly())
    lengths = choose(reach_of(requests, tasks), rows, free_rows);
  int drafted = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    Request& r = *requests[i];
    tasks[i].draft.resize(static_cast<size_t>(reserve(r, r.computed, lengths[i])));
    drafted += static_cast<int>(tasks[i].draft.size());
    r.draft.propose(std::move(tasks[i].draft), r.tokens.size());
  }
  return drafted;
}

std::optional<BegunDraft> Speculator::draft_ahead(const Batch& step,
                                                  std::span<const std::shared_ptr<Request>> requests,
                                                  int free_rows, const Reserve& reserve) {
  if (rests_ || !drafter_->drafts_ahead()) return {};
  const auto asks = [](const LaunchedRows& l) {
    return l.samples && l.request->speculate && room(*l.request) > 0;
  };
  std::vector<LaunchedRows> launched;
  std::vector<Request*> asking;
  for (size_t i = 0; i < requests.size(); ++i) {
    launched.push_back(launched_rows(step, static_cast<int>(i), requests[i]));
    if (asks(launched.back())) asking.push_back(requests[i].get());
  }
  // They follow from the acceptance of the steps whose tokens are known.
  const std::vector<int> lengths = lengths_of(asking, static_cast<int>(asking.size()), free_rows);
  BegunDraft begun{.rows = step.rows()};
  std::vector<SequenceAhead> ahead;
  auto length = lengths.begin();
  for (const LaunchedRows& l : launched) {
    const int tokens = asks(l) ? reserve(*l.request, l.first_position, device_room(l, *length++)) : 0;
    ahead.push_back(draft_behind(l, tokens));
    if (l.samples) begun.parts.push_back({l.request, tokens});
  }
  const Result<int64_t> status = drafter_->begin_draft(ahead, step);
  if (!status.ok()) return fail_once(status.status()), std::nullopt;
  begun.begun = status.value();
  for (const BegunDraft::Part& part : begun.parts) part.request->draft.begin_behind(part.tokens);
  begun_ = true;
  return begun;
}

Result<double> Speculator::take(const BegunDraft& begun) {
  size_t wanted = 0;
  for (const BegunDraft::Part& part : begun.parts) wanted += static_cast<size_t>(part.tokens);
  std::vector<int32_t> tokens(wanted);
  ASSIGN_OR_RETURN(const double seconds, drafter_->finish_draft(begun.begun, tokens));
  auto at = tokens.begin();
  for (const auto& [request, count] : begun.parts) {
    const std::span<const int32_t> made(at, at + count);
    at += count;
    if (request->done()) continue;
    const auto guessed = static_cast<size_t>(std::find(made.begin(), made.end(), -1) - made.begin());
    watch(*request, made.first(guessed), 0);
    request->draft.take_behind(made, request->tokens.size());
  }
  measure_drafter(begun.rows, wanted, begun.rows <= static_cast<int>(begun.parts.size()) * (kMostDraft + 1),
                  seconds);
  return seconds;
}

// The price follows from what is known of such steps. The time of this one is known when it has run.
StepAccount Speculator::spend_rows(int rows, int drafted) {
  StepAccount account{.rows = rows, .drafted = drafted};
  if (drafted == 0) return account;
  double seconds = drafted_.seconds(rows + drafted);
  if (!(seconds > 0)) seconds = plain_.seconds(rows + drafted);
  account.spent = std::max(0.0, seconds - plain_.seconds(rows));
  budget_.spend(account.spent);
  return account;
}

// A single step counts for at most twice what was expected, as other programs stop one now and then.
void Speculator::measured(const StepAccount& account, int rows, StepKind kind, double seconds) {
  budget_.earn(seconds);
  if (rows > 0 && kind == StepKind::kPlain) plain_.add(rows, seconds);
  if (rows > 0 && kind == StepKind::kDrafted) drafted_.add(rows, seconds);
  if (rows > 0 && kind == StepKind::kStopped) measured_stop(rows, seconds);
  if (rows > account.rows && account.drafted > 0) {
    const double plain = plain_.seconds(account.rows);
    budget_.spend(std::clamp(seconds - plain, 0.0, 2 * account.spent + plain) - account.spent);
  }
}

void Speculator::measured_stop(int rows, double seconds) {
  if (!plain_.is_measured(rows)) plain_.add(rows, (1 - kUnknownStop) * seconds);
  const double plain = plain_.seconds(rows);
  budget_.spend(std::clamp(seconds - plain, 0.0, plain));
}

void Speculator::settle(int requests) {
  if (draft_tokens_ > 0) return;
  budget_.settle(plain_.seconds(std::max(1, requests)));
  if (std::exchange(rests_, budget_.rests()) && !rests_) trial_ = -kTrialRows;
  if (trial_ < 0) ++trial_;
}

// The first token of such a draft is the one in flight, which has to be right for the others to be of use.
bool Speculator::would_draft(std::span<Request* const> requests, int rows, int free_rows) {
  if (rests_) return false;
  for (Request* r : requests) follow(*r);
  std::vector<int> lengths = ask_for(requests, rows, free_rows);
  if (draft_tokens_ > 0) shorten(lengths, free_rows, turn_);
  const auto any = [&] { return std::ranges::any_of(lengths, [](int length) { return length > 0; }); };
  if (drafter_->is_costly()) {
    add_probes(requests, rows, free_rows, lengths);
    if (!any()) count_probes(requests, lengths);
    return any();
  }
  for (int& length : lengths) length = std::min(length + 1, kMostDraft);
  const std::vector<DraftTask> tasks = ask(requests, lengths);
  if (draft_tokens_ > 0)
    return std::ranges::any_of(tasks, [](const DraftTask& task) { return task.draft.size() > 1; });
  std::vector<std::vector<double>> reach = reach_of(requests, tasks);
  for (std::vector<double>& chances : reach) {
    if (!chances.empty()) chances.erase(chances.begin());
  }
  lengths = choose(reach, rows, free_rows);
  return any();
}

void Speculator::computed(std::span<const ComputedRows> rows, bool begun) {
  computed_rows_ = 0;
  for (const ComputedRows& r : rows) computed_rows_ += r.rows;
  drafter_->computed(rows, begun);
}

// A token more is worth the time of a token of a step without drafts.
void Speculator::verified(Request& r, const DraftState::Verified& draft) {
  stats_.add(draft.drafted, draft.accepted);
  r.drafted.stats.add(draft.drafted, draft.accepted);
  if (rows_ > 0) budget_.save(draft.accepted * plain_.seconds(rows_) / rows_);
}

void Speculator::ended(Request& r) {
  follow(r);
  const bool is_private = !r.pages.salt.empty();
  drafter_->end(r.id, r.tokens, is_private ? static_cast<int>(r.tokens.size()) : r.prompt_tokens);
}

}  // namespace moesaic
