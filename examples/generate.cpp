// Answers a question with moesaic as a library:  example_generate MODEL QUESTION
#include <moesaic/engine.h>

#include <cstdio>
#include <string>

namespace {

int fail(const moesaic::Status& status) {
  std::fprintf(stderr, "%s\n", status.message().c_str());
  return 1;
}

// The one message of a conversation. A program would use its JSON library.
std::string conversation(const std::string& question) {
  std::string text;
  for (const char c : question) text += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return R"([{"role": "user", "content": ")" + text + "\"}]";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return fail({moesaic::StatusCode::kUsage, "usage: example_generate MODEL QUESTION"});
  auto model = moesaic::Model::open(argv[1], {.context = 4096});
  if (!model.ok()) return fail(model.status());
  auto prompt = model->chat_prompt(conversation(argv[2]));
  if (!prompt.ok()) return fail(prompt.status());

  moesaic::Outcome outcome;
  const moesaic::Callbacks callbacks{.on_token = {},
                                     .on_text =
                                         [](const moesaic::TextPiece& piece) {
                                           std::fputs(piece.text.c_str(),
                                                      piece.channel == "final" ? stdout : stderr);
                                         },
                                     .on_end = [&](const moesaic::Outcome& end) { outcome = end; }};
  const moesaic::GenerationRequest request{
      .prompt = prompt.value(), .chat = true, .sampling = {.temperature = 0, .max_tokens = 500}};
  const moesaic::Status submitted = model->submit(request, callbacks);
  if (!submitted.ok()) return fail(submitted);
  const moesaic::Status status = model->run();
  std::puts("");
  return status.ok() ? 0 : fail(outcome.error);
}
