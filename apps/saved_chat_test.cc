#include "saved_chat.h"

#include <gtest/gtest.h>

#include "text/harmony_json.h"
#include "text/limited_json.h"

namespace moesaic::app {
namespace {

// A file that was loaded may be saved over.
TEST(SavedChat, NothingOfAFileIsLost) {
  const Conversation loaded = conversation_from_json(R"({"messages": [{"role": "user", "content": "hi"},
            {"role": "assistant", "channel": "final", "content": "Hello."}],
          "instructions": "Be brief.", "reasoning_effort": "high", "model_identity": "You are small.",
          "knowledge_cutoff": "2020-01", "tools": [{"type": "function", "function": {"name": "f",
            "description": "Finds.", "parameters": {"type": "object", "properties": {"b": {}, "a": {"maximum": 123456789012345678901234}}}}},
            {"name": "g"}]})",
                                                     "file")
                                  .value();
  const Conversation again = conversation_from_json(json_of(loaded), "saved").value();
  EXPECT_EQ(again.instructions, "Be brief.");
  EXPECT_EQ(again.reasoning_effort, ReasoningEffort::kHigh);
  EXPECT_EQ(again.model_identity, "You are small.");
  EXPECT_EQ(again.knowledge_cutoff, "2020-01");
  ASSERT_EQ(again.tools.size(), 2u);
  EXPECT_EQ(again.tools[0].name, "f");
  EXPECT_EQ(again.tools[0].description, "Finds.");
  EXPECT_EQ(text::compact_json(again.tools[0].parameters.parsed()->value),
            R"({"type":"object","properties":{"b":{},"a":{"maximum":123456789012345678901234}}})");
  EXPECT_TRUE(again.tools[1].parameters.empty());
  EXPECT_EQ(again.messages.size(), 2u);
}

TEST(SavedChat, WhatNobodyChoseIsNotWritten) {
  const std::string json = json_of(Conversation{.messages = {{.role = "user", .text = "hi"}}});
  for (const char* key : {"tools", "model_identity", "knowledge_cutoff"})
    EXPECT_EQ(json.find(key), std::string::npos) << key;
}

}  // namespace
}  // namespace moesaic::app
