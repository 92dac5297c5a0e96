// Clients take turns: whose request begins next, whose yields, whose prompt gets rows first.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/scheduler.h"

namespace moesaic {
namespace {

int at_work(const std::shared_ptr<Request>& of_client) { return of_client->share->running; }

bool had_its_turn(const Request& r) {
  const int tokens = static_cast<int>(r.tokens.size());
  return r.turn_steps >= std::max(Scheduler::kTurn, tokens / Scheduler::kTurnTokens);
}

}  // namespace

void Scheduler::submit(std::shared_ptr<Request> request) {
  auto& share = clients_[request->client];
  if (share == nullptr) share = std::make_shared<ClientShare>();
  ++share->requests;
  request->share = share;
  const std::string client = request->client;
  const uint64_t id = request->id;
  waiting_.push(client, id, std::move(request));
}

// Returns null if none may begin in this step. A request that yielded while its token is in flight begins
// later: what the step in flight did for it counts as not computed until its token is taken.
const std::shared_ptr<Request>* Scheduler::next_waiting() const {
  const std::shared_ptr<Request>* next = waiting_.next(at_work);
  return next == nullptr || (*next)->draft.token_in_flight() != nullptr ? nullptr : next;
}

std::shared_ptr<Request> Scheduler::take_next() { return *waiting_.pop(at_work); }

void Scheduler::order_running() {
  const auto age = [](const auto& r) { return r->begun_as; };
  if (!std::ranges::is_sorted(running_, {}, age)) std::ranges::sort(running_, {}, age);
  if (clients_.size() < 2) return;
  std::unordered_map<const ClientShare*, int> counted;
  for (const auto& r : running_) r->rank = counted[r->share.get()]++;
  std::ranges::stable_sort(running_, {}, [](const auto& r) { return r->rank; });
}

bool Scheduler::has_room_for(const Request& request,
                             std::span<const std::shared_ptr<Request>> yielding) const {
  const auto running = static_cast<int>(running_.size() - yielding.size());
  if (running >= options_.max_batch) return false;
  std::vector<const PageTable*> tables;
  for (const auto& r : yielding) tables.push_back(&r->pages);
  return pages_.would_fit(request.pages, request.tokens, options_.prefix_cache && request.reuse_prefix,
                          tables, running);
}

// Returns the requests that have to yield for this one to begin: none if there is room. Nothing: it has to
// wait. The last requests of clients that keep as many places as its own then has yield; for a client without
// a place also those that have had their turn, the longest at work first.
std::optional<std::vector<std::shared_ptr<Request>>> Scheduler::who_yields_to(const Request& request) const {
  const int own = request.share->running;
  std::vector<std::shared_ptr<Request>> candidates;
  for (auto r = running_.rbegin(); r != running_.rend() && (*r)->rank > own; ++r) candidates.push_back(*r);
  for (const auto& r : running_) {
    if (own == 0 && r->rank == 0 && had_its_turn(*r)) candidates.push_back(r);
  }
  const auto enough = [&](size_t count) { return has_room_for(request, std::span(candidates).first(count)); };
  if (!enough(candidates.size())) return {};
  // More that yield never leave less room.
  size_t least = 0, most = candidates.size();
  while (least < most) {
    const size_t middle = (least + most) / 2;
    if (enough(middle)) {
      most = middle;
    } else {
      least = middle + 1;
    }
  }
  candidates.resize(least);
  return candidates;
}

// Clients that have less than others get their places before the step's rows are given out. Clients that have
// as much as others wait for a place as everybody does (admit).
void Scheduler::admit_newcomers() {
  if (clients_.size() < 2) return;
  for (auto next = next_waiting(); next != nullptr; next = next_waiting()) {
    const auto yielding = who_yields_to(**next);
    if (!yielding || (yielding->empty() && (*next)->share->running > 0)) return;
    if ((*next)->yielded_in == step_) return;
    const std::shared_ptr<Request> newcomer = *next;
    for (const auto& r : *yielding) {
      preempt(r);
      std::erase(running_, r);
    }
    MOESAIC_CHECK(begin(*newcomer));  // it calls back: if that throws, the request still waits
    waiting_.pop([&](const auto& first) { return first == newcomer ? -1 : at_work(first); });
    start(newcomer);
    order_running();
  }
}

void Scheduler::check() const {
  check_shares();
  std::vector<const PageTable*> tables;
  for (const auto& r : running_) tables.push_back(&r->pages);
  pages_.check(tables);
}

void Scheduler::check_shares() const {
  std::unordered_map<const ClientShare*, ClientShare> counted;
  for (const auto& r : running_) ++counted[r->share.get()].running, ++counted[r->share.get()].requests;
  waiting_.for_each([&](const auto& r) { ++counted[r->share.get()].requests; });
  MOESAIC_CHECK(counted.size() == clients_.size());
  for (const auto& [client, share] : clients_)
    MOESAIC_CHECK(counted[share.get()].running == share->running &&
                  counted[share.get()].requests == share->requests);
}

}  // namespace moesaic
