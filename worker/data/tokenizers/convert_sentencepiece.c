/* SentencePiece to tokenizer.json. The parts are those that Transformers makes of a model's settings
 * (SpmConverter.build_tokenizer_from_spm_proto). */
#include "worker/data/tokenizers/convert.h"

#include "worker/data/tokenizers/characters.h"
#include "worker/data/tokenizers/normalizers.h"
#include "worker/data/tokenizers/sentencepiece.h"
#include "worker/data/tokenizers/trie.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PRIVATE = 0x100000, PRIVATE_COUNT = 65534 }; /* private characters, of the plane that fonts leave alone */
static const char SPACE[] = "\xe2\x96\x81";         /* U+2581, which stands for a space */

void convert_added_token(struct dt_text *out, bool first, int64_t id, const char *name, size_t size)
{
    dt_text_printf(out, "%s\n    {\"id\": %lld, \"content\": ", first ? "" : ",", (long long)id);
    dt_text_json(out, name, size);
    dt_text_puts(out, ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                      "\"special\": true}");
}

static void add_base64(struct dt_text *out, const char *bytes, size_t size)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *p = (const unsigned char *)bytes;
    for (size_t i = 0; i < size; i += 3) {
        size_t n = size - i < 3 ? size - i : 3;
        uint32_t bits = (uint32_t)p[i] << 16 | (n > 1 ? (uint32_t)p[i + 1] << 8 : 0) | (n > 2 ? p[i + 2] : 0);
        char four[4] = {digits[bits >> 18], digits[bits >> 12 & 63], n > 1 ? digits[bits >> 6 & 63] : '=',
                        n > 2 ? digits[bits & 63] : '='};
        dt_text_add(out, four, 4);
    }
}

/* ---- added tokens, normalizer, pre-tokenizer, post-processor, decoder ---- */

static void add_added_tokens(const struct sentencepiece *m, struct dt_text *out)
{
    bool first = true;
    dt_text_puts(out, "  \"added_tokens\": [");
    for (size_t id = 0; id < m->count; id++) {
        const struct sentence_piece *p = &m->pieces[id];
        if (p->type == PIECE_CONTROL || p->type == PIECE_UNKNOWN) {
            convert_added_token(out, first, (int64_t)id, p->text, p->size);
            first = false;
        }
    }
    dt_text_puts(out, "],\n");
}

static void add_replace(struct dt_text *out, const char *kind, const char *pattern, const char *content)
{
    dt_text_printf(out, ",\n    {\"type\": \"Replace\", \"pattern\": {\"%s\": \"%s\"}, \"content\": \"%s\"}", kind,
                   pattern, content);
}

static int compare_longer(const void *a, const void *b)
{
    const struct sentence_piece *x = *(const struct sentence_piece *const *)a,
                                *y = *(const struct sentence_piece *const *)b;
    return x->size != y->size ? (x->size > y->size ? -1 : 1) : x < y ? -1 : 1;
}

/* The user-defined pieces, the longest first. The caller frees the list. */
static const struct sentence_piece **user_pieces(const struct sentencepiece *m, size_t *count)
{
    const struct sentence_piece **pieces = dt_alloc((m->count + 1) * sizeof(struct sentence_piece *));
    *count = 0;
    for (size_t id = 0; id < m->count; id++) {
        if (m->pieces[id].type == PIECE_USER_DEFINED) {
            pieces[(*count)++] = &m->pieces[id];
        }
    }
    qsort(pieces, *count, sizeof *pieces, compare_longer);
    return pieces;
}

/* A text as the pattern, and another as the content. */
static void add_exchange(struct dt_text *out, const char *from, size_t from_size, const char *to, size_t to_size)
{
    dt_text_puts(out, ",\n    {\"type\": \"Replace\", \"pattern\": {\"String\": ");
    dt_text_json(out, from, from_size);
    dt_text_puts(out, "}, \"content\": ");
    dt_text_json(out, to, to_size);
    dt_text_puts(out, "}");
}

/* SentencePiece keeps user-defined pieces from its map of characters. Where the map would change one, a
 * private character stands for it meanwhile: `before` and `after` exchange the two. */
static int protect_pieces(const struct sentencepiece *m, const char *base64, struct dt_text *before,
                          struct dt_text *after, struct dt_error *err)
{
    size_t count, marks = 0;
    const struct sentence_piece **pieces = user_pieces(m, &count);
    void *map = NULL;
    cJSON *json = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(json, "precompiled_charsmap", base64);
    int result = count > 0 ? precompiled_open(&map, json, err) : 0;
    for (size_t i = 0; result == 0 && i < count; i++) {
        const struct sentence_piece *p = pieces[i];
        struct dt_text mapped = {0};
        char mark[4];
        result = precompiled_apply(map, p->text, p->size, &mapped, err);
        if (result == 0 && marks == PRIVATE_COUNT) {
            result = dt_fail(err, DT_INVALID, "more than %d user-defined pieces", PRIVATE_COUNT);
        } else if (result == 0 && (mapped.size != p->size || memcmp(mapped.data, p->text, p->size) != 0)) {
            size_t size = utf8_write((uint32_t)(PRIVATE + marks++), mark);
            add_exchange(before, p->text, p->size, mark, size);
            add_exchange(after, mark, size, p->text, p->size);
        }
        dt_text_clear(&mapped);
    }
    if (map != NULL) {
        precompiled_close(map);
    }
    cJSON_Delete(json);
    free(pieces);
    return result;
}

/* In SentencePiece's order. The last rule is for Metaspace, which adds no prefix to a text that has one. */
static int add_normalizer(const struct sentencepiece *m, struct dt_text *out, struct dt_error *err)
{
    struct dt_text rules = {0}, base64 = {0}, after = {0};
    int result = 0;
    if (m->charsmap != NULL) {
        add_base64(&base64, m->charsmap, m->charsmap_size);
        result = protect_pieces(m, dt_text_str(&base64), &rules, &after, err);
        dt_text_printf(&rules, ",\n    {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"%s\"}%s",
                       dt_text_str(&base64), dt_text_str(&after));
        dt_text_clear(&base64);
        dt_text_clear(&after);
    }
    if (m->remove_extra_whitespaces) {
        /* At the end the character that stands for a space counts, too. The look behind lets the search
         * try a run of spaces once, not from each of them. */
        const char *also = m->escape_whitespaces ? SPACE : "";
        char pattern[64];
        (void)snprintf(pattern, sizeof pattern, "\\\\A +|(?<![ %s])[ %s]+\\\\z", also, also);
        add_replace(&rules, "Regex", pattern, "");
        add_replace(&rules, "Regex", " {2,}", " ");
    }
    if (m->escape_whitespaces) {
        add_replace(&rules, "String", " ", SPACE);
    }
    if (m->dummy_prefix) {
        char pattern[16], twice[16];
        (void)snprintf(pattern, sizeof pattern, "\\\\A%s", SPACE);
        (void)snprintf(twice, sizeof twice, "%s%s", SPACE, SPACE);
        add_replace(&rules, "Regex", pattern, twice);
    }
    dt_text_printf(out, "  \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [%s]},\n",
                   rules.size > 0 ? rules.data + 1 : "");
    dt_text_clear(&rules);
    return result;
}

/* The characters of a piece as they stand in a regular expression. */
static void add_literal(struct dt_text *regex, const struct sentence_piece *p)
{
    for (size_t i = 0; i < p->size; i++) {
        unsigned char c = (unsigned char)p->text[i];
        bool plain = c >= 0x80 || c < ' ' || c == '_' || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
        if (!plain) {
            dt_text_puts(regex, "\\");
        }
        dt_text_add(regex, p->text + i, 1);
    }
}

/* True if there are user-defined pieces; regex: matches them, the longest first. */
static bool user_defined(const struct sentencepiece *m, struct dt_text *regex)
{
    size_t count;
    const struct sentence_piece **pieces = user_pieces(m, &count);
    for (size_t i = 0; i < count; i++) {
        dt_text_puts(regex, i > 0 ? "|" : "");
        add_literal(regex, pieces[i]);
    }
    free(pieces);
    return count > 0;
}

static void add_pre_tokenizer(const struct sentencepiece *m, const struct dt_text *regex, struct dt_text *out)
{
    struct dt_text parts = {0};
    if (m->dummy_prefix) {
        dt_text_printf(&parts,
                       ",\n    {\"type\": \"Metaspace\", \"replacement\": \"%s\", \"prepend_scheme\": \"always\", "
                       "\"split\": false}",
                       SPACE);
    }
    if (regex->size > 0) {
        dt_text_puts(&parts, ",\n    {\"type\": \"Split\", \"pattern\": {\"Regex\": ");
        dt_text_json(&parts, regex->data, regex->size);
        dt_text_puts(&parts, "}, \"behavior\": \"Isolated\", \"invert\": false}");
    }
    if (parts.size > 0) {
        dt_text_printf(out, "  \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [%s]},\n",
                       parts.data + 1);
    } else {
        dt_text_puts(out, "  \"pre_tokenizer\": null,\n");
    }
    dt_text_clear(&parts);
}

static void add_special(const struct sentencepiece *m, int64_t id, int type, struct dt_text *out)
{
    dt_text_puts(out, "{\"SpecialToken\": {\"id\": ");
    dt_text_json(out, m->pieces[id].text, m->pieces[id].size);
    dt_text_printf(out, ", \"type_id\": %d}}", type);
}

static void add_sequence(const struct sentencepiece *m, const struct convert_options *o, char name, int type,
                         struct dt_text *out)
{
    if (o->begin) {
        add_special(m, m->begin, type, out);
        dt_text_puts(out, ", ");
    }
    dt_text_printf(out, "{\"Sequence\": {\"id\": \"%c\", \"type_id\": %d}}", name, type);
    if (o->end) {
        dt_text_puts(out, ", ");
        add_special(m, m->end, type, out);
    }
}

static void add_token(const struct sentencepiece *m, int64_t id, struct dt_text *out)
{
    const struct sentence_piece *p = &m->pieces[id];
    dt_text_json(out, p->text, p->size);
    dt_text_puts(out, ": {\"id\": ");
    dt_text_json(out, p->text, p->size);
    dt_text_printf(out, ", \"ids\": [%lld], \"tokens\": [", (long long)id);
    dt_text_json(out, p->text, p->size);
    dt_text_puts(out, "]}");
}

static int add_post_processor(const struct sentencepiece *m, const struct convert_options *o, struct dt_text *out,
                              struct dt_error *err)
{
    if ((o->begin && m->begin < 0) || (o->end && m->end < 0)) {
        return dt_fail(err, DT_INVALID, "the model has no %s token; leave out --%s",
                       o->begin && m->begin < 0 ? "begin" : "end", o->begin && m->begin < 0 ? "bos" : "eos");
    }
    if (!o->begin && !o->end) {
        dt_text_puts(out, "  \"post_processor\": null,\n");
        return 0;
    }
    dt_text_puts(out, "  \"post_processor\": {\"type\": \"TemplateProcessing\",\n    \"single\": [");
    add_sequence(m, o, 'A', 0, out);
    dt_text_puts(out, "],\n    \"pair\": [");
    add_sequence(m, o, 'A', 0, out);
    dt_text_puts(out, ", ");
    add_sequence(m, o, 'B', 1, out);
    dt_text_puts(out, "],\n    \"special_tokens\": {");
    if (o->begin) {
        add_token(m, m->begin, out);
    }
    if (o->end && !(o->begin && m->end == m->begin)) {
        dt_text_puts(out, o->begin ? ", " : "");
        add_token(m, m->end, out);
    }
    dt_text_puts(out, "}},\n");
    return 0;
}

static void add_decoder(const struct sentencepiece *m, struct dt_text *out)
{
    dt_text_printf(out,
                   "  \"decoder\": {\"type\": \"Sequence\", \"decoders\": [\n    {\"type\": \"Replace\", \"pattern\": "
                   "{\"String\": \"%s\"}, \"content\": \" \"}",
                   SPACE);
    if (m->byte_fallback) {
        dt_text_puts(out, ",\n    {\"type\": \"ByteFallback\"}");
    }
    if (m->byte_fallback || m->dummy_prefix) {
        dt_text_puts(out, ",\n    {\"type\": \"Fuse\"}");
    }
    if (m->dummy_prefix) {
        dt_text_puts(out, ",\n    {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}");
    }
    dt_text_puts(out, "]},\n");
}

/* ---- models ---- */

/* The shortest digits that give the number back. */
static void add_score(struct dt_text *out, double score)
{
    char text[40];
    for (int precision = 15; precision <= 17; precision++) {
        (void)snprintf(text, sizeof text, "%.*g", precision, score);
        if (strtod(text, NULL) == score) {
            break;
        }
    }
    dt_text_puts(out, text);
}

static void add_unigram(const struct sentencepiece *m, struct dt_text *out)
{
    dt_text_printf(out, "  \"model\": {\"type\": \"Unigram\", \"unk_id\": %lld, \"vocab\": [", (long long)m->unknown);
    for (size_t id = 0; id < m->count; id++) {
        dt_text_puts(out, id > 0 ? ",\n    [" : "\n    [");
        dt_text_json(out, m->pieces[id].text, m->pieces[id].size);
        dt_text_puts(out, ", ");
        add_score(out, (double)m->pieces[id].score);
        dt_text_puts(out, "]");
    }
    dt_text_printf(out, "],\n    \"byte_fallback\": %s}\n", m->byte_fallback ? "true" : "false");
}

struct ranked {
    float score;
    int32_t id;
};

/* The best first. */
static int compare_ranked(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->score != y->score) {
        return x->score > y->score ? -1 : 1;
    }
    return x->id < y->id ? -1 : 1;
}

static bool is_normal(const struct trie *normal, const char *text, size_t size)
{
    uint32_t node = TRIE_ROOT;
    for (size_t i = 0; i < size; i++) {
        node = trie_step(normal, node, (unsigned char)text[i]);
        if (node == TRIE_NONE) {
            return false;
        }
    }
    return trie_value(normal, node) >= 0;
}

/* A merge for each way to make a piece of two others; pieces by their scores, the ways by length. */
static void add_merges(const struct sentencepiece *m, struct dt_text *out)
{
    struct ranked *order = dt_alloc((m->count + 1) * sizeof *order);
    struct trie_entry *entries = dt_alloc((m->count + 1) * sizeof *entries);
    size_t count = 0;
    bool first = true;
    for (size_t id = 0; id < m->count; id++) {
        const struct sentence_piece *p = &m->pieces[id];
        if (p->type == PIECE_NORMAL) {
            order[count] = (struct ranked){p->score, (int32_t)id};
            entries[count++] = (struct trie_entry){p->text, p->size, (int32_t)id};
        }
    }
    qsort(order, count, sizeof *order, compare_ranked);
    struct trie *normal = trie_open(entries, count);
    for (size_t i = 0; i < count; i++) {
        const struct sentence_piece *p = &m->pieces[order[i].id];
        for (size_t cut = 1; cut < p->size; cut++) {
            if (((unsigned char)p->text[cut] & 0xc0) == 0x80 || !is_normal(normal, p->text, cut) ||
                !is_normal(normal, p->text + cut, p->size - cut)) {
                continue;
            }
            dt_text_puts(out, first ? "\n    [" : ",\n    [");
            dt_text_json(out, p->text, cut);
            dt_text_puts(out, ", ");
            dt_text_json(out, p->text + cut, p->size - cut);
            dt_text_puts(out, "]");
            first = false;
        }
    }
    trie_close(normal);
    free(entries);
    free(order);
}

static void add_bpe(const struct sentencepiece *m, bool user, struct dt_text *out)
{
    const struct sentence_piece *unknown = &m->pieces[m->unknown];
    dt_text_puts(out, "  \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": ");
    dt_text_json(out, unknown->text, unknown->size);
    dt_text_printf(out,
                   ", \"continuing_subword_prefix\": null, \"end_of_word_suffix\": null,\n    \"fuse_unk\": true, "
                   "\"byte_fallback\": %s, \"ignore_merges\": %s, \"vocab\": {",
                   m->byte_fallback ? "true" : "false", user ? "true" : "false");
    for (size_t id = 0; id < m->count; id++) {
        dt_text_puts(out, id > 0 ? ",\n    " : "\n    ");
        dt_text_json(out, m->pieces[id].text, m->pieces[id].size);
        dt_text_printf(out, ": %zu", id);
    }
    dt_text_puts(out, "}, \"merges\": [");
    add_merges(m, out);
    dt_text_puts(out, "]}\n");
}

/* ---- all of it ---- */

static int check(const struct sentencepiece *m, struct dt_error *err)
{
    if (m->model != SENTENCEPIECE_UNIGRAM && m->model != SENTENCEPIECE_BPE) {
        return dt_fail(err, DT_INVALID, "trainer_spec.model_type: %s; only unigram and bpe can be converted",
                       m->model == SENTENCEPIECE_WORD ? "word" : "char");
    }
    if (m->suffix) {
        return dt_fail(err, DT_INVALID, "trainer_spec.treat_whitespace_as_suffix cannot be said in a tokenizer.json");
    }
    for (size_t id = 0; id < m->count; id++) {
        if (m->pieces[id].type == PIECE_UNUSED) {
            return dt_fail(err, DT_INVALID, "piece %zu is of type UNUSED, which a tokenizer.json does not have", id);
        }
    }
    return 0;
}

/* Spaces in a piece: as they are, or as the character that stands for them. */
static int spaces_of(const struct sentence_piece *p)
{
    int count = 0;
    for (size_t i = 0; i < p->size; i++) {
        bool escaped = p->size - i >= strlen(SPACE) && memcmp(p->text + i, SPACE, strlen(SPACE)) == 0;
        count += p->text[i] == ' ' || escaped;
    }
    return count;
}

static void say_differs(const struct sentencepiece *m, struct dt_text *out)
{
    int most = 0;
    for (size_t id = 0; id < m->count; id++) {
        int spaces = m->pieces[id].type == PIECE_USER_DEFINED ? spaces_of(&m->pieces[id]) : 0;
        most = spaces > most ? spaces : most;
    }
    if (m->model == SENTENCEPIECE_UNIGRAM && m->byte_fallback) {
        dt_text_puts(out,
                     "the name of a byte piece in a text, like <0x0A>, is the byte; characters in SentencePiece\n");
    }
    if (most > 1 && m->remove_extra_whitespaces) {
        dt_text_puts(out, "user-defined pieces of several spaces are never found, because extra spaces are removed "
                          "first; SentencePiece keeps them\n");
    } else if (most > 0 && m->model == SENTENCEPIECE_UNIGRAM) {
        dt_text_puts(out, "user-defined pieces with spaces are taken wherever they stand; SentencePiece weighs them\n");
    }
}

static int convert(const struct sentencepiece *m, const struct convert_options *o, struct dt_text *out,
                   struct dt_error *err)
{
    struct dt_text regex = {0};
    if (check(m, err) != 0) {
        return -1;
    }
    if (o->differs != NULL) {
        say_differs(m, o->differs);
    }
    dt_text_puts(out, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n");
    add_added_tokens(m, out);
    if (add_normalizer(m, out, err) != 0) {
        return -1;
    }
    bool user = user_defined(m, &regex);
    add_pre_tokenizer(m, &regex, out);
    dt_text_clear(&regex);
    if (add_post_processor(m, o, out, err) != 0) {
        return -1;
    }
    add_decoder(m, out);
    if (m->model == SENTENCEPIECE_UNIGRAM) {
        add_unigram(m, out);
    } else {
        add_bpe(m, user, out);
    }
    dt_text_puts(out, "}\n");
    return 0;
}

int convert_sentencepiece(const void *bytes, size_t size, const struct convert_options *o, struct dt_text *out,
                          struct dt_error *err)
{
    struct sentencepiece m;
    if (sentencepiece_read(&m, bytes, size, err) != 0) {
        return -1;
    }
    int result = convert(&m, o, out, err);
    sentencepiece_clear(&m);
    return result;
}
