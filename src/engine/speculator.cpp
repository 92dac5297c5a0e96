#include "engine/speculator.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <utility>

#include "base/log.h"
#include "speculation/draft_length.h"

namespace moesaic {
namespace {

constexpr double kDrafterRate = 0.1;  // at which a drafter's time is followed
constexpr int kProbe = 2;             // tokens of a draft that is only tried
// Asking for eight requests takes 20 us of tiny's step of 1.5 ms on a CPU. From kCrowd requests on, after
// kQuiet steps in which no draft was worth its rows, every kRest-th step asks.
constexpr int kCrowd = 4, kQuiet = 16, kRest = 8;

// Tokens behind the last known one that may be guessed: one more is sampled from the last row.
int room(const Request& r) { return std::max(0, r.limit - static_cast<int>(r.tokens.size()) - 1); }

// Of as many drafts as there are free rows.
void shorten(std::vector<int>& lengths, int free_rows) {
  for (int& length : lengths) {
    length = std::min(length, std::max(0, free_rows));
    free_rows -= length;
  }
}

}  // namespace

bool Speculator::rests(std::span<Request* const> requests) {
  if (draft_tokens_ > 0 || drafter_->is_costly() || std::ssize(requests) < kCrowd) return false;
  return ++quiet_ > kQuiet && quiet_ % kRest != 0;
}

// Takes note of the tokens that have come since the last call.
void Speculator::follow(Request& r) {
  DraftHistory& h = r.drafted;
  if (!std::exchange(h.begun, true)) h.acceptance = all_.as_prior();
  WatchedDraft& w = h.watched;
  while (!w.is_over() && w.begin + w.checked < std::ssize(r.tokens)) {
    const bool right = w.tokens[w.checked] == r.tokens[w.begin + w.checked];
    h.acceptance.add(w.grade, w.checked, right);
    all_.add(w.grade, w.checked, right);
    right ? static_cast<void>(++w.checked) : static_cast<void>(w = {});
  }
}

std::vector<DraftTask> Speculator::ask(std::span<Request* const> requests, std::span<const int> most) {
  std::vector<DraftTask> tasks;
  for (size_t i = 0; i < requests.size(); ++i) {
    const Request& r = *requests[i];
    DraftTask& task = tasks.emplace_back(
        DraftTask{.request = r.id, .tokens = r.tokens, .prompt_tokens = r.prompt_tokens, .most = most[i]});
    if (!drafter_->is_costly()) continue;
    task.full_pages = r.pages.full;
    for (int k = 0; k < task.most; ++k) task.sampling.push_back(r.sampler->draft_sampling(k));
  }
  const auto begin = std::chrono::steady_clock::now();
  const Status status = drafter_->draft(tasks);
  measure_drafter(tasks, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  if (!status.ok() && !std::exchange(failed_, true))
    log(LogLevel::kWarning, drafter_->name() + " gives no drafts: " + status.message());
  // A drafter that fails has no guesses: the requests go on without.
  for (DraftTask& task : tasks) {
    if (!status.ok()) task.draft.clear();
    task.draft.resize(std::min(task.draft.size(), static_cast<size_t>(task.most)));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    const DraftTask& task = tasks[i];
    WatchedDraft& watched = requests[i]->drafted.watched;
    if (watched.is_over() && !task.draft.empty())
      watched = {.tokens = task.draft, .grade = task.grade, .begin = static_cast<int>(task.tokens.size())};
  }
  return tasks;
}

void Speculator::measure_drafter(std::span<const DraftTask> tasks, double seconds) {
  size_t tokens = 0;
  for (const DraftTask& task : tasks) tokens += task.draft.size();
  if (!drafter_->is_costly() || tokens == 0 || after_prompt_) return;
  const double each = seconds / static_cast<double>(tokens);
  if (token_seconds_ == 0) token_seconds_ = each;
  token_seconds_ +=
      kDrafterRate * (std::clamp(each, token_seconds_ / 2, token_seconds_ * 2) - token_seconds_);
}

bool Speculator::may_pay(int rows, int free_rows) const {
  if (token_seconds_ == 0 || plain_.seconds(rows) == 0) return true;
  const std::vector<double> sure(kProbe, 1.0);
  return choose(std::span(&sure, 1), rows, free_rows).front() > 0;
}

// One that could not pay is tried all the same once in a while, as its cost may have been measured badly.
void Speculator::add_probes(std::span<Request* const> requests, int rows, int free_rows,
                            std::vector<int>& lengths) const {
  if (draft_tokens_ > 0 || !drafter_->is_costly()) return;
  const bool hopeless = !may_pay(rows, free_rows);
  for (size_t i = 0; i < requests.size(); ++i) {
    const DraftHistory& h = requests[i]->drafted;
    const int patience = hopeless ? DraftHistory::kMostPatience : h.patience;
    if (lengths[i] == 0 && h.idle >= patience) lengths[i] = std::min(kProbe, room(*requests[i]));
  }
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

// A drafter that costs nothing is asked for as much as it has.
std::vector<int> Speculator::ask_for(std::span<Request* const> requests, int rows, int free_rows) const {
  std::vector<int> lengths;
  const int most = draft_tokens_ > 0 ? draft_tokens_ : kMostDraft;
  for (const Request* r : requests) lengths.push_back(std::min(room(*r), most));
  if (draft_tokens_ > 0) shorten(lengths, free_rows);
  if (draft_tokens_ > 0 || !drafter_->is_costly()) return lengths;
  std::vector<std::vector<double>> reach;
  for (size_t i = 0; i < requests.size(); ++i)
    reach.push_back(requests[i]->drafted.acceptance.reach(0, lengths[i]));
  return choose(reach, rows, free_rows);
}

void Speculator::draft(std::span<Request* const> requests, int rows, int free_rows, const Reserve& reserve) {
  if ((requests.empty() && !drafter_->follows_steps()) || rests(requests)) return;
  for (Request* r : requests) follow(*r);
  std::vector<int> lengths = ask_for(requests, rows, free_rows);
  add_probes(requests, rows, free_rows, lengths);
  shorten(lengths, drafter_->is_costly() ? free_rows : INT_MAX);
  count_probes(requests, lengths);
  for (size_t i = 0; drafter_->is_costly() && i < lengths.size(); ++i)
    lengths[i] = reserve(*requests[i], lengths[i]);
  std::vector<DraftTask> tasks = ask(requests, lengths);
  lengths.clear();
  for (const DraftTask& task : tasks) lengths.push_back(static_cast<int>(task.draft.size()));
  if (draft_tokens_ == 0 && !drafter_->is_costly()) {
    std::vector<std::vector<double>> reach;
    for (size_t i = 0; i < tasks.size(); ++i)
      reach.push_back(requests[i]->drafted.acceptance.reach(tasks[i].grade, lengths[i]));
    lengths = choose(reach, rows, free_rows);
  }
  for (size_t i = 0; i < tasks.size(); ++i) {
    tasks[i].draft.resize(static_cast<size_t>(reserve(*requests[i], lengths[i])));
    requests[i]->draft = std::move(tasks[i].draft);
    if (!requests[i]->draft.empty()) quiet_ = 0;
  }
}

// A draft's first token is then the one in flight, which has to be right for the others to be of use.
bool Speculator::would_draft(std::span<Request* const> requests, int rows, int free_rows) {
  if (rests(requests)) return false;
  for (Request* r : requests) follow(*r);
  std::vector<int> lengths = ask_for(requests, rows, free_rows);
  const auto none = [](int length) { return length == 0; };
  if (drafter_->is_costly()) {
    add_probes(requests, rows, free_rows, lengths);
    const bool drafts = !std::all_of(lengths.begin(), lengths.end(), none);
    if (!drafts) count_probes(requests, lengths);
    return drafts;
  }
  for (int& length : lengths) length = std::min(length + 1, kMostDraft);
  const std::vector<DraftTask> tasks = ask(requests, lengths);
  std::vector<std::vector<double>> reach;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const auto tokens = static_cast<int>(tasks[i].draft.size());
    if (draft_tokens_ > 0 && tokens > 1) return true;
    reach.push_back(requests[i]->drafted.acceptance.reach(tasks[i].grade, tokens));
    if (tokens > 0) reach.back().erase(reach.back().begin());
  }
  lengths = choose(reach, rows, free_rows);
  if (draft_tokens_ > 0 || std::all_of(lengths.begin(), lengths.end(), none)) return false;
  quiet_ = 0;  // draft() is called next
  return true;
}

void Speculator::computed(std::span<const ComputedRows> rows) {
  after_prompt_ =
      std::any_of(rows.begin(), rows.end(), [](const ComputedRows& r) { return r.rows > kMostDraft + 1; });
  drafter_->computed(rows);
}

void Speculator::verified(Request& r) {
  const auto tokens = static_cast<int>(r.draft.size());
  stats_.add(tokens, r.accepted);
  r.drafted.stats.add(tokens, r.accepted);
}

void Speculator::ended(Request& r) {
  follow(r);
  drafter_->end(r.id, r.tokens, r.prompt_tokens);
}

}  // namespace moesaic
