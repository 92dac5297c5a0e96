// previous_response_id and item_reference: what is stored, for whom, and how much of it.
#include "openai/response_store.h"

#include <gtest/gtest.h>

#include "openai/request_cases.h"

namespace moesaic::openai {
namespace {

StoredResponse stored(const std::string& owner, size_t bytes = 10) {
  return {.owner = owner, .response = std::string(bytes, 'r'), .items = "[]"};
}

TEST(ResponseStore, TheOldestGoFirst) {
  ResponseStore store(2, 1000);
  for (const char* id : {"a", "b", "c"}) store.keep(id, stored("me"));
  EXPECT_EQ(store.size(), 2u);
  EXPECT_FALSE(store.find("a", "me"));
  EXPECT_TRUE(store.find("c", "me"));
  EXPECT_EQ(store.find("c", "me")->response, std::string(10, 'r'));
}

TEST(ResponseStore, TheirBytesAreBounded) {
  ResponseStore store(1000, 16'000);
  for (int i = 0; i < 50; ++i) {
    store.keep(std::to_string(i), stored("me", 950));
    EXPECT_LE(store.bytes(), 16'000u);
  }
  EXPECT_GE(store.size(), 15u);
  EXPECT_FALSE(store.find("20", "me"));
  EXPECT_TRUE(store.find("49", "me"));
  store.keep("large", stored("me", 1001));
  EXPECT_FALSE(store.find("large", "me"));
}

TEST(ResponseStore, IsOfItsOwner) {
  ResponseStore store(2, 1000);
  store.keep("a", stored("me"));
  EXPECT_FALSE(store.find("a", "you"));
  EXPECT_FALSE(store.erase("a", "you"));
  EXPECT_TRUE(store.erase("a", "me"));
  EXPECT_FALSE(store.erase("a", "me"));
  EXPECT_EQ(store.bytes(), 0u);
}

// However many one client stores, another's stay.
TEST(ResponseStore, TheLargestShareMakesRoom) {
  ResponseStore few(4, 100'000), small(1000, 1600);
  for (ResponseStore* store : {&few, &small}) {
    store->keep("mine", {.owner = "me", .holder = "me", .response = std::string(50, 'r'), .items = "[]"});
    for (int i = 0; i < 50; ++i)
      store->keep(std::to_string(i),
                  {.owner = "you", .holder = "you", .response = std::string(60, 'r'), .items = "[]"});
    EXPECT_TRUE(store->find("mine", "me"));
    EXPECT_TRUE(store->find("49", "you"));
    EXPECT_FALSE(store->find("20", "you"));
    EXPECT_LE(store->bytes(), 1600u);
  }
  EXPECT_EQ(few.size(), 4u);
}

TEST(ResponseStore, MayKeepNothing) {
  ResponseStore store(0, 1000);
  store.keep("a", stored("me"));
  EXPECT_FALSE(store.enabled());
  EXPECT_EQ(store.size(), 0u);
}

Service storing(ResponseStore& store, const char* client = "me") {
  Service with = service();
  with.responses = &store;
  with.client = client;
  return with;
}

// The answer "Blue." to a request; the response's id.
std::string answered(const Service& with, const std::string& body) {
  PreparedRequest prepared = prepared_of(prepare_response(body, with));
  prepared.answer->add({.pieces = {{.channel = "final", .text = "Blue.", .begins = true}}}, nullptr);
  prepared.answer->add({.end = Outcome{.finish = FinishReason::kStop}}, nullptr);
  return Json::parse(prepared.answer->whole()).value("id", "");
}

TEST(ResponseStore, APreviousResponseIsPutBeforeTheInput) {
  ResponseStore store(10, 1'000'000);
  const std::string first =
      answered(storing(store), R"({"input": "Which colour?", "instructions": "Be brief."})");
  const std::string second = answered(
      storing(store),
      R"({"input": [{"role": "user", "content": "Why?"}], "previous_response_id": ")" + first + "\"}");
  const std::string third = R"({"input": "And green?", "previous_response_id": ")" + second + "\"}";
  const std::string whole =
      R"({"input": [{"role": "user", "content": "Which colour?"}, {"role": "assistant", "content": "Blue."},
          {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Blue."},
          {"role": "user", "content": "And green?"}]})";
  EXPECT_EQ(prompt_of(prepare_response(third, storing(store))),
            prompt_of(prepare_response(whole, service())));
}

TEST(ResponseStore, ItemsComeBackDigitForDigit) {
  ResponseStore store(10, 1'000'000);
  const std::string items =
      R"({"type": "shell_call", "call_id": "c", "action": {"n": 123456789012345678901234}},
      {"type": "shell_call_output", "call_id": "c", "output": "a"})";
  const std::string first = answered(storing(store), R"({"input": [)" + items + "]}");
  const std::string prompt = prompt_of(
      prepare_response(R"({"input": "hi", "previous_response_id": ")" + first + "\"}", storing(store)));
  EXPECT_NE(prompt.find(R"({"n":123456789012345678901234})"), std::string::npos) << prompt;
}

TEST(ResponseStore, ErrorsCountTheRequestsOwnItems) {
  ResponseStore store(10, 1'000'000);
  const std::string first = answered(storing(store), R"({"input": "hi"})");
  for (const char* wrong : {R"({"type": "nonsense"})", R"({"role": "nobody", "content": "a"})"}) {
    const ApiError error =
        error_of(prepare_response(R"({"input": [{"role": "user", "content": "a"}, )" + std::string(wrong) +
                                      R"(], "previous_response_id": ")" + first + "\"}",
                                  storing(store)));
    EXPECT_TRUE(error.message.starts_with("input: item 1: ")) << error.message;
  }
}

// A thought, a call and "Blue." as the answer to a request; the output items.
Json whole_answer(const Service& with, const std::string& body) {
  PreparedRequest prepared = prepared_of(prepare_response(body, with));
  for (const TextPiece& piece :
       {TextPiece{.channel = "analysis", .text = "Sky \u00fc.", .begins = true},
        {.channel = "commentary", .text = "Blue.", .begins = true},
        {.channel = "commentary", .recipient = "functions.f", .text = "{}", .begins = true}})
    prepared.answer->add({.pieces = {piece}}, nullptr);
  prepared.answer->add({.end = Outcome{.finish = FinishReason::kStop}}, nullptr);
  return Json::parse(prepared.answer->whole());
}

constexpr const char* kAskBlue =
    R"({"input": "Which colour?", "tools": [{"type": "function", "name": "f"}]})";

Json reference_to(const Json& item) { return {{"type", "item_reference"}, {"id", item["id"]}}; }

// A client may name the items of earlier answers, as @ai-sdk/openai does with its second turn.
TEST(ResponseStore, ItemsStandForTheirReferences) {
  ResponseStore store(10, 1'000'000);
  const Service with = storing(store);
  const Json answer = whole_answer(with, kAskBlue), &output = answer["output"];
  ASSERT_EQ(output.size(), 3u);
  const Json asked = {{"role", "user"}, {"content", "Which colour?"}},
             result = {{"type", "function_call_output"}, {"call_id", output[2]["call_id"]}, {"output", "4"}};
  Json named = Json::array({asked}), whole = named;
  for (const Json& item : output) {
    named.push_back(reference_to(item));
    whole.push_back(item);
  }
  named[1].erase("type");
  for (Json* items : {&named, &whole}) items->push_back(result);
  const auto body = [](const Json& items, const Json& more = Json::object()) {
    Json all = {{"input", items}};
    all.update(more);
    return dump(all);
  };
  const std::string want = prompt_of(prepare_response(body(whole), service()));
  EXPECT_NE(want.find("Sky"), std::string::npos);
  EXPECT_EQ(prompt_of(prepare_response(body(named), with)), want);
  const auto counted = [&](const Json& items) {
    return std::get<TokenAnswer>(count_input(body(items), with)).json;
  };
  EXPECT_EQ(counted(named), counted(whole));
  // They may come behind a previous response, and are themselves stored whole.
  named.erase(named.begin()), whole.erase(whole.begin());
  Service quick = with;
  quick.most_stored = 400;
  const Json more = {{"previous_response_id", answer["id"]}};
  EXPECT_EQ(prompt_of(prepare_response(body(named, more), with)),
            prompt_of(prepare_response(body(whole, more), with)));
  EXPECT_GT(error_of(prepare_response(body(named), quick)).needs_bytes, 400u);
  EXPECT_GT(error_of(prepare_response(body(named, more), quick)).needs_bytes,
            error_of(prepare_response(body(named), quick)).needs_bytes);
  const std::string second = answered(with, body(named));
  EXPECT_EQ(store.find(second, "me")->items.find("item_reference"), std::string::npos);
}

TEST(ResponseStore, OnlyStoredItemsOfTheirOwnerAreReferredTo) {
  ResponseStore store(1, 1'000'000);
  const Service with = storing(store);
  const Json answer = whole_answer(with, kAskBlue);
  const std::string id = answer["output"][1]["id"];
  const std::string body =
      R"({"input": [{"role": "user", "content": "a"}, {"type": "item_reference", "id": ")" + id + R"("}]})";
  EXPECT_FALSE(prompt_of(prepare_response(body, with)).empty());
  const auto refused = [&](const Service& by) {
    const ApiError error = error_of(prepare_response(body, by));
    EXPECT_EQ(error.param, "input");
    EXPECT_TRUE(error.message.starts_with("input: item 1: ")) << error.message;
    EXPECT_NE(error.message.find(id), std::string::npos) << error.message;
    EXPECT_NE(error.message.find("send the item itself"), std::string::npos) << error.message;
  };
  refused(storing(store, "you"));
  refused(service());
  answered(with, R"({"input": "hi"})");  // there is room for one
  refused(with);
  EXPECT_TRUE(store.erase(whole_answer(with, kAskBlue)["id"], "me"));
  EXPECT_EQ(store.bytes(), 0u);
}

// Many references to one long item are little text.
TEST(ResponseStore, ReferencesAreBounded) {
  ResponseStore store(10, 16 * 40'000);
  const Service with = storing(store);
  const Json answer = whole_answer(with, kAskBlue);
  Json items = Json::array();
  for (int i = 0; i < 10'000; ++i) items.push_back(reference_to(answer["output"][1]));
  const ApiError error = error_of(prepare_response(dump({{"input", items}}), with));
  EXPECT_EQ(error.param, "input");
  EXPECT_NE(error.message.find("more than 40000 bytes"), std::string::npos) << error.message;
  EXPECT_EQ(error.needs_bytes, 0u);
}

// A small request may ask for much: what it takes is known before it is read.
TEST(ResponseStore, SaysWhatAPreviousResponseTakes) {
  ResponseStore store(10, 1'000'000);
  const std::string first = answered(storing(store), R"({"input": ")" + std::string(500, 'x') + "\"}");
  const std::string second = R"({"input": "Why?", "previous_response_id": ")" + first + "\"}";
  Service with = storing(store);
  with.most_stored = 500;
  EXPECT_GT(error_of(prepare_response(second, with)).needs_bytes, 500u);
  with.most_stored = 1000;
  EXPECT_FALSE(prompt_of(prepare_response(second, with)).empty());
}

TEST(ResponseStore, WhatAnAnswerKeepsOfItsRequestIsCounted) {
  const std::string said(600, 'x'), note(100, 'n');
  const std::string body = R"({"input": ")" + said + R"(", "metadata": {"note": ")" + note + R"("}})";
  ResponseStore large(10, 1'000'000), small(10, 16 * said.size());
  EXPECT_GT(prepared_of(prepare_response(body, storing(large))).kept_bytes, said.size() + note.size());
  const size_t kept = prepared_of(prepare_response(body, storing(small))).kept_bytes;
  EXPECT_GT(kept, note.size());
  EXPECT_LT(kept, said.size()) << "the store would not take it";
  EXPECT_FALSE(answered(storing(small), body).empty());
  EXPECT_EQ(small.size(), 0u);
}

TEST(ResponseStore, OnlyWhatMayBeKeptIs) {
  ResponseStore store(10, 1'000'000);
  const std::string dropped = answered(storing(store), R"({"input": "hi", "store": false})");
  EXPECT_EQ(store.size(), 0u);
  const std::string kept = answered(storing(store), R"({"input": "hi"})");
  EXPECT_EQ(store.size(), 1u);
  const auto refused = [&](const std::string& id, const Service& with) {
    return error_of(prepare_response(R"({"input": "x", "previous_response_id": ")" + id + "\"}", with));
  };
  EXPECT_EQ(refused(dropped, storing(store)).code, "previous_response_not_found");
  EXPECT_EQ(refused(kept, storing(store, "you")).code, "previous_response_not_found");
  EXPECT_EQ(refused(kept, service()).param, "previous_response_id");
}

}  // namespace
}  // namespace moesaic::openai
