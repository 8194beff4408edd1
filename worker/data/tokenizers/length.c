/* Truncation and padding. Truncation drops what the library calls overflowing pieces. */
#include "worker/data/tokenizers/parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The index of a member's text among `choices`, which ends with null. A missing member is `fallback`,
 * -1: it must be there. */
static int part_choice(const cJSON *json, const char *key, const char *const *choices, int fallback, int *out,
                       struct dt_error *err)
{
    const char *text = NULL;
    struct dt_text list = {0};
    struct dt_list names = {.text = &list};
    if (cJSON_GetObjectItemCaseSensitive(json, key) == NULL && fallback >= 0) {
        *out = fallback;
        return 0;
    }
    if (part_text(json, key, "", &text, err) != 0) {
        return -1;
    }
    for (int i = 0; choices[i] != NULL; i++) {
        if (strcmp(text, choices[i]) == 0) {
            *out = i;
            dt_text_clear(&list);
            return 0;
        }
        dt_list_add(&names, "%s", choices[i]);
    }
    char shown[64];
    (void)dt_fail(err, DT_INVALID, "%s: %s; must be one of %s", key,
                  dt_text_excerpt(text, strlen(text), shown, sizeof shown), dt_text_str(&list));
    dt_text_clear(&list);
    return -1;
}

static const char *const directions[] = {"Left", "Right", NULL};

int truncation_open(struct truncation *t, const cJSON *json, struct dt_error *err)
{
    static const char *const strategies[] = {
        [LONGEST_FIRST] = "LongestFirst", [ONLY_FIRST] = "OnlyFirst", [ONLY_SECOND] = "OnlySecond", NULL};
    int direction = 0, strategy = 0;
    *t = (struct truncation){.strategy = LONGEST_FIRST};
    if (json == NULL || cJSON_IsNull(json)) {
        return 0;
    }
    if (part_integer(json, "max_length", -1, INT32_MAX, &t->max_length, err) != 0 ||
        part_integer(json, "stride", -1, INT32_MAX, &t->stride, err) != 0 ||
        part_choice(json, "strategy", strategies, -1, &strategy, err) != 0 ||
        part_choice(json, "direction", directions, 1, &direction, err) != 0) {
        return -1;
    }
    t->given = true;
    t->strategy = (enum truncation_strategy)strategy;
    t->left = direction == 0;
    return 0;
}

/* The strategy is "BatchLongest" or {"Fixed": 16}. *given becomes false for {"Fixed": 0}. */
static int read_length(const cJSON *json, int64_t *length, bool *given, struct dt_error *err)
{
    const cJSON *strategy = cJSON_GetObjectItemCaseSensitive(json, "strategy");
    *length = 0;
    *given = true;
    if (cJSON_IsString(strategy) && strcmp(strategy->valuestring, "BatchLongest") == 0) {
        return 0;
    }
    if (!cJSON_IsObject(strategy)) {
        return dt_fail(err, DT_INVALID, "strategy: must be \"BatchLongest\" or {\"Fixed\": length}");
    }
    if (part_integer(strategy, "Fixed", -1, INT32_MAX, length, err) != 0) {
        return dt_wrap(err, "strategy");
    }
    *given = *length > 0;
    return 0;
}

int padding_open(struct padding *p, const cJSON *json, struct dt_error *err)
{
    int direction = 0;
    int64_t id = 0, type = 0;
    *p = (struct padding){0};
    if (json == NULL || cJSON_IsNull(json)) {
        return 0;
    }
    bool given = false;
    if (read_length(json, &p->length, &given, err) != 0 ||
        part_choice(json, "direction", directions, -1, &direction, err) != 0 ||
        part_integer(json, "pad_to_multiple_of", 0, INT32_MAX, &p->multiple_of, err) != 0 ||
        part_integer(json, "pad_id", -1, INT32_MAX, &id, err) != 0 ||
        part_integer(json, "pad_type_id", -1, UINT8_MAX, &type, err) != 0) {
        return -1;
    }
    p->given = given;
    p->id = (int32_t)id;
    p->type = (int32_t)type;
    p->left = direction == 0;
    return 0;
}

/* Keeps `length` ids of one text. */
static int shorten(const struct truncation *t, struct token_ids *l, size_t length, struct dt_error *err)
{
    if (length >= l->count) {
        return 0;
    }
    if (length > 0 && (uint64_t)t->stride >= length) {
        return dt_fail(err, DT_INVALID,
                       "truncation.stride: %" PRId64 ", but %zu tokens are what a text may keep; make it smaller",
                       t->stride, length);
    }
    if (t->left) {
        memmove(l->ids, l->ids + (l->count - length), length * sizeof *l->ids);
    }
    l->count = length;
    return 0;
}

static int shorten_longest(const struct truncation *t, size_t most, struct token_ids *a, struct token_ids *b,
                           struct dt_error *err)
{
    bool swapped = a->count > b->count;
    size_t shorter = swapped ? b->count : a->count, longer = shorter;
    if (shorter <= most && most - shorter > shorter) {
        longer = most - shorter;
    }
    if (shorter + longer > most) {
        shorter = most / 2;
        longer = shorter + most % 2;
    }
    return shorten(t, a, swapped ? longer : shorter, err) == 0 && shorten(t, b, swapped ? shorter : longer, err) == 0
               ? 0
               : -1;
}

int truncation_apply(const struct truncation *t, size_t added, struct token_ids *a, struct token_ids *b,
                     struct dt_error *err)
{
    if (!t->given) {
        return 0;
    }
    if ((uint64_t)t->max_length < added) {
        return dt_fail(err, DT_INVALID,
                       "cut to %" PRId64 " tokens, but the post-processor alone adds %zu; let a text have more",
                       t->max_length, added);
    }
    size_t most = (size_t)t->max_length - added, total = a->count + (b != NULL ? b->count : 0);
    if (most == 0) {
        a->count = 0;
        if (b != NULL) {
            b->count = 0;
        }
        return 0;
    }
    if (total <= most) {
        return 0;
    }
    if (t->strategy == LONGEST_FIRST) {
        return b != NULL ? shorten_longest(t, most, a, b, err) : shorten(t, a, most, err);
    }
    struct token_ids *target = t->strategy == ONLY_FIRST ? a : b;
    if (target == NULL) {
        return dt_fail(err, DT_INVALID, "truncation.strategy: OnlySecond, but there is one text; use LongestFirst");
    }
    if (target->count <= total - most) {
        return dt_fail(err, DT_INVALID,
                       "truncation.max_length: %" PRId64 ", but the %s text of %zu tokens, which must be shortened by "
                       "%zu, is too short; use LongestFirst",
                       t->max_length, t->strategy == ONLY_FIRST ? "first" : "second", target->count, total - most);
    }
    return shorten(t, target, target->count - (total - most), err);
}

static void pad_one(const struct padding *p, struct token_sequence *q, size_t length)
{
    size_t count = q->ids.count;
    if (count >= length) {
        return;
    }
    if (length > q->ids.capacity) {
        q->ids.ids = dt_realloc(q->ids.ids, length * sizeof *q->ids.ids);
        q->ids.capacity = length;
    }
    if (length > q->capacity) {
        q->types = dt_realloc(q->types, length);
        q->mask = dt_realloc(q->mask, length);
        q->capacity = length;
    }
    size_t from = p->left ? 0 : count, padding = length - count;
    if (p->left) {
        memmove(q->ids.ids + padding, q->ids.ids, count * sizeof *q->ids.ids);
        memmove(q->types + padding, q->types, count);
        memmove(q->mask + padding, q->mask, count);
    }
    for (size_t i = from; i < from + padding; i++) {
        q->ids.ids[i] = p->id;
    }
    memset(q->types + from, p->type, padding);
    memset(q->mask + from, 0, padding);
    q->ids.count = length;
}

void padding_apply(const struct padding *p, struct token_sequence *batch, size_t count)
{
    if (!p->given) {
        return;
    }
    size_t length = (size_t)p->length;
    for (size_t i = 0; p->length == 0 && i < count; i++) {
        length = batch[i].ids.count > length ? batch[i].ids.count : length;
    }
    size_t over = p->multiple_of > 0 ? length % (size_t)p->multiple_of : 0;
    length += over > 0 ? (size_t)p->multiple_of - over : 0;
    for (size_t i = 0; i < count; i++) {
        pad_one(p, &batch[i], length);
    }
}
