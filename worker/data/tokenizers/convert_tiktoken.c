/* tiktoken's ranks to tokenizer.json, with the merges that Transformers' TikTokenConverter recovers. */
#include "worker/data/tokenizers/convert.h"

#include "worker/data/tokenizers/bpe.h"
#include "worker/data/tokenizers/normalizers.h"
#include "worker/data/tokenizers/scanners.h"
#include "worker/data/tokenizers/trie.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANK = 1 << 24 };

struct ranks {
    struct dt_text bytes;      /* of all tokens */
    struct trie_entry *tokens; /* in the order of ranks, which are the values */
    size_t count, capacity;
    struct trie *trie;
};

static void ranks_clear(struct ranks *r)
{
    dt_text_clear(&r->bytes);
    free(r->tokens);
    trie_close(r->trie);
}

/* The rank of a token; -1: there is none. */
static int32_t rank_of(const struct ranks *r, const char *token, size_t size)
{
    uint32_t node = TRIE_ROOT;
    for (size_t i = 0; i < size; i++) {
        node = trie_step(r->trie, node, (unsigned char)token[i]);
        if (node == TRIE_NONE) {
            return -1;
        }
    }
    return trie_value(r->trie, node);
}

/* ---- reading ---- */

static int read_line(struct ranks *r, const char *line, size_t size, struct dt_error *err)
{
    const char *space = memchr(line, ' ', size);
    char number[24] = "";
    long long rank = -1;
    size_t before = r->bytes.size;
    if (space == NULL || size - (size_t)(space - line) > sizeof number ||
        !base64_read(line, (size_t)(space - line), &r->bytes) || r->bytes.size == before) {
        return dt_fail(err, DT_INVALID, "not a token in base64 and a rank");
    }
    memcpy(number, space + 1, size - (size_t)(space + 1 - line));
    if (!dt_parse_int64(number, &rank) || rank < 0 || rank > MOST_RANK) {
        return dt_fail(err, DT_INVALID, "the rank is no whole number from 0 to %d", MOST_RANK);
    }
    if (r->count == r->capacity) {
        r->capacity = r->capacity > 0 ? 2 * r->capacity : 1024;
        r->tokens = dt_realloc(r->tokens, r->capacity * sizeof *r->tokens);
    }
    r->tokens[r->count++] = (struct trie_entry){.size = r->bytes.size - before, .value = (int32_t)rank};
    return 0;
}

static int read_lines(struct ranks *r, const char *text, size_t size, struct dt_error *err)
{
    size_t number = 1;
    for (size_t at = 0; at < size; number++) {
        const char *newline = memchr(text + at, '\n', size - at);
        size_t end = newline != NULL ? (size_t)(newline - text) : size;
        size_t n = end > at && text[end - 1] == '\r' ? end - 1 - at : end - at;
        if (n > 0 && read_line(r, text + at, n, err) != 0) {
            return dt_wrap(err, "line %zu", number);
        }
        at = end + 1;
    }
    const char *token = dt_text_str(&r->bytes);
    for (size_t i = 0; i < r->count; i++) { /* the bytes no longer move */
        r->tokens[i].text = token;
        token += r->tokens[i].size;
    }
    return 0;
}

static int compare_rank(const void *a, const void *b)
{
    const struct trie_entry *x = a, *y = b;
    return x->value < y->value ? -1 : x->value > y->value;
}

/* Ranks and tokens occur once, and each byte is a token. */
static int check_ranks(const struct ranks *r, struct dt_error *err)
{
    for (size_t i = 0; i < r->count; i++) {
        const struct trie_entry *t = &r->tokens[i];
        if ((i > 0 && t->value == r->tokens[i - 1].value) || rank_of(r, t->text, t->size) != t->value) {
            return dt_fail(err, DT_INVALID, "rank %d or its token occurs twice", (int)t->value);
        }
    }
    for (int byte = 0; byte < 256; byte++) {
        const char one = (char)byte;
        if (rank_of(r, &one, 1) < 0) {
            return dt_fail(err, DT_INVALID, "no token of the byte 0x%02x; these are not all ranks", (unsigned)byte);
        }
    }
    return 0;
}

static int read_ranks(struct ranks *r, const char *text, size_t size, struct dt_error *err)
{
    if (read_lines(r, text, size, err) != 0) {
        return -1;
    }
    struct trie_entry *sorted = dt_alloc((r->count + 1) * sizeof *sorted);
    memcpy(sorted, r->tokens, r->count * sizeof *sorted);
    r->trie = trie_open(sorted, r->count);
    free(sorted);
    qsort(r->tokens, r->count, sizeof *r->tokens, compare_rank);
    return check_ranks(r, err);
}

/* ---- writing ---- */

static void add_mapped(struct dt_text *out, const char *token, size_t size)
{
    struct dt_text mapped = {0};
    byte_level_map(token, size, &mapped);
    dt_text_json(out, mapped.data, mapped.size);
    dt_text_clear(&mapped);
}

static int add_special(const struct ranks *r, const struct convert_options *o, struct dt_text *added,
                       struct dt_text *vocabulary, struct dt_error *err)
{
    for (size_t i = 0; i < o->special_count; i++) {
        const struct convert_special *s = &o->special[i];
        for (size_t k = 0; k < r->count + i; k++) {
            int64_t id = k < r->count ? r->tokens[k].value : o->special[k - r->count].id;
            if (id == s->id || (k >= r->count && strcmp(o->special[k - r->count].name, s->name) == 0)) {
                return dt_fail(err, DT_INVALID, "special token %s: %" PRId64 " is taken, or it is given twice", s->name,
                               s->id);
            }
        }
        if (rank_of(r, s->name, strlen(s->name)) >= 0) {
            return dt_fail(err, DT_INVALID, "special token %s: it has a rank already", s->name);
        }
        convert_added_token(added, i == 0, s->id, s->name, strlen(s->name));
        dt_text_puts(vocabulary, ",\n    ");
        dt_text_json(vocabulary, s->name, strlen(s->name));
        dt_text_printf(vocabulary, ": %" PRId64, s->id);
    }
    return 0;
}

/* One way to make a token of two others. */
struct way {
    size_t cut;
    int32_t left, right;
};

static int compare_ways(const void *a, const void *b)
{
    const struct way *x = a, *y = b;
    if (x->left != y->left) {
        return x->left < y->left ? -1 : 1;
    }
    return x->right < y->right ? -1 : x->right > y->right;
}

static void add_merges_of(const struct ranks *r, const struct trie_entry *t, bool *first, struct dt_text *out)
{
    struct way *ways = dt_alloc(t->size * sizeof *ways);
    size_t count = 0;
    for (size_t cut = 1; cut < t->size; cut++) {
        int32_t left = rank_of(r, t->text, cut), right = rank_of(r, t->text + cut, t->size - cut);
        if (left >= 0 && right >= 0) {
            ways[count++] = (struct way){cut, left, right};
        }
    }
    qsort(ways, count, sizeof *ways, compare_ways);
    for (size_t i = 0; i < count; i++) {
        dt_text_puts(out, *first ? "\n    [" : ",\n    [");
        add_mapped(out, t->text, ways[i].cut);
        dt_text_puts(out, ", ");
        add_mapped(out, t->text + ways[i].cut, t->size - ways[i].cut);
        dt_text_puts(out, "]");
        *first = false;
    }
    free(ways);
}

static const char *regex_of(const char *pattern)
{
    static const char llama3[] =
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
        "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    static const char o200k[] =
        "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    const struct {
        const char *name, *regex;
    } known[] = {{"gpt2", scanner_gpt2_regex}, {"cl100k", llama3}, {"llama3", llama3}, {"o200k", o200k}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].name, pattern) == 0) {
            return known[i].regex;
        }
    }
    return pattern;
}

static void add_model(const struct ranks *r, const struct dt_text *special, struct dt_text *out)
{
    bool first = true;
    dt_text_puts(out, "  \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
                      "\"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null, \"fuse_unk\": false, "
                      "\"byte_fallback\": false, \"ignore_merges\": true, \"vocab\": {");
    for (size_t i = 0; i < r->count; i++) {
        dt_text_puts(out, i > 0 ? ",\n    " : "\n    ");
        add_mapped(out, r->tokens[i].text, r->tokens[i].size);
        dt_text_printf(out, ": %d", (int)r->tokens[i].value);
    }
    dt_text_add(out, dt_text_str(special), special->size);
    dt_text_puts(out, "}, \"merges\": [");
    for (size_t i = 0; i < r->count; i++) {
        add_merges_of(r, &r->tokens[i], &first, out);
    }
    dt_text_puts(out, "]}\n");
}

static int convert(const struct ranks *r, const struct convert_options *o, struct dt_text *out, struct dt_error *err)
{
    struct dt_text added = {0}, special = {0};
    const char *regex = regex_of(o->pattern);
    int result = add_special(r, o, &added, &special, err);
    if (result == 0) {
        dt_text_printf(out,
                       "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"
                       "  \"added_tokens\": [%s],\n  \"normalizer\": null,\n  \"pre_tokenizer\": {\"type\": "
                       "\"Sequence\", \"pretokenizers\": [\n    {\"type\": \"Split\", \"pattern\": {\"Regex\": ",
                       dt_text_str(&added));
        dt_text_json(out, regex, strlen(regex));
        dt_text_puts(out,
                     "}, \"behavior\": \"Isolated\", \"invert\": false},\n    {\"type\": \"ByteLevel\", "
                     "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}]},\n"
                     "  \"post_processor\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": "
                     "false, \"use_regex\": true},\n  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": "
                     "true, \"trim_offsets\": true, \"use_regex\": true},\n");
        add_model(r, &special, out);
        dt_text_puts(out, "}\n");
    }
    dt_text_clear(&added);
    dt_text_clear(&special);
    return result;
}

int convert_tiktoken(const char *text, size_t size, const struct convert_options *o, struct dt_text *out,
                     struct dt_error *err)
{
    struct ranks r = {0};
    int result = o->pattern == NULL ? dt_fail(err, DT_INVALID, "ranks do not say how text is split; give a pattern")
                                    : read_ranks(&r, text, size, err);
    if (result == 0) {
        result = convert(&r, o, out, err);
    }
    ranks_clear(&r);
    return result;
}
