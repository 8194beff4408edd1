/* Multiple choice, for an evaluation as lm-evaluation-harness makes it: JSON lines of
 *
 *   {"context": "Bees make", "choices": ["honey", "steel"], "label": 0, "delimiter": " "}
 *
 * delimiter is [" "]. A sample is a choice behind its context: its targets are the choice's ids, which are
 * those of the whole text behind as many as the context alone has. All ids are in memory. */
#include "base/file.h"
#include "base/scan.h"
#include "worker/data/rows.h"
#include "worker/data/tokenizers/special_tokens.h"
#include "worker/data/tokenizers/tokenizer.h"
#include "worker/data/tokenizers/unicode.h"
#include "worker/job/folder.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { RECOGNISED_BYTES = 1 << 16, BYTE_IDS = 256 };
#define FILE_BYTES ((size_t)1 << 30)

struct choice_lines {
    struct data_files files;
    struct data_choices choices;
    struct choice_line { /* of each item */
        cJSON *json;     /* null once it is encoded */
        int64_t file, line;
    } * lines;
    struct token_ids ids; /* of all samples: contexts and choices */
    int64_t *starts;      /* sample_count + 1; null: not encoded yet */
    int64_t *targets;     /* of each sample: the last so many of its ids */
    int field_ids, field_labels;
};

/* The tokenizer that turns texts into ids. */
struct coder {
    struct tokenizer *tokenizer; /* null: bytes */
    struct tokenizer_scratch *scratch;
    char *prefix; /* what a text begins with that has special tokens already; null: the tokenizer has none */
    int32_t prefix_id;
};

static bool recognise(const char *path)
{
    char *head = dt_alloc(RECOGNISED_BYTES + 1);
    FILE *f = fopen(path, "re");
    size_t size = f != NULL ? fread(head, 1, RECOGNISED_BYTES, f) : 0;
    if (f != NULL) {
        (void)fclose(f);
    }
    const char *text = head + (size >= 3 ? dt_text_mark(head, size, &(const char *){NULL}) : 0);
    text += strspn(text, " \t\r\n");
    head[strcspn(head, "\n") < size ? strcspn(head, "\n") : size] = 0;
    bool found = *text == '{' && strstr(text, "\"choices\"") != NULL && strstr(text, "\"context\"") != NULL;
    free(head);
    return found;
}

static void close_choices(struct data_source *s)
{
    struct choice_lines *c = s->state;
    for (int64_t i = 0; c != NULL && i < c->choices.item_count; i++) {
        cJSON_Delete(c->lines[i].json);
    }
    if (c != NULL) {
        data_files_close(&c->files);
        token_ids_clear(&c->ids);
        free(c->lines);
        free(c->choices.items);
        free(c->choices.sizes);
        free(c->starts);
        free(c->targets);
    }
    free(c);
    s->state = NULL;
}

/* Appends an item that has one of the right form. */
static int add_item(struct data_source *s, struct choice_lines *c, cJSON *json, const char *where, struct dt_error *err)
{
    const cJSON *context = cJSON_GetObjectItemCaseSensitive(json, "context"),
                *choices = cJSON_GetObjectItemCaseSensitive(json, "choices"),
                *label = cJSON_GetObjectItemCaseSensitive(json, "label"),
                *delimiter = cJSON_GetObjectItemCaseSensitive(json, "delimiter");
    int count = cJSON_IsArray(choices) ? cJSON_GetArraySize(choices) : 0;
    bool good = cJSON_IsString(context) && count > 0 && (delimiter == NULL || cJSON_IsString(delimiter));
    c->choices.sizes = dt_realloc(c->choices.sizes, (size_t)(s->sample_count + count + 1) * sizeof *c->choices.sizes);
    const cJSON *choice, *list = count > 0 ? choices : NULL;
    struct data_choice_size *size = c->choices.sizes + s->sample_count;
    cJSON_ArrayForEach(choice, list)
    {
        const char *text = cJSON_GetStringValue(choice);
        good = good && text != NULL && *text != 0;
        *size = (struct data_choice_size){0};
        for (; text != NULL && *text != 0; text++, size->bytes++) {
            size->characters += (*text & 0xc0) != 0x80;
        }
        size++;
    }
    if (!good) {
        return dt_fail(err, DT_INVALID,
                       "%s: is no item; it needs \"context\" (a text), \"choices\" (an array of texts that are not "
                       "empty) and \"label\" (the number of the right one, from 0)",
                       where);
    }
    if (!cJSON_IsNumber(label) || label->valuedouble != label->valueint || label->valueint < 0 ||
        label->valueint >= count) {
        return dt_fail(err, DT_INVALID, "%s: label: must be the number of the right choice, 0 to %d", where, count - 1);
    }
    c->choices.items[c->choices.item_count] =
        (struct data_choice_item){.first = s->sample_count, .count = count, .label = label->valueint};
    s->sample_count += count;
    return 0;
}

static int read_file(struct data_source *s, struct choice_lines *c, size_t file, struct dt_error *err)
{
    const char *path = c->files.paths[file], *other = NULL;
    struct dt_text text;
    char where[512];
    int64_t before = s->sample_count, number = 1;
    dt_text_init(&text);
    int rc = dt_file_read(path, FILE_BYTES, &text, err);
    const char *at = dt_text_str(&text), *end = at + text.size;
    at += rc == 0 && text.size > 0 ? dt_text_mark(at, text.size, &other) : 0;
    for (; rc == 0 && at < end; number++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t size = (size_t)((stop != NULL ? stop : end) - at);
        (void)snprintf(where, sizeof where, "%s:%" PRId64, path, number);
        size_t seen = 0;
        while (seen < size && strchr(" \t\r", at[seen]) != NULL && at[seen] != 0) {
            seen++;
        }
        if (seen < size) {
            struct data_choices *all = &c->choices;
            if ((all->item_count & (all->item_count - 1)) == 0) {
                size_t room = all->item_count > 0 ? 2 * (size_t)all->item_count : 1;
                all->items = dt_realloc(all->items, room * sizeof *all->items);
                c->lines = dt_realloc(c->lines, room * sizeof *c->lines);
            }
            cJSON *json = dt_scan_parse_others(at, size, where, err);
            rc = json != NULL ? add_item(s, c, json, where, err) : -1;
            if (rc == 0) {
                c->lines[all->item_count++] = (struct choice_line){json, (int64_t)file, number};
            } else {
                cJSON_Delete(json);
            }
        }
        at += size + (stop != NULL);
    }
    if (rc == 0) {
        data_list_file(s, path, s->sample_count - before, XXH3_64bits(dt_text_str(&text), text.size));
        if (s->sample_count == before) {
            rc = dt_fail(err, DT_INVALID, "%s: holds no item", path);
        }
    }
    dt_text_clear(&text);
    return rc;
}

static int open_choices(struct data_source *s, const char *glob, struct dt_error *err)
{
    struct choice_lines *c = dt_alloc(sizeof *c);
    const struct batch_layout *l = &s->layout;
    s->state = c;
    c->field_ids = batch_find(l, "input_ids");
    c->field_labels = s->targets;
    int rc = 0;
    if (c->field_ids < 0 || s->targets < 0 || !l->field[s->targets].from_ids || !l->field[s->targets].shifted) {
        rc = dt_fail(err, DT_INVALID, "%s: multiple choice is for models that write text", glob);
    }
    rc = rc == 0 ? data_files_open(&c->files, glob, false, err) : rc;
    for (size_t i = 0; i < c->files.count && rc == 0; i++) {
        rc = read_file(s, c, i, err);
    }
    if (rc != 0) {
        close_choices(s);
        return -1;
    }
    s->choices = &c->choices;
    s->hash = data_content(s);
    return 0;
}

/* ---- ids ---- */

static void close_coder(struct coder *c)
{
    tokenizer_scratch_close(c->scratch);
    tokenizer_close(c->tokenizer);
    free(c->prefix);
}

/* The tokenizer that the job names, or the one beside the weights that its run begins with. The caller
 * frees it; null: there is none. */
static char *find_tokenizer(const struct job *job)
{
    char *const places[] = {dt_strdup(job->data.tokenizer != NULL ? job->data.tokenizer : ""),
                            job->model.load != NULL ? dt_format("%s/tokenizer.json", job->model.load) : dt_strdup(""),
                            dt_format("%s/" ORIGIN_FOLDER "/tokenizer.json", job->checkpointing.checkpoint_dir)};
    char *found = NULL;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        if (found == NULL && places[i][0] != 0 && dt_file_exists(places[i])) {
            found = places[i];
        } else {
            free(places[i]);
        }
    }
    return found;
}

static int open_coder(struct coder *c, struct data_source *s, const struct job *job, struct dt_error *err)
{
    const struct choice_lines *lines = s->state;
    int64_t vocabulary = s->layout.field[lines->field_ids].below;
    char *path = find_tokenizer(job);
    *c = (struct coder){.prefix_id = -1};
    if (path == NULL) {
        bool bytes = job->data.tokenizer != NULL && strcmp(job->data.tokenizer, "bytes") == 0;
        return vocabulary <= BYTE_IDS || bytes
                   ? 0
                   : dt_fail(err, DT_INVALID,
                             "multiple choice needs the tokenizer, and there is no tokenizer.json "
                             "beside the weights nor as data.tokenizer; set data.tokenizer");
    }
    cJSON *tokens = NULL;
    int rc = tokenizer_open(&c->tokenizer, path, err);
    if (rc == 0 && (tokens = special_tokens_read(path, err)) == NULL) {
        rc = -1;
    }
    if (rc == 0) {
        const char *bos = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tokens, "bos_token")),
                   *eos = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tokens, "eos_token")),
                   *prefix = bos != NULL ? bos : eos;
        c->scratch = tokenizer_scratch_open(c->tokenizer);
        c->prefix_id = prefix != NULL ? tokenizer_id(c->tokenizer, prefix, strlen(prefix)) : -1;
        c->prefix = c->prefix_id >= 0 ? dt_strdup(prefix) : NULL;
        s->tokenizer_hash = tokenizer_hash(c->tokenizer);
    }
    cJSON_Delete(tokens);
    free(path);
    return rc;
}

/* Appends the ids of a text. special: with special tokens, unless the text begins with the prefix. */
static int encode(const struct coder *c, const char *text, bool special, struct token_ids *out, struct dt_error *err)
{
    if (c->tokenizer == NULL) {
        for (; *text != 0; text++) {
            token_ids_add(out, (uint8_t)*text);
        }
        return 0;
    }
    special = special && (c->prefix == NULL || strncmp(text, c->prefix, strlen(c->prefix)) != 0);
    return tokenizer_encode(c->tokenizer, c->scratch, text, strlen(text), special, out, err);
}

/* Bytes of a text without the white space at its end, as Python's rstrip sees it. */
static size_t stripped(const char *text)
{
    size_t size = strlen(text);
    for (size_t at = size; at > 0;) {
        struct unicode_codes code = {0};
        for (at--; at > 0 && (text[at] & 0xc0) == 0x80; at--) {
        }
        unicode_read(&code, text + at, size - at);
        bool white = unicode_is_space(code.count == 1 ? (uint32_t)code.at[0] : 'x');
        unicode_codes_clear(&code);
        if (!white) {
            break;
        }
        size = at;
    }
    return size;
}

/* The ids of a context and of what follows it, as lm-evaluation-harness has them. */
static int encode_pair(const struct coder *c, const char *context, const char *continuation, struct token_ids *before,
                       struct token_ids *after, struct dt_error *err)
{
    struct token_ids whole = {0};
    size_t size = stripped(context);
    char *head = dt_format("%.*s", (int)size, context), *text = dt_format("%s%s", context, continuation);
    int rc = 0;
    if (*context != 0) {
        rc = encode(c, text, true, &whole, err) == 0 ? encode(c, head, true, before, err) : -1;
    } else if ((rc = encode(c, text, false, &whole, err)) == 0 && whole.count > 0 && whole.ids[0] == c->prefix_id) {
        token_ids_add(before, c->prefix_id);
    }
    for (size_t i = before->count; i < whole.count; i++) {
        token_ids_add(after, whole.ids[i]);
    }
    if (rc == 0 && before->count == 0 && c->prefix_id >= 0) {
        token_ids_add(before, c->prefix_id);
    }
    token_ids_clear(&whole);
    free(head);
    free(text);
    return rc;
}

/* Appends the ids of one choice, but for those that do not fit before it. */
static int add_sample(struct data_source *s, struct choice_lines *c, const struct coder *coder, const char *context,
                      const char *continuation, int64_t sample, const char *where, struct dt_error *err)
{
    struct token_ids before = {0}, after = {0};
    int64_t most = s->sequence_length + 1;
    int rc = encode_pair(coder, context, continuation, &before, &after, err);
    if (rc != 0) {
        (void)dt_wrap(err, "%s", where);
    } else if (before.count == 0) {
        rc = dt_fail(err, DT_INVALID,
                     "%s: the context has no ids, and the tokenizer has neither bos_token nor eos_token", where);
    } else if (after.count == 0) {
        rc = dt_fail(err, DT_INVALID, "%s: a choice has no ids", where);
    } else if ((int64_t)after.count >= most) {
        rc = dt_fail(err, DT_INVALID, "%s: a choice has %zu ids, but data.sequence_length is %" PRId64 "; raise it",
                     where, after.count, s->sequence_length);
    }
    int64_t all = (int64_t)(before.count + after.count), left_out = all > most ? all - most : 0;
    for (int64_t i = left_out; i < all && rc == 0; i++) {
        int32_t id = i < (int64_t)before.count ? before.ids[i] : after.ids[i - (int64_t)before.count];
        struct data_largest *largest = &s->largest[c->field_ids];
        largest->value = id > largest->value ? id : largest->value;
        token_ids_add(&c->ids, id);
    }
    c->targets[sample] = (int64_t)after.count;
    c->starts[sample + 1] = (int64_t)c->ids.count;
    token_ids_clear(&before);
    token_ids_clear(&after);
    return rc;
}

static int encode_item(struct data_source *s, struct choice_lines *c, const struct coder *coder, int64_t item,
                       struct dt_error *err)
{
    struct choice_line *line = &c->lines[item];
    const struct data_choice_item *at = &c->choices.items[item];
    const char *context = cJSON_GetObjectItemCaseSensitive(line->json, "context")->valuestring;
    const cJSON *delimiter = cJSON_GetObjectItemCaseSensitive(line->json, "delimiter"), *choice;
    int64_t sample = at->first;
    char where[512];
    int rc = 0;
    (void)snprintf(where, sizeof where, "%s:%" PRId64, c->files.paths[line->file], line->line);
    cJSON_ArrayForEach(choice, cJSON_GetObjectItemCaseSensitive(line->json, "choices"))
    {
        char *continuation = dt_format("%s%s", delimiter != NULL ? delimiter->valuestring : " ", choice->valuestring);
        rc = rc == 0 ? add_sample(s, c, coder, context, continuation, sample++, where, err) : rc;
        free(continuation);
    }
    cJSON_Delete(line->json);
    line->json = NULL;
    return rc;
}

static int prepare_choices(struct data_source *s, const struct job *job, bool training, struct dt_error *err)
{
    struct choice_lines *c = s->state;
    struct coder coder;
    if (training) {
        return dt_fail(err, DT_INVALID, "%s: multiple choice is for data.val; a model is not trained on it",
                       c->files.paths[0]);
    }
    int rc = open_coder(&coder, s, job, err);
    c->starts = dt_alloc((size_t)(s->sample_count + 1) * sizeof *c->starts);
    c->targets = dt_alloc((size_t)s->sample_count * sizeof *c->targets);
    for (int64_t i = 0; i < c->choices.item_count && rc == 0; i++) {
        rc = encode_item(s, c, &coder, i, err);
    }
    s->token_count = (int64_t)c->ids.count;
    s->vocabulary = s->largest[c->field_ids].value + 1;
    close_coder(&coder);
    return rc;
}

/* A row is padded at its end, which no token before it sees. */
static int read_choice(const struct data_source *s, int64_t sample, int64_t epoch, const struct batch *b, int64_t row,
                       struct dt_error *err)
{
    (void)epoch;
    (void)err;
    const struct choice_lines *c = s->state;
    const int32_t *ids = c->ids.ids + c->starts[sample];
    int64_t length = s->sequence_length, count = c->starts[sample + 1] - c->starts[sample];
    int32_t *to = (int32_t *)b->at[c->field_ids] + row * length, *labels = (int32_t *)b->at[s->targets] + row * length;
    for (int f = 0; f < s->layout.count; f++) {
        if (s->layout.field[f].optional) {
            batch_fill_missing(b, f, row);
        }
    }
    for (int64_t i = 0; i < length; i++) {
        to[i] = i + 1 < count ? ids[i] : 0;
        labels[i] = i + 1 < count && i + 1 >= count - c->targets[sample] ? ids[i + 1] : -100;
    }
    return 0;
}

static void expect_choice(const struct data_source *s, int64_t sample)
{
    (void)s;
    (void)sample;
}

const struct data_ops data_choice_lines = {.name = "multiple_choice",
                                           .recognise = recognise,
                                           .open = open_choices,
                                           .prepare = prepare_choices,
                                           .read = read_choice,
                                           .expect = expect_choice,
                                           .close = close_choices};
