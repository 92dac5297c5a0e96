#include "drafting/draft_state.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "core/accepted_prefix.h"

namespace moesaic {

const DraftState::InFlight* DraftState::running() const {
  const auto* ahead = std::get_if<Ahead>(&state_);
  return ahead != nullptr ? &ahead->running : std::get_if<InFlight>(&state_);
}

std::span<const int32_t> DraftState::proposal(size_t tokens) const {
  const auto* proposed = std::get_if<Proposed>(&state_);
  if (proposed == nullptr || proposed->tokens != tokens) return {};
  return proposed->draft;
}

const DraftState::Place* DraftState::token_in_flight() const {
  const InFlight* step = running();
  return step != nullptr && step->place.token ? &step->place : nullptr;
}

bool DraftState::may_continue() const {
  return token_in_flight() != nullptr && running()->behind && *running()->behind + unsure() > 0;
}

int DraftState::accepted(std::span<const int32_t> tokens) const {
  const InFlight* step = running();
  return step == nullptr ? 0 : accepted_prefix(step->draft, tokens.subspan(step->tokens));
}

void DraftState::propose(std::vector<int32_t> draft, size_t tokens) {
  MOESAIC_CHECK(is_free());
  state_ = None();
  if (!draft.empty()) state_ = Proposed{std::move(draft), tokens};
}

void DraftState::withdraw_proposal() {
  if (is_free()) state_ = None();
}

void DraftState::launch(const Place& place, size_t tokens) {
  const std::span<const int32_t> draft = proposal(tokens);
  InFlight step{.place = place, .draft = {draft.begin(), draft.end()}, .tokens = tokens};
  if (auto* running = std::get_if<InFlight>(&state_)) {
    state_ = Ahead{std::move(*running), std::move(step)};
  } else {
    MOESAIC_CHECK(is_free());
    state_ = std::move(step);
  }
}

void DraftState::forget_token() { std::get<InFlight>(state_).place.token.reset(); }

void DraftState::begin_behind(int drafted) {
  auto* ahead = std::get_if<Ahead>(&state_);
  (ahead != nullptr ? ahead->launched : std::get<InFlight>(state_)).behind = drafted;
}

void DraftState::forget_behind() {
  if (auto* step = std::get_if<InFlight>(&state_)) step->behind.reset();
}

DraftState::Verified DraftState::take(std::span<const int32_t> tokens) {
  if (is_free()) return {};
  auto* ahead = std::get_if<Ahead>(&state_);
  const Verified verified{.drafted = static_cast<int>(running()->draft.size()),
                          .accepted = accepted(tokens),
                          .behind = (ahead != nullptr ? ahead->launched : *running()).behind.value_or(0)};
  if (ahead == nullptr) return state_ = None(), verified;
  ahead->launched.tokens = tokens.size();
  state_ = InFlight(std::move(ahead->launched));
  return verified;
}

void DraftState::take_behind(std::span<const int32_t> draft, size_t tokens) {
  if (auto* step = std::get_if<InFlight>(&state_)) {
    // The step was launched with all of the draft. What could not be chosen was computed as token 0.
    step->draft.assign(draft.begin(), draft.end());
    std::ranges::replace(step->draft, -1, 0);
  } else {
    propose({draft.begin(), std::ranges::find(draft, -1)}, tokens);
  }
}

}  // namespace moesaic
