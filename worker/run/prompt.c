/* See the header. */
#include "worker/run/prompt.h"

#include "base/file.h"
#include "worker/data/tokenizers/tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 256 << 20 };
#define BETWEEN " \t\r,"

static struct generate_row *add_row(struct prompts *p)
{
    p->rows = dt_realloc(p->rows, (size_t)(p->count + 1) * sizeof *p->rows);
    p->rows[p->count] = (struct generate_row){0};
    return &p->rows[p->count++];
}

static void add_id(struct generate_row *r, int32_t id)
{
    if ((r->count & (r->count - 1)) == 0) {
        r->ids = dt_realloc(r->ids, (size_t)(r->count > 0 ? 2 * r->count : 1) * sizeof *r->ids);
    }
    r->ids[r->count++] = id;
    r->prompt_count = r->count;
}

/* Adds a text by the source's tokenizer. */
static int add_encoded(struct prompts *p, const struct model_source *source, const char *text, struct dt_error *err)
{
    struct token_ids ids = {0};
    if (p->tokenizer == NULL && tokenizer_open(&p->tokenizer, source->tokenizer, err) != 0) {
        return -1;
    }
    struct tokenizer_scratch *scratch = tokenizer_scratch_open(p->tokenizer);
    int rc = tokenizer_encode(p->tokenizer, scratch, text, strlen(text), true, &ids, err);
    tokenizer_scratch_close(scratch);
    struct generate_row *r = add_row(p);
    r->is_text = true;
    for (size_t i = 0; rc == 0 && i < ids.count; i++) {
        add_id(r, ids.ids[i]);
    }
    token_ids_clear(&ids);
    return rc;
}

int prompts_add_text(struct prompts *p, const struct model_source *source, const char *text, struct dt_error *err)
{
    int64_t vocabulary, positions;
    if (generate_limits(source, &vocabulary, &positions, err) != 0) {
        return -1;
    }
    if (source->tokenizer != NULL) {
        return add_encoded(p, source, text, err);
    }
    if (vocabulary > 256) {
        return dt_fail(err, DT_INVALID,
                       "the model has %lld tokens, and there is no tokenizer.json beside its weights nor as "
                       "data.tokenizer; add it, or give ids (train --generate PATH --prompt_ids)",
                       (long long)vocabulary);
    }
    struct generate_row *r = add_row(p);
    r->is_text = true;
    for (const char *c = text; *c != 0; c++) {
        if ((uint8_t)*c >= vocabulary) {
            return dt_fail(err, DT_INVALID, "the prompt holds byte %d; the model knows %lld tokens", (uint8_t)*c,
                           (long long)vocabulary);
        }
        add_id(r, (uint8_t)*c);
    }
    return 0;
}

/* Adds the ids of one line. */
static int add_line(struct generate_row *r, const char *line, size_t size, struct dt_error *err)
{
    const char *at = line + strspn(line, BETWEEN), *end = line + size;
    if (memchr(line, ',', (size_t)(at - line)) != NULL) {
        return dt_fail(err, DT_INVALID, "an id is missing before the first comma");
    }
    while (at < end) {
        char *behind;
        errno = 0;
        long id = strtol(at, &behind, 10);
        if (behind == at || (behind < end && strchr(BETWEEN, *behind) == NULL) || errno != 0 || id < 0 ||
            id > INT32_MAX) {
            return dt_fail(err, DT_INVALID, "%.*s: is no id; give ids like 5,17,3",
                           (int)(end - at < 32 ? end - at : 32), at);
        }
        add_id(r, (int32_t)id);
        size_t between = strspn(behind, BETWEEN);
        at = behind + between;
        const char *comma = memchr(behind, ',', between);
        if (comma != NULL && (comma != memrchr(behind, ',', between) || at >= end)) {
            return dt_fail(err, DT_INVALID, "an id is missing behind %ld, %s", id,
                           at >= end ? "at the end of the list" : "between two commas");
        }
    }
    return 0;
}

static int add_file(struct prompts *p, const char *path, struct dt_error *err)
{
    struct dt_text text;
    dt_text_init(&text);
    int rc = dt_file_read(path, FILE_MAX, &text, err);
    int64_t before = p->count, number = 1;
    for (const char *line = dt_text_str(&text); rc == 0 && *line != 0; number++) {
        size_t size = strcspn(line, "\n");
        if (strspn(line, BETWEEN) < size) {
            rc = add_line(add_row(p), line, size, err);
        }
        if (rc != 0) {
            (void)dt_wrap(err, "%s:%lld", path, (long long)number);
        }
        line += size + (line[size] != 0);
    }
    if (rc == 0 && p->count == before) {
        rc = dt_fail(err, DT_INVALID, "%s: holds no prompt; give a line of ids for each", path);
    }
    dt_text_clear(&text);
    return rc;
}

int prompts_add_ids(struct prompts *p, const char *list, struct dt_error *err)
{
    return list[0] == '@' ? add_file(p, list + 1, err) : add_line(add_row(p), list, strlen(list), err);
}

int prompts_add_job(struct prompts *p, const struct model_source *source, const struct job_generation *job,
                    struct dt_error *err)
{
    for (int i = 0; i < job->prompt.count; i++) {
        if (prompts_add_text(p, source, job->prompt.of[i], err) != 0) {
            return dt_wrap(err, "generation.prompt");
        }
    }
    for (int i = 0; i < job->prompt_ids.count; i++) {
        if (prompts_add_ids(p, job->prompt_ids.of[i], err) != 0) {
            return dt_wrap(err, "generation.prompt_ids");
        }
    }
    return 0;
}

void prompts_clear(struct prompts *p)
{
    for (int64_t i = 0; i < p->count; i++) {
        free(p->rows[i].ids);
    }
    free(p->rows);
    tokenizer_close(p->tokenizer);
    *p = (struct prompts){0};
}

void prompt_show_text(const struct tokenizer *t, const int32_t *ids, int64_t count, struct dt_text *out)
{
    if (t != NULL) {
        tokenizer_decode(t, ids, (size_t)count, true, out);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        char c = (char)(ids[i] == '\n' || ids[i] == '\t' || (ids[i] >= 32 && ids[i] < 127) ? ids[i] : '.');
        dt_text_add(out, &c, 1);
    }
}

void prompt_show_visible(const struct dt_text *text, struct dt_text *out)
{
    for (size_t i = 0, size; i < text->size; i += size) {
        const char *at = text->data + i, *tab = memchr(at, '\t', text->size - i);
        size = tab == NULL ? text->size - i : tab == at ? 1 : (size_t)(tab - at);
        if (tab == at) {
            dt_text_add(out, at, 1);
        } else {
            dt_text_add_visible(out, at, size, true);
        }
    }
}

void prompt_show_ids(const int32_t *ids, int64_t count, struct dt_text *out)
{
    for (int64_t i = 0; i < count; i++) {
        dt_text_printf(out, "%s%d", i > 0 ? "," : "", ids[i]);
    }
}

void prompt_show_json(int64_t number, const struct generate_row *r, struct dt_text *out)
{
    static const char *const ends[] = {
        [GENERATE_STOPPED] = "stop", [GENERATE_LENGTH] = "length", [GENERATE_POSITIONS] = "positions"};
    dt_text_printf(out, "\"row\": %lld, \"prompt_ids\": [", (long long)number);
    prompt_show_ids(r->ids, r->prompt_count, out);
    dt_text_puts(out, "], \"ids\": [");
    prompt_show_ids(r->ids + r->prompt_count, r->count - r->prompt_count, out);
    dt_text_printf(out, "], \"end\": \"%s\"", ends[r->end]);
}
