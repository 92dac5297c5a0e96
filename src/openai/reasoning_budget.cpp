#include "openai/reasoning_budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <string>

#include "text/harmony_json.h"

namespace moesaic::openai {
namespace {

// The budget that the fields ask for, with the name of the first one.
class Budget {
 public:
  explicit Budget(Fields& fields) : fields_(fields) {}

  // root: the request's field that holds the key, which errors name; null: the key is the request's own.
  void add(Fields& from, const char* root, const char* key) {
    const std::optional<int> tokens = read_budget(from, key, -1);
    if (!from.ok() && root != nullptr) return fields_.refuse(root, from.refusal()->message);
    if (!tokens) return;
    const std::string path = root == nullptr ? key : fmt::format("{}.{}", root, key);
    if (tokens_ && *tokens_ != *tokens)
      return fields_.refuse(root == nullptr ? key : root,
                            fmt::format("{} and {} contradict each other", name_, path));
    if (!tokens_) tokens_ = tokens, name_ = path;
  }
  // An object that has another type is refused by who reads the rest of it.
  void add_inside(const char* root, const char* key) {
    const Json* object = fields_.find(root);
    if (object == nullptr || !object->is_object()) return;
    Fields inner(*object);
    add(inner, root, key);
  }
  std::optional<int> tokens() const { return tokens_; }

 private:
  Fields& fields_;
  std::optional<int> tokens_;
  std::string name_;
};

void check_disabled(Fields& fields) {
  const Json* thinking = fields.find("thinking");
  if (thinking == nullptr || !thinking->is_object() || !fields.ok()) return;
  Fields inner(*thinking);
  if (text::string_or(*thinking, "type", "") == "disabled" &&
      read_budget(inner, "budget_tokens", -1).value_or(0) > 0)
    fields.refuse("thinking", "budget_tokens does not belong to type disabled");
}

}  // namespace

std::optional<int> read_budget(Fields& fields, const char* key, int least) {
  if (fields.find(key) == nullptr) return {};
  int64_t tokens = -1;
  fields.integer(key, tokens, least, INT64_MAX);
  if (!fields.ok()) return {};
  return static_cast<int>(std::min<int64_t>(tokens, INT_MAX));
}

std::optional<int> read_reasoning_budget(Fields& fields, bool chat) {
  Budget budget(fields);
  for (const char* key : {"thinking_token_budget", "reasoning_budget", "reasoning_budget_tokens",
                          "thinking_budget_tokens", "thinking_budget"})
    budget.add(fields, nullptr, key);
  if (!chat) return budget.tokens();
  budget.add_inside("reasoning", "max_tokens");
  budget.add_inside("thinking", "budget_tokens");
  budget.add_inside("chat_template_kwargs", "thinking_budget");
  budget.add_inside("chat_template_kwargs", "reasoning_budget");
  check_disabled(fields);
  return budget.tokens();
}

}  // namespace moesaic::openai
