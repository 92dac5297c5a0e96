// Bodies of requests, and the answers to those that are taken. The first byte chooses the endpoint.
#include <array>
#include <cstdint>
#include <string_view>

#include "openai/chat_request.h"
#include "openai/completion_request.h"
#include "openai/fuzz_answer.h"
#include "openai/responses_request.h"
#include "openai/token_requests.h"

using namespace moesaic;
using namespace moesaic::openai;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr std::array kJobs = {prepare_chat, prepare_completion, prepare_response};
  constexpr std::array kConversions = {tokenize, detokenize, apply_template, count_input};
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data + 1), size - 1);
  const size_t which = data[0] % (kJobs.size() + kConversions.size());
  if (which >= kJobs.size()) {
    kConversions[which - kJobs.size()](body, fuzz_service());
    return 0;
  }
  PreparedRequestOrError made = kJobs[which](body, fuzz_service());
  answer_for_fuzz(made);
  return 0;
}
