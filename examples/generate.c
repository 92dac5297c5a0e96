/* Answers a question with moesaic from C:  example_generate_c MODEL QUESTION */
#include <moesaic/moesaic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(void) {
  fprintf(stderr, "%s\n", moesaic_last_error());
  return 1;
}

static void show(void* user, const moesaic_text* piece) {
  (void)user;
  fwrite(piece->text, 1, piece->bytes, strcmp(piece->channel, "final") == 0 ? stdout : stderr);
}

static void finish(void* user, const moesaic_outcome* outcome) { *(moesaic_finish*)user = outcome->finish; }

static char* append(char* end, const char* text) {
  while (*text != 0) *end++ = *text++;
  *end = 0;
  return end;
}

/* The one message of a conversation; the caller's to free. A program would use its JSON library. */
static char* conversation(const char* question) {
  char* const text = malloc(2 * strlen(question) + 64);
  if (text == NULL) return NULL;
  char* end = append(text, "[{\"role\": \"user\", \"content\": \"");
  for (; *question != 0; *end++ = *question++) {
    if (*question == '"' || *question == '\\') *end++ = '\\';
  }
  append(end, "\"}]");
  return text;
}

static moesaic_status ask(moesaic_model* model, const char* question, moesaic_finish* end) {
  int32_t* prompt = NULL;
  size_t tokens = 0;
  char* const json = conversation(question);
  if (json == NULL) return MOESAIC_OUT_OF_MEMORY;
  moesaic_status status = moesaic_chat_prompt(model, json, &prompt, &tokens);
  free(json);
  if (status != MOESAIC_OK) return status;

  moesaic_request request;
  moesaic_request_init(&request, sizeof request);
  request.prompt = prompt;
  request.prompt_tokens = tokens;
  request.chat = 1;
  request.temperature = 0;
  request.max_tokens = 500;
  request.user = end;
  request.on_text = show;
  request.on_end = finish;
  status = moesaic_submit(model, &request, NULL);
  moesaic_free(prompt);
  return status == MOESAIC_OK ? moesaic_run(model) : status;
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: example_generate_c MODEL QUESTION\n");
    return 1;
  }
  moesaic_options options;
  moesaic_options_init(&options, sizeof options);
  options.context = 4096;
  moesaic_model* model = NULL;
  if (moesaic_open(argv[1], &options, &model) != MOESAIC_OK) return fail();
  moesaic_finish end = MOESAIC_FINISH_NONE;
  const moesaic_status status = ask(model, argv[2], &end);
  moesaic_close(model);
  puts("");
  if (status != MOESAIC_OK) return fail();
  return end == MOESAIC_FINISH_STOP || end == MOESAIC_FINISH_LENGTH ? 0 : 1;
}
