/* train --chat: turns from standard input, answers to standard output. The whole conversation is rendered by the
 * chat template for each turn, and computed anew. */
#include "cmd/train/generate.h"

#include "worker/data/templates/template.h"
#include "worker/data/tokenizers/characters.h"
#include "worker/data/tokenizers/special_tokens.h"
#include "worker/data/tokenizers/tokenizer.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LONGEST = 8192 }; /* ids of a conversation, which the memory of keys and values is made for */

struct chat {
    struct template *template;
    struct tokenizer *tokenizer;
    cJSON *variables; /* of the template */
    cJSON *messages;  /* in it */
    struct generate_options *options;
    struct generate_row row;
    struct generator *generator;
    int64_t capacity; /* ids that a conversation may have */
};

static void add_message(struct chat *c, const char *role, const char *content)
{
    cJSON *message = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(message, "role", role);
    (void)cJSON_AddStringToObject(message, "content", content);
    (void)cJSON_AddItemToArray(c->messages, message);
}

static int open_chat(struct chat *c, const struct model_source *source, struct dt_error *err)
{
    int64_t vocabulary, positions;
    if (generate_limits(source, &vocabulary, &positions, err) != 0) {
        return -1;
    }
    if (source->tokenizer == NULL) {
        return dt_fail(err, DT_INVALID, "%s: there is no tokenizer.json beside the weights, nor as data.tokenizer",
                       source->path);
    }
    if (template_find(&c->template, source->tokenizer, err) != 0 ||
        tokenizer_open(&c->tokenizer, source->tokenizer, err) != 0 ||
        (c->variables = special_tokens_read(source->tokenizer, err)) == NULL) {
        return -1;
    }
    c->messages = cJSON_AddArrayToObject(c->variables, "messages");
    (void)cJSON_AddNullToObject(c->variables, "tools");
    (void)cJSON_AddNullToObject(c->variables, "documents");
    (void)cJSON_AddBoolToObject(c->variables, "add_generation_prompt", true);
    c->capacity = positions < LONGEST ? positions : LONGEST;
    int64_t wished = c->options->max_new_tokens < c->capacity ? c->options->max_new_tokens : c->capacity - 1;
    c->options->max_new_tokens = wished;
    c->options->max_length = 0; /* it is for a row, and a conversation is longer */
    c->options->batch_size = 1;
    /* a row of that length, for which all memory is made */
    c->row.prompt_count = c->row.count = c->capacity - wished;
    c->row.ids = dt_alloc((size_t)c->capacity * sizeof *c->row.ids);
    return generator_prepare(&c->generator, source, c->options, &c->row, 1, NULL, 1, err) == 0 &&
                   generator_open(c->generator, NULL, err) == 0
               ? generator_read(c->generator, source, err)
               : -1;
}

static void close_chat(struct chat *c)
{
    generator_close(c->generator);
    template_close(c->template);
    tokenizer_close(c->tokenizer);
    cJSON_Delete(c->variables);
    free(c->row.ids);
}

/* The ids of the conversation, up to where an answer begins. */
static int encode(struct chat *c, struct dt_error *err)
{
    time_t now = time(NULL);
    struct tm day;
    struct dt_text text;
    struct token_ids ids = {0};
    dt_text_init(&text);
    int rc = template_render(c->template, c->variables, localtime_r(&now, &day), &text, err);
    if (rc == 0) {
        struct tokenizer_scratch *scratch = tokenizer_scratch_open(c->tokenizer);
        rc = tokenizer_encode(c->tokenizer, scratch, dt_text_str(&text), text.size, false, &ids, err);
        tokenizer_scratch_close(scratch);
    }
    if (rc == 0 && (ids.count == 0 || (int64_t)ids.count >= c->capacity)) {
        rc = dt_fail(err, DT_INVALID, "the conversation has %zu ids; there is room for 1 to %lld", ids.count,
                     (long long)c->capacity - 1);
    }
    if (rc == 0) {
        memcpy(c->row.ids, ids.ids, ids.count * sizeof *ids.ids);
        c->row.prompt_count = (int64_t)ids.count;
    }
    token_ids_clear(&ids);
    dt_text_clear(&text);
    return rc;
}

/* Answers the last message, and keeps the answer. */
static int answer(struct chat *c, int64_t most, struct dt_error *err)
{
    struct train_stream stream;
    struct dt_text text;
    if (encode(c, err) != 0) {
        return -1;
    }
    int64_t left = c->capacity - c->row.prompt_count;
    c->options->max_new_tokens = most < left ? most : left;
    train_stream_open(&stream, c->tokenizer, c->options);
    int rc = generator_run(c->generator, err);
    train_stream_end(&stream);
    int64_t count = c->row.count - c->row.prompt_count - (rc == 0 && c->row.end == GENERATE_STOPPED);
    dt_text_init(&text);
    if (rc == 0) {
        tokenizer_decode(c->tokenizer, c->row.ids + c->row.prompt_count, (size_t)count, true, &text);
        add_message(c, "assistant", dt_text_str(&text));
    }
    dt_text_clear(&text);
    return rc;
}

/* Adds what a person says: a template takes text alone. */
static int add_said(struct chat *c, const char *role, const char *text, size_t size, const char *where,
                    struct dt_error *err)
{
    if (utf8_valid(text, size) < size || memchr(text, 0, size) != NULL) {
        return dt_fail(err, DT_INVALID, "%s is no text in UTF-8", where);
    }
    add_message(c, role, text);
    return 0;
}

int train_chat(const struct model_source *source, const char *system, struct generate_options *options,
               struct dt_error *err)
{
    struct chat c = {.options = options};
    char *line = NULL;
    size_t room = 0;
    int rc = open_chat(&c, source, err);
    int64_t most = options->max_new_tokens;
    if (rc == 0 && system != NULL) {
        rc = add_said(&c, "system", system, strlen(system), "--system", err);
    }
    for (int number = 1; rc == 0; number++) {
        if (isatty(STDIN_FILENO)) {
            (void)fputs("> ", stderr);
        }
        ssize_t size = getline(&line, &room, stdin);
        if (size < 0) {
            break;
        }
        while (size > 0 && strchr("\r\n", line[size - 1]) != NULL) {
            line[--size] = 0;
        }
        if (size > 0) {
            char where[48];
            (void)snprintf(where, sizeof where, "line %d of standard input", number);
            rc = add_said(&c, "user", line, (size_t)size, where, err) == 0 ? answer(&c, most, err) : -1;
        }
    }
    free(line);
    close_chat(&c);
    return rc;
}
