#include "text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "text/newer_unicode.h"

namespace moesaic {
namespace {

// White_Space as Rust's and Oniguruma's \s mean it; PCRE2's also matches U+180E.
constexpr const char* kWhiteSpace =
    R"(\t-\r\x20\x85\xA0\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

constexpr size_t kJitStackStart = 64 << 10, kJitStackMost = 64 << 20;  // bytes
constexpr uint32_t kHeapLimit = 256 << 10;                             // KiB, for the interpreter
constexpr uint32_t kMatchLimit = 200'000'000;

// The pattern with \s and \S spelled out. \S inside a class stays PCRE2's.
std::string with_white_space(std::string_view pattern) {
  std::string spelled;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view two = pattern.substr(i, 2);
    if (two == R"(\s)") {
      spelled += in_class ? kWhiteSpace : fmt::format("[{}]", kWhiteSpace);
    } else if (two == R"(\S)" && !in_class) {
      spelled += fmt::format("[^{}]", kWhiteSpace);
    } else {
      if (two[0] == '[') in_class = true;
      if (two[0] == ']') in_class = false;
      spelled += two[0] == '\\' ? two : two.substr(0, 1);
    }
    if (two[0] == '\\') ++i;
  }
  return spelled;
}

// The working memory of one call of split.
struct MatchState {
  explicit MatchState(const pcre2_code* code)
      : data(pcre2_match_data_create_from_pattern(code, nullptr)),
        context(pcre2_match_context_create(nullptr)) {
    if (!ready()) return;
    pcre2_set_heap_limit(context, kHeapLimit);
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_depth_limit(context, kMatchLimit);
  }
  MatchState(const MatchState&) = delete;
  MatchState& operator=(const MatchState&) = delete;
  ~MatchState() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  bool ready() const { return data != nullptr && context != nullptr; }
  // False where there is one already, or no memory for it.
  bool add_stack() {
    if (stack != nullptr) return false;
    stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMost, nullptr);
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
    return stack != nullptr;
  }

  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack = nullptr;
};

// First on the machine stack's 32 KiB, then on a large stack, then without the JIT compiler.
int match(const pcre2_code* code, std::string_view text, size_t from, MatchState& state) {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int found = PCRE2_ERROR_JIT_STACKLIMIT;
  do {
    found = pcre2_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, state.data, state.context);
  } while (found == PCRE2_ERROR_JIT_STACKLIMIT && state.add_stack());
  if (found != PCRE2_ERROR_JIT_STACKLIMIT) return found;
  return pcre2_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, state.data,
                     state.context);
}

Status pcre2_error(int code, const char* what) {
  PCRE2_UCHAR message[160] = {};
  pcre2_get_error_message(code, message, sizeof message);
  return invalid("the tokenizer's split pattern {}: {}", what, reinterpret_cast<const char*>(message));
}

}  // namespace

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

void Pretokenizer::FreeCode::operator()(void* code) const { pcre2_code_free(static_cast<pcre2_code*>(code)); }

Result<Pretokenizer> Pretokenizer::create(const std::string& pattern) {
  int failure = 0;
  PCRE2_SIZE offset = 0;
  const std::string spelled = with_white_space(pattern);
  Pretokenizer made;
  made.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &failure, &offset,
                                 nullptr));
  if (made.code_ == nullptr) return pcre2_error(failure, "does not compile");
  // Where the JIT compiler is missing or refuses, matching is slower but the same.
  pcre2_jit_compile(static_cast<pcre2_code*>(made.code_.get()), PCRE2_JIT_COMPLETE);
  return made;
}

Status Pretokenizer::split(std::string_view text, const std::function<bool(std::string_view)>& piece) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  MatchState state(code);
  if (!state.ready()) return error(StatusCode::kOutOfMemory, "no memory for matching the split pattern");
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(state.data);
  const std::optional<std::string> older = with_older_characters(text);
  const std::string_view subject = older ? *older : text;
  size_t done = 0, from = 0;
  while (from < text.size()) {
    const int found = match(code, subject, from, state);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) return pcre2_error(found, "failed on this text");
    const size_t begin = std::max(span[0], done), end = span[1];  // \K may reach back
    if (end <= begin) {  // an empty match cuts nothing; go on behind the next character
      for (from = std::max(from, begin) + 1; from < text.size() && (text[from] & 0xC0) == 0x80;) ++from;
      continue;
    }
    if (begin > done && !piece(text.substr(done, begin - done))) return {};
    if (!piece(text.substr(begin, end - begin))) return {};
    done = from = end;
  }
  if (done < text.size()) piece(text.substr(done));
  return {};
}

}  // namespace moesaic
