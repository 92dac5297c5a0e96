#include "text/harmony_header.h"

#include <gtest/gtest.h>

#include <ostream>

namespace moesaic {
namespace {

using PartKind = HeaderPart::Kind;

// A header as text with its special tokens by name.
HeaderParts parts_of(std::string text) {
  HeaderParts parts = {{}};
  while (true) {
    const size_t channel = text.find("<|channel|>"), constrain = text.find("<|constrain|>");
    const size_t at = std::min(channel, constrain);
    parts.back().text = text.substr(0, at);
    if (at == std::string::npos) return parts;
    parts.push_back({.kind = at == channel ? PartKind::kChannel : PartKind::kConstrain});
    text.erase(0, text.find("|>", at) + 2);
  }
}

struct HeaderWords {
  std::string recipient, channel, content_type, text;
  bool foreign = false;
  bool operator==(const HeaderWords&) const = default;
};
std::ostream& operator<<(std::ostream& out, const HeaderWords& r) {
  return out << "to {" << r.recipient << "} in {" << r.channel << "} type {" << r.content_type << "} text {"
             << r.text << "} " << r.foreign;
}
HeaderWords read_of(const HarmonyHeader& h) {
  return {h.recipient, h.channel, h.content_type, h.text, h.foreign};
}

struct HeaderRow {
  const char* header;
  HeaderWords read;
};

const std::string kJsonType = "<|constrain|>json";

TEST(HarmonyHeader, BeforeAMessage) {
  const HeaderRow rows[] = {
      // The format's own headers.
      {"<|channel|>analysis", {"", "analysis"}},
      {"<|channel|>final", {"", "final"}},
      {"<|channel|>final <|constrain|>json", {"", "final", kJsonType}},
      {"assistant<|channel|>commentary", {"", "commentary"}},
      {" to=functions.f<|channel|>commentary <|constrain|>json", {"functions.f", "commentary", kJsonType}},
      {"<|channel|>commentary to=functions.f <|constrain|>json", {"functions.f", "commentary", kJsonType}},
      {"<|channel|>commentary to=functions.f<|constrain|>json", {"functions.f", "commentary", kJsonType}},
      {"<|channel|>analysis to=python code", {"python", "analysis", "code"}},
      {"<|channel|>commentary to=functions.f text/plain", {"functions.f", "commentary", "text/plain"}},
      {"", {}},
      {"assistant", {}},
      // A repeated word counts once.
      {"<|channel|>analysis<|channel|>analysis", {"", "analysis"}},
      {"<|channel|>commentary to=functions.f<|channel|>commentary <|constrain|>json",
       {"functions.f", "commentary", kJsonType}},
      {"<|channel|>commentary to=functions.f<|channel|>commentary to=functions.f<|channel|>commentary "
       "<|constrain|>json",
       {"functions.f", "commentary", kJsonType}},
      {" to=functions.f<|channel|>commentary to=functions.f <|constrain|>json<|constrain|>json",
       {"functions.f", "commentary", kJsonType}},
      {"<|channel|>commentary commentary to=functions.f json json", {"functions.f", "commentary", "json"}},
      {"assistant assistant<|channel|>final assistant", {"", "final"}},
      // The last of contradicting words counts, and a name before none.
      {" to=functions.f<|channel|>commentary to=functions.g", {"functions.g", "commentary"}},
      {"<|channel|>final<|channel|>analysis", {"", "analysis"}},
      {"<|channel|>analysis<|channel|>final", {"", "final"}},
      {"<|channel|>final<|channel|>fin", {"", "final"}},
      {"<|channel|><|channel|>final", {"", "final"}},
      {"<|channel|>commentary to=functions.f to=all", {"", "commentary"}},
      {" to=user<|channel|>final", {"", "final"}},
      // Garbled words.
      {"<|channel|>analysis?", {"", "analysis"}},
      {"<|channel|>analysis...\n", {"", "analysis"}},
      {"<|channel|>analysisanalysis", {"", "analysis"}},
      {"<|channel|>final_answer", {"", "final"}},
      {"<|channel|> \nfinal", {"", "final"}},
      {"<|channel|>commentaryto=functions.f", {"functions.f", "commentary"}},
      {"<|channel|>commentary to= functions.f", {"functions.f", "commentary"}},
      {"<|channel|>finaljson", {"", "final", "json"}},
      {"<|channel|>thinking", {"", "analysis"}},
      {"<|channel|>", {"", "analysis"}},
      {"<|channel|>Final", {"", "analysis"}},
      {"<|channel|>tool to=functions.f", {"functions.f", "commentary"}},
      {"<|channel|> to=functions.f", {"functions.f", "commentary"}},
      // A channel behind no <|channel|>.
      {"analysis", {"", "analysis"}},
      {"assistantanalysis", {"", "analysis"}},
      {"assistant analysis", {"", "analysis"}},
      {"assistantto=functions.f", {"functions.f", ""}},
      {"commentary to=functions.f <|constrain|>json", {"functions.f", "commentary", kJsonType}},
      {"final json", {"", "final", "json"}},
      // Text that belongs to no header.
      {"<|channel|>final Here is the answer", {"", "final", "", "Here is the answer"}},
      {"<|channel|>finalAll done.", {"", "final", "", "All done."}},
      {"<|channel|>We need to look", {"", "analysis", "", "We need to look"}},
      {"Sure, here:<|channel|>final", {"", "final", "", "Sure, here:"}},
      {"Sure<|channel|>final", {"", "final", "", "Sure"}},
      {"?<|channel|>final", {"", "final"}},
      // Somebody else.
      {"user", {"", "", "", "user", true}},
      {"functions.f to=assistant<|channel|>commentary", {"", "commentary", "", "functions.f", true}},
      {"user said so<|channel|>final", {"", "final", "", "user said so"}},
  };
  for (const HeaderRow& row : rows)
    EXPECT_EQ(read_of(read_header(parts_of(row.header))), row.read) << row.header;
}

TEST(HarmonyHeader, WhereTheRecipientStands) {
  EXPECT_FALSE(read_header(parts_of(" to=functions.f<|channel|>commentary")).recipient_last);
  EXPECT_TRUE(read_header(parts_of("<|channel|>commentary to=functions.f")).recipient_last);
  EXPECT_TRUE(
      read_unfinished_header(parts_of("<|channel|>commentary to=functions.f{}"), true, "").recipient_last);
}

TEST(HarmonyHeader, WithoutAMessage) {
  const HeaderRow rows[] = {
      {"<|channel|>finalAll done.", {"", "final", "", "All done."}},
      {"<|channel|>final__X__", {"", "final", "", "__X__"}},
      {"<|channel|>final code review", {"", "final", "", " code review"}},
      {"<|channel|>final json {\"a\": 1}", {"", "final", "json", " {\"a\": 1}"}},
      {"<|channel|>final[1]", {"", "final", "", "[1]"}},
      {"<|channel|>final write to=me", {"", "final", "", " write to=me"}},
      {"<|channel|>final<|constrain|>Hello", {"", "final", "", "Hello"}},
      {"<|channel|>We need to look at this.", {"", "analysis", "", "We need to look at this."}},
      {"<|channel|>analysis<|channel|>analysisWe look", {"", "analysis", "", "We look"}},
      {"<|channel|>analysis", {"", "analysis"}},
      {"All done.", {"", "final", "", "All done."}},
      {"assistant", {"", "final"}},
      {"finally done", {"", "final", "", "finally done"}},
      {"assistantanalysisWe look", {"", "analysis", "", "We look"}},
      {"finalAll done.", {"", "final", "", "All done."}},
      // Calls, if only by their arguments.
      {" to=functions.f<|channel|>commentary{\"x\":1}", {"functions.f", "commentary", "", "{\"x\":1}"}},
      {"<|channel|>commentary to=functions.f<|channel|>commentary <|constrain|>json{\"x\":1}",
       {"functions.f", "commentary", kJsonType, "{\"x\":1}"}},
      {"<|channel|>commentary? to=functions.f {}", {"functions.f", "commentary", "", " {}"}},
      {"<|channel|>tool to=functions.f{}", {"functions.f", "commentary", "", "{}"}},
      {" to=functions.f json {}", {"functions.f", "commentary", "json", " {}"}},
      {"<|channel|>commentary to=functions.f", {"", "analysis"}},
      {"<|channel|>commentary to=functions.f a word", {"", "analysis", "", " a word"}},
      {" to=functions.f<|channel|>final hello", {"", "final", "", " hello"}},
  };
  for (const HeaderRow& row : rows)
    EXPECT_EQ(read_of(read_unfinished_header(parts_of(row.header), false, "final")), row.read) << row.header;
}

TEST(HarmonyHeader, ACallTokenMakesItACall) {
  const HeaderRow rows[] = {
      {"<|channel|>commentary to=functions.f <|constrain|>json", {"functions.f", "commentary", kJsonType}},
      {" to=functions.f", {"functions.f", "commentary"}},
      {"<|channel|>commentary to=functions.f a word", {"functions.f", "commentary", "", " a word"}},
      {"<|channel|>final hello", {"", "final", "", " hello"}},
  };
  for (const HeaderRow& row : rows)
    EXPECT_EQ(read_of(read_unfinished_header(parts_of(row.header), true, "final")), row.read) << row.header;
}

TEST(HarmonyHeader, ForeignRoles) {
  for (const char* own : {"", " ", "a", "ass", "assistant", " assistant to=f", "assistantfinal", "f", "final",
                          "co", "t", "to=functions.f", "analysis"})
    EXPECT_FALSE(is_foreign_role(own, false)) << own;
  for (const char* own : {"", "assistant", "analysis?", "to=f"})
    EXPECT_FALSE(is_foreign_role(own, true)) << own;
  for (const char* other :
       {"user", "u", "assi ", "functions", "fu", "tool", "Assistant", "<", "\xE6\x97\xA5"})
    EXPECT_TRUE(is_foreign_role(other, false)) << other;
  for (const char* other : {"a", "assist", "to", "fin"}) EXPECT_TRUE(is_foreign_role(other, true)) << other;
}

}  // namespace
}  // namespace moesaic
