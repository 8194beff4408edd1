/* Patterns of tokenizer.json on PCRE2. The tokenizers library runs them with Oniguruma, which writes
 * some things otherwise (pattern_translate.c), and knows a newer Unicode. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "worker/data/tokenizers/pattern.h"
#include "worker/data/tokenizers/characters.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

struct pattern {
    char *literal; /* of {"String": ...}; null: code */
    size_t literal_size;
    pcre2_code *code;
};

enum { JIT_STACK_FIRST = 64 << 10, JIT_STACK_MOST = 64 << 20, PATTERN_MOST = 64 << 10 };

static int compile(struct pattern *p, const char *regex, struct dt_error *err)
{
    struct dt_text translated;
    int number;
    size_t at;
    if (strlen(regex) > PATTERN_MOST) {
        return dt_fail(err, DT_INVALID, "Regex: longer than %d bytes", PATTERN_MOST);
    }
    dt_text_init(&translated);
    if (pattern_translate(regex, &translated, err) != 0) {
        dt_text_clear(&translated);
        return -1;
    }
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    (void)pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    p->code = pcre2_compile((PCRE2_SPTR)translated.data, translated.size, PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK,
                            &number, &at, context);
    pcre2_compile_context_free(context);
    dt_text_clear(&translated);
    if (p->code == NULL) {
        PCRE2_UCHAR words[160];
        (void)pcre2_get_error_message(number, words, sizeof words);
        char shown[80];
        return dt_fail(err, DT_INVALID, "Regex: %s: %s", dt_text_excerpt(regex, strlen(regex), shown, sizeof shown),
                       (const char *)words);
    }
    (void)pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); /* without it the interpreter does the same */
    return 0;
}

int pattern_open(struct pattern **out, const cJSON *json, struct dt_error *err)
{
    const cJSON *literal = cJSON_GetObjectItemCaseSensitive(json, "String");
    const cJSON *regex = cJSON_GetObjectItemCaseSensitive(json, "Regex");
    if (!cJSON_IsString(literal) == !cJSON_IsString(regex)) {
        return dt_fail(err, DT_INVALID, "must be {\"String\": text} or {\"Regex\": text}");
    }
    struct pattern *p = dt_alloc(sizeof *p);
    if (cJSON_IsString(literal)) {
        p->literal = dt_strdup(literal->valuestring);
        p->literal_size = strlen(p->literal);
    } else if (compile(p, regex->valuestring, err) != 0) {
        pattern_close(p);
        return -1;
    }
    *out = p;
    return 0;
}

void pattern_close(struct pattern *p)
{
    if (p != NULL) {
        pcre2_code_free(p->code);
        free(p->literal);
        free(p);
    }
}

/* With a larger stack; for the rare match that needs it. */
static int match_deep(const struct pattern_search *s)
{
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    pcre2_jit_stack *stack = pcre2_jit_stack_create(JIT_STACK_FIRST, JIT_STACK_MOST, NULL);
    pcre2_jit_stack_assign(context, NULL, stack);
    int rc =
        pcre2_match(s->pattern->code, (PCRE2_SPTR)s->text, s->size, s->from, PCRE2_NO_UTF_CHECK, s->match, context);
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    return rc;
}

/* A match from s->from on, 1, 0 or -1. */
static int search(struct pattern_search *s, size_t *begin, size_t *end, struct dt_error *err)
{
    const struct pattern *p = s->pattern;
    if (p->literal != NULL) {
        const char *found = p->literal_size == 0
                                ? s->text + s->from
                                : memmem(s->text + s->from, s->size - s->from, p->literal, p->literal_size);
        *begin = found != NULL ? (size_t)(found - s->text) : 0;
        *end = *begin + p->literal_size;
        return found != NULL;
    }
    if (s->match == NULL) {
        s->match = pcre2_match_data_create(1, NULL);
    }
    int rc = pcre2_match(p->code, (PCRE2_SPTR)s->text, s->size, s->from, PCRE2_NO_UTF_CHECK, s->match, NULL);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
        rc = match_deep(s);
    }
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
        PCRE2_UCHAR words[160];
        (void)pcre2_get_error_message(rc, words, sizeof words);
        return dt_fail(err, DT_INVALID, "the pattern of the tokenizer cannot be searched from byte %zu on: %s", s->from,
                       (const char *)words);
    }
    if (rc < 0) {
        return 0;
    }
    const size_t *at = pcre2_get_ovector_pointer(s->match);
    *begin = at[0];
    *end = at[1];
    return 1;
}

/* Like Oniguruma's find_iter: an empty match right behind the last match does not count. */
int pattern_next(struct pattern_search *s, size_t *begin, size_t *end, struct dt_error *err)
{
    int rc = 0;
    while (s->from <= s->size && (rc = search(s, begin, end, err)) == 1) {
        if (*begin == *end && s->any && s->last == *end) {
            size_t n = 1;
            if (s->from < s->size) {
                (void)utf8_read(s->text + s->from, &n);
            }
            s->from += n;
            continue;
        }
        s->from = s->last = *end;
        s->any = true;
        return 1;
    }
    pattern_search_end(s);
    return s->from > s->size ? 0 : rc;
}

void pattern_search_end(struct pattern_search *s)
{
    pcre2_match_data_free(s->match);
    s->match = NULL;
}
