/* Replace: a text in the place of each match of a pattern. */
#include "worker/data/tokenizers/normalizers.h"

#include <stdlib.h>
#include <string.h>

struct replace {
    struct pattern *pattern;
    char *content;
};

int replace_open(void **state, const cJSON *json, struct dt_error *err)
{
    const char *content = NULL;
    struct pattern *pattern = NULL;
    if (part_text(json, "content", NULL, &content, err) != 0) {
        return -1;
    }
    if (content == NULL) {
        return dt_fail(err, DT_INVALID, "content: missing; must be a text");
    }
    if (pattern_open(&pattern, cJSON_GetObjectItemCaseSensitive(json, "pattern"), err) != 0) {
        return dt_wrap(err, "pattern");
    }
    struct replace *r = dt_alloc(sizeof *r);
    *r = (struct replace){pattern, dt_strdup(content)};
    *state = r;
    return 0;
}

int replace_apply(const void *state, const char *text, size_t size, struct dt_text *out, struct dt_error *err)
{
    const struct replace *r = state;
    if (size == 0) {
        return 0; /* the library looks for nothing in it */
    }
    struct pattern_search search = {.pattern = r->pattern, .text = text, .size = size};
    size_t done = 0, begin = 0, end = 0;
    int found = 0;
    while ((found = pattern_next(&search, &begin, &end, err)) > 0) {
        dt_text_add(out, text + done, begin - done);
        dt_text_puts(out, r->content);
        done = end;
    }
    dt_text_add(out, text + done, size - done);
    return found;
}

void replace_close(void *state)
{
    struct replace *r = state;
    pattern_close(r->pattern);
    free(r->content);
    free(r);
}
