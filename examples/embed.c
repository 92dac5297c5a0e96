/* Each thing that moesaic offers to a program in C that embeds it, once:  example_embed_c [MODEL]
 * Fails where something is not as documented: ctest runs it with the bundled model. */
#include <moesaic/moesaic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect(int true_here, const char* what) {
  if (true_here) return;
  fprintf(stderr, "not so: %s; %s\n", what, moesaic_last_error());
  exit(1);
}

static void ok(moesaic_status status) { expect(status == MOESAIC_OK, "it works"); }

/* What came of a request. Callbacks come one at a time, from the thread that steps. */
typedef struct seen {
  int ends, prompt_tokens, rows, tops, cached;
  char call[200], recipient[100], text[200];
} seen;

static void on_token(void* user, const moesaic_token* token) {
  ((seen*)user)->tops += (int)token->top_count;
  expect(token->top_count == 0 || token->top[0].logprob >= token->logprob, "the likeliest comes first");
}

static void on_prompt_token(void* user, const moesaic_token* token) {
  seen* const s = user;
  expect(token->position == s->prompt_tokens++, "they come in order");
}

static void on_logits(void* user, int32_t position, const float* logits, size_t count) {
  (void)position;
  ((seen*)user)->rows += count > 0 && logits[count - 1] == logits[count - 1];
}

static void on_text(void* user, const moesaic_text* piece) {
  seen* const s = user;
  if (strcmp(piece->channel, "final") == 0)
    strncat(s->text, piece->text, sizeof s->text - strlen(s->text) - 1);
}

static void on_end(void* user, const moesaic_outcome* end) {
  seen* const s = user;
  size_t i;
  s->cached = end->cached_tokens;
  for (i = 0; i < end->message_count; ++i) {
    if (end->messages[i].recipient[0] == 0) continue;
    snprintf(s->recipient, sizeof s->recipient, "%s", end->messages[i].recipient);
    snprintf(s->call, sizeof s->call, "%s", end->messages[i].text);
  }
  ++s->ends;
}

static int on_progress(void* user, int64_t done, int64_t total) {
  return done <= total && ++*(int*)user != 2; /* the second call cancels */
}

static void on_log(moesaic_log_level level, const char* message, void* user) {
  (void)level;
  *(int*)user += message[0] != 0;
}

static void list_devices(void) {
  moesaic_device* devices = NULL;
  size_t count = 0, i;
  expect(moesaic_version_number() == MOESAIC_VERSION_NUMBER, "library and header are of one version");
  ok(moesaic_devices(&devices, &count));
  for (i = 0; i < count; ++i) {
    const moesaic_device* d = (const moesaic_device*)((const char*)devices + i * devices->size);
    if (d->usable)
      printf("%s: %s %s\n", d->name, d->description, d->architecture);
    else
      printf("%s: %s\n", d->name, d->reason);
  }
  moesaic_free(devices);
}

static moesaic_model* open_model(const char* path) {
  moesaic_options options;
  moesaic_model* model = NULL;
  int calls = 0;
  moesaic_options_init(&options, sizeof options);
  options.context = 1024;
  options.max_batch = 4;
  options.progress = on_progress;
  options.progress_user = &calls;
  expect(moesaic_open(path, &options, &model) == MOESAIC_CANCELLED && calls == 2, "loading is cancelled");
  options.progress = NULL;
  ok(moesaic_open(path, &options, &model));
  return model;
}

static void show_info(const moesaic_model* model) {
  moesaic_info info;
  info.size = sizeof info;
  ok(moesaic_model_info(model, &info));
  printf("%s on %s (%s), context %d: %s\n", info.name, info.device.name, info.device_reason,
         (int)info.context, info.context_reason);
}

static moesaic_request request_of(const int32_t* prompt, size_t tokens, seen* s) {
  moesaic_request r;
  moesaic_request_init(&r, sizeof r);
  r.prompt = prompt;
  r.prompt_tokens = tokens;
  r.chat = 1;
  r.temperature = 0;
  r.max_tokens = 60;
  r.user = s;
  r.on_text = on_text;
  r.on_end = on_end;
  return r;
}

/* While the model's own thread works. */
static void ask(moesaic_model* model, const int32_t* prompt, size_t tokens) {
  seen answer, cancelled;
  uint64_t id = 0;
  moesaic_request r;
  memset(&answer, 0, sizeof answer);
  memset(&cancelled, 0, sizeof cancelled);
  ok(moesaic_start(model));
  r = request_of(prompt, tokens, &answer);
  ok(moesaic_submit(model, &r, NULL));
  r = request_of(prompt, tokens, &cancelled);
  ok(moesaic_submit(model, &r, &id));
  moesaic_cancel(model, id);
  ok(moesaic_wait(model));
  ok(moesaic_stop(model));
  expect(answer.ends == 1 && cancelled.ends == 1, "both ended");
  printf("%s\n", answer.text);
}

static void score(moesaic_model* model, const int32_t* prompt, size_t tokens) {
  seen s;
  moesaic_request r;
  memset(&s, 0, sizeof s);
  r = request_of(prompt, tokens, &s);
  r.max_tokens = 3;
  r.top_logprobs = 4;
  r.on_token = on_token;
  r.prompt_logprobs = 1;
  r.on_prompt_token = on_prompt_token;
  r.prompt_logits = 1;
  r.on_logits = on_logits;
  ok(moesaic_submit(model, &r, NULL));
  ok(moesaic_run(model));
  expect(s.tops == 12 && s.prompt_tokens == (int)tokens && s.rows == (int)tokens + 2,
         "every position was seen");
}

static void call_a_function(moesaic_model* model) {
  static const char kSchema[] =
      "{\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\", \"maxLength\": 8}},"
      " \"required\": [\"city\"], \"additionalProperties\": false}";
  char conversation[600];
  const moesaic_function function = {"get_weather", kSchema};
  seen s;
  moesaic_request r;
  int32_t* prompt = NULL;
  size_t tokens = 0;
  memset(&s, 0, sizeof s);
  snprintf(conversation, sizeof conversation,
           "{\"messages\": [{\"role\": \"user\", \"content\": \"Weather in Oslo?\"}], \"tools\": [{\"type\": "
           "\"function\", \"function\": {\"name\": \"get_weather\", \"parameters\": %s}}]}",
           kSchema);
  ok(moesaic_chat_prompt(model, conversation, &prompt, &tokens));
  r = request_of(prompt, tokens, &s);
  r.max_tokens = 400;
  r.functions = &function;
  r.function_count = 1;
  r.must_call = 1;
  ok(moesaic_submit(model, &r, NULL));
  moesaic_free(prompt);
  ok(moesaic_run(model));
  expect(strcmp(s.recipient, "functions.get_weather") == 0 && strstr(s.call, "\"city\"") != NULL,
         "it is called");
  printf("%s %s\n", s.recipient, s.call);
}

static void keep(moesaic_model* model, const char* path, const int32_t* prompt, size_t tokens) {
  void* data = NULL;
  size_t bytes = 0, cached = 0, count = 0;
  int32_t* loaded = NULL;
  moesaic_model* other = NULL;
  seen s;
  moesaic_request r;
  memset(&s, 0, sizeof s);
  ok(moesaic_kv_cached(model, prompt, tokens, &cached));
  ok(moesaic_kv_save(model, prompt, tokens, &data, &bytes));
  ok(moesaic_open(path, NULL, &other));
  ok(moesaic_kv_load(other, data, bytes, &loaded, &count));
  expect(count == cached && memcmp(loaded, prompt, count * sizeof *loaded) == 0, "it was saved for these");
  moesaic_free(loaded);
  ((char*)data)[bytes / 2] ^= 1;
  expect(moesaic_kv_load(other, data, bytes, &loaded, &count) == MOESAIC_INVALID_ARGUMENT, "damage is seen");
  moesaic_free(data);
  r = request_of(prompt, tokens, &s);
  ok(moesaic_submit(other, &r, NULL));
  ok(moesaic_run(other));
  expect(s.cached > 0 && (size_t)s.cached <= cached, "the prompt is found");
  moesaic_close(other);
}

int main(int argc, char** argv) {
  const char* const path = argc > 1 ? argv[1] : "tiny";
  int lines = 0;
  int32_t* prompt = NULL;
  size_t tokens = 0;
  moesaic_model* model = NULL;
  moesaic_set_log(on_log, &lines);
  list_devices();
  model = open_model(path);
  show_info(model);
  expect(moesaic_submit(model, NULL, NULL) == MOESAIC_INVALID_ARGUMENT, "NULL is an error");
  ok(moesaic_chat_prompt(model, "[{\"role\": \"user\", \"content\": \"What is 17 + 25?\"}]", &prompt,
                         &tokens));
  ask(model, prompt, tokens);
  score(model, prompt, tokens);
  call_a_function(model);
  keep(model, path, prompt, tokens);
  moesaic_free(prompt);
  moesaic_close(model);
  moesaic_set_log(NULL, NULL);
  expect(lines > 0, "something was said");
  return 0;
}
