// Bodies of requests to Anthropic's endpoints, and the answers to those that are taken.
#include <cstdint>
#include <string_view>

#include "anthropic/messages_request.h"
#include "openai/fuzz_answer.h"

using namespace moesaic;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data + 1), size - 1);
  if (data[0] % 4 == 0) {
    anthropic::count_tokens(body, openai::fuzz_service());
    return 0;
  }
  auto made = anthropic::prepare_messages(body, openai::fuzz_service());
  openai::answer_for_fuzz(made);
  return 0;
}
