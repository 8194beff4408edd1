/* See the header. */
#include "cmd/dtdata/train_format.h"

#include <string.h>

#define APOSTROPHES "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LINES_AND_SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define BYTE_LEVEL(regex)                                                                                              \
    "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": " regex "}"
#define METASPACE(scheme)                                                                                              \
    "{\"type\": \"Metaspace\", \"replacement\": \"\xe2\x96\x81\", \"prepend_scheme\": \"" scheme "\", \"split\": "     \
    "true}"
#define END_OF_TEXT "<|endoftext|>"

static const struct train_shape shapes[] = {
    {.type = TRAIN_BPE,
     .pattern = "gpt2",
     .normalizer = "null",
     .decoder = BYTE_LEVEL("true"),
     .pre_tokenizer = BYTE_LEVEL("true"),
     .bytes = true,
     .special = {END_OF_TEXT}},
    {.type = TRAIN_BPE,
     .pattern = "llama3",
     .normalizer = "null",
     .decoder = BYTE_LEVEL("true"),
     .expression =
         APOSTROPHES "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" LINES_AND_SPACES,
     .bytes = true,
     .special = {"<|begin_of_text|>", "<|end_of_text|>"}},
    {.type = TRAIN_BPE,
     .pattern = "qwen2",
     .normalizer = "{\"type\": \"NFC\"}",
     .decoder = BYTE_LEVEL("true"),
     .expression = APOSTROPHES "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" LINES_AND_SPACES,
     .bytes = true,
     .special = {END_OF_TEXT}},
    {.type = TRAIN_BPE,
     .pattern = "o200k",
     .normalizer = "null",
     .decoder = BYTE_LEVEL("true"),
     .expression = "[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]*[" LOWER "]+" APOSTROPHES "?|[^\\r\\n\\p{L}\\p{N}]?[" UPPER
                   "]+[" LOWER "]*" APOSTROPHES "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" LINES_AND_SPACES,
     .bytes = true,
     .special = {END_OF_TEXT}},
    {.type = TRAIN_BPE,
     .pattern = "sentencepiece",
     .normalizer = "null",
     .decoder = "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": {\"String\": "
                "\"\xe2\x96\x81\"}, \"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}, "
                "{\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}]}",
     .pre_tokenizer = METASPACE("first"),
     .byte_fallback = true,
     .lines = true,
     .unknown = "<unk>",
     .special = {"<unk>", "<s>", "</s>"}},
    {.type = TRAIN_WORDPIECE,
     .decoder = "{\"type\": \"WordPiece\", \"prefix\": \"##\", \"cleanup\": true}",
     .pre_tokenizer = "{\"type\": \"BertPreTokenizer\"}",
     .unknown = "[UNK]",
     .special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}},
    {.type = TRAIN_UNIGRAM,
     .normalizer = "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFKC\"}, {\"type\": \"Replace\", "
                   "\"pattern\": {\"Regex\": \"\\\\s+\"}, \"content\": \" \"}]}",
     .decoder = METASPACE("always"),
     .pre_tokenizer = METASPACE("always"),
     .lines = true,
     .unknown = "<unk>",
     .special = {"<unk>", "<s>", "</s>"}},
};

const struct train_shape *train_shape_find(enum train_type type, const char *pattern, struct train_shape *own,
                                           struct dt_text *names)
{
    struct dt_list list = {.text = names};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const struct train_shape *s = &shapes[i];
        if (s->type == type && (pattern == NULL || (s->pattern != NULL && strcmp(s->pattern, pattern) == 0))) {
            return s;
        }
        if (s->type == type && s->pattern != NULL) {
            dt_list_add(&list, "%s", s->pattern);
        }
    }
    /* no name looks like an expression */
    if (type == TRAIN_BPE && strspn(pattern, "abcdefghijklmnopqrstuvwxyz0123456789_-") != strlen(pattern)) {
        *own = shapes[0];
        own->pattern = NULL;
        own->expression = pattern;
        return own;
    }
    return NULL;
}

void train_byte_characters(uint32_t out[256])
{
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; b++) {
        bool itself = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        out[b] = itself ? b : next++;
    }
}

static void add_string(struct dt_text *out, const char *s, size_t size)
{
    dt_text_json(out, s, size);
}

static void add_pre_tokenizer(const struct train_shape *shape, struct dt_text *out)
{
    if (shape->expression == NULL) {
        dt_text_puts(out, shape->pre_tokenizer);
        return;
    }
    dt_text_puts(out, "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": ");
    add_string(out, shape->expression, strlen(shape->expression));
    dt_text_puts(out, "}, \"behavior\": \"Isolated\", \"invert\": false}, " BYTE_LEVEL("false") "]}");
}

static void add_begin(const struct train_shape *shape, bool keep_case, const char *added, struct dt_text *out)
{
    dt_text_printf(out,
                   "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": "
                   "[%s],\n  \"normalizer\": ",
                   added);
    if (shape->type == TRAIN_WORDPIECE) {
        dt_text_printf(out,
                       "{\"type\": \"BertNormalizer\", \"clean_text\": true, \"handle_chinese_chars\": true, "
                       "\"strip_accents\": null, \"lowercase\": %s}",
                       keep_case ? "false" : "true");
    } else {
        dt_text_puts(out, shape->normalizer);
    }
    dt_text_puts(out, ",\n  \"pre_tokenizer\": ");
    add_pre_tokenizer(shape, out);
}

void train_splitter_json(const struct train_shape *shape, bool keep_case, struct dt_text *out)
{
    add_begin(shape, keep_case, "", out);
    dt_text_puts(out,
                 ",\n  \"post_processor\": null,\n  \"decoder\": null,\n  \"model\": {\"type\": \"BPE\", \"dropout\": "
                 "null, \"unk_token\": null, \"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, "
                 "\"fuse_unk\": false, \"byte_fallback\": false, \"ignore_merges\": false, \"vocab\": {\"a\": 0}, "
                 "\"merges\": []}\n}\n");
}

static void add_token(struct dt_text *out, const struct train_vocabulary *v, uint32_t id)
{
    size_t size;
    const char *token = train_vocabulary_token(v, id, &size);
    add_string(out, token, size);
}

static void add_vocabulary(const struct train_vocabulary *v, struct dt_text *out)
{
    dt_text_puts(out, "\"vocab\": {");
    for (uint32_t id = 0; id < v->count; id++) {
        dt_text_puts(out, id > 0 ? ",\n      " : "\n      ");
        add_token(out, v, id);
        dt_text_printf(out, ": %u", id);
    }
    dt_text_puts(out, "\n    }");
}

static void add_bpe(const struct trained *t, struct dt_text *out)
{
    const char *unknown = t->shape->unknown;
    dt_text_printf(
        out,
        "{\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": %s%s%s,\n    "
        "\"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": %s,\n    "
        "\"byte_fallback\": %s,\n    \"ignore_merges\": false,\n    ",
        unknown != NULL ? "\"" : "", unknown != NULL ? unknown : "null", unknown != NULL ? "\"" : "",
        t->shape->byte_fallback ? "true" : "false", t->shape->byte_fallback ? "true" : "false");
    add_vocabulary(t->vocabulary, out);
    dt_text_puts(out, ",\n    \"merges\": [");
    for (size_t i = 0; i < t->merge_count; i++) {
        dt_text_puts(out, i > 0 ? ",\n      [" : "\n      [");
        add_token(out, t->vocabulary, t->merges[i].left);
        dt_text_puts(out, ", ");
        add_token(out, t->vocabulary, t->merges[i].right);
        dt_text_puts(out, "]");
    }
    dt_text_puts(out, "\n    ]\n  }");
}

static void add_wordpiece(const struct trained *t, struct dt_text *out)
{
    dt_text_printf(out,
                   "{\n    \"type\": \"WordPiece\",\n    \"unk_token\": \"%s\",\n    \"continuing_subword_prefix\": "
                   "\"##\",\n    \"max_input_chars_per_word\": 100,\n    ",
                   t->shape->unknown);
    add_vocabulary(t->vocabulary, out);
    dt_text_puts(out, "\n  }");
}

static void add_unigram(const struct trained *t, struct dt_text *out)
{
    dt_text_printf(out, "{\n    \"type\": \"Unigram\",\n    \"unk_id\": %u,\n    \"vocab\": [",
                   train_vocabulary_find(t->vocabulary, t->shape->unknown, strlen(t->shape->unknown)));
    for (uint32_t id = 0; id < t->vocabulary->count; id++) {
        dt_text_puts(out, id > 0 ? ",\n      [" : "\n      [");
        add_token(out, t->vocabulary, id);
        dt_text_printf(out, ", %.17g]", t->scores[id]);
    }
    dt_text_puts(out, "\n    ],\n    \"byte_fallback\": false\n  }");
}

static uint32_t id_of(const struct trained *t, const char *token)
{
    for (size_t i = 0; i < t->special_count; i++) {
        if (strcmp(t->special[i], token) == 0) {
            return train_vocabulary_find(t->vocabulary, token, strlen(token));
        }
    }
    return UINT32_MAX;
}

/* One part of a template: a special token, or the text A or B. */
static void add_template_part(struct dt_text *out, const char *token, char sequence, int type)
{
    if (token != NULL) {
        dt_text_printf(out, "{\"SpecialToken\": {\"id\": \"%s\", \"type_id\": %d}}", token, type);
    } else {
        dt_text_printf(out, "{\"Sequence\": {\"id\": \"%c\", \"type_id\": %d}}", sequence, type);
    }
}

static void add_template(const struct trained *t, const char *before, const char *behind, struct dt_text *out)
{
    dt_text_puts(out, "{\"type\": \"TemplateProcessing\", \"single\": [");
    for (int pair = 0; pair < 2; pair++) {
        add_template_part(out, before, 0, 0);
        dt_text_puts(out, ", ");
        add_template_part(out, NULL, 'A', 0);
        for (int i = 0; i < (behind != NULL); i++) {
            dt_text_puts(out, ", ");
            add_template_part(out, behind, 0, 0);
        }
        if (pair == 0) {
            dt_text_puts(out, "], \"pair\": [");
            continue;
        }
        dt_text_puts(out, ", ");
        if (behind == NULL) {
            add_template_part(out, before, 0, 1);
            dt_text_puts(out, ", ");
        }
        add_template_part(out, NULL, 'B', 1);
        if (behind != NULL) {
            dt_text_puts(out, ", ");
            add_template_part(out, behind, 0, 1);
        }
    }
    dt_text_puts(out, "], \"special_tokens\": {");
    for (const char *token = before; token != NULL; token = token == before ? behind : NULL) {
        dt_text_printf(out, "%s\"%s\": {\"id\": \"%s\", \"ids\": [%u], \"tokens\": [\"%s\"]}",
                       token == before ? "" : ", ", token, token, id_of(t, token), token);
    }
    dt_text_puts(out, "}}");
}

static void add_post_processor(const struct trained *t, struct dt_text *out)
{
    if (t->shape->type == TRAIN_WORDPIECE && id_of(t, "[CLS]") != UINT32_MAX && id_of(t, "[SEP]") != UINT32_MAX) {
        add_template(t, "[CLS]", "[SEP]", out);
    } else if (t->shape->byte_fallback && id_of(t, "<s>") != UINT32_MAX) {
        add_template(t, "<s>", NULL, out);
    } else if (t->shape->bytes) {
        dt_text_puts(out, "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": false, "
                          "\"use_regex\": true}");
    } else {
        dt_text_puts(out, "null");
    }
}

void train_tokenizer_json(const struct trained *t, struct dt_text *out)
{
    struct dt_text added;
    dt_text_init(&added);
    for (size_t i = 0; i < t->special_count; i++) {
        dt_text_printf(&added, "%s\n    {\"id\": %u, \"content\": ", i > 0 ? "," : "", id_of(t, t->special[i]));
        add_string(&added, t->special[i], strlen(t->special[i]));
        dt_text_puts(&added, ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                             "\"special\": true}");
    }
    dt_text_puts(&added, t->special_count > 0 ? "\n  " : "");
    add_begin(t->shape, t->keep_case, dt_text_str(&added), out);
    dt_text_clear(&added);
    dt_text_puts(out, ",\n  \"post_processor\": ");
    add_post_processor(t, out);
    dt_text_printf(out, ",\n  \"decoder\": %s,\n  \"model\": ", t->shape->decoder);
    switch (t->shape->type) {
    case TRAIN_BPE:
        add_bpe(t, out);
        break;
    case TRAIN_WORDPIECE:
        add_wordpiece(t, out);
        break;
    case TRAIN_UNIGRAM:
        add_unigram(t, out);
        break;
    }
    dt_text_puts(out, "\n}\n");
}

/* The roles that transformers knows, with the names that tokens of a role have. */
void train_config_json(const struct trained *t, struct dt_text *out)
{
    static const struct {
        const char *role, *tokens[6];
    } roles[] = {
        {"bos_token", {"<s>", "<|begin_of_text|>", "<|startoftext|>", "<bos>", END_OF_TEXT}},
        {"eos_token", {"</s>", "<|end_of_text|>", END_OF_TEXT, "<eos>", "<|im_end|>"}},
        {"unk_token", {"<unk>", "[UNK]", END_OF_TEXT}},
        {"pad_token", {"<pad>", "[PAD]", "<|pad|>"}},
        {"cls_token", {"[CLS]"}},
        {"sep_token", {"[SEP]"}},
        {"mask_token", {"[MASK]", "<mask>"}},
    };
    dt_text_puts(out, "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"model_max_length\": "
                      "1000000000000000019884624838656,\n  \"clean_up_tokenization_spaces\": false");
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        for (size_t k = 0; roles[i].tokens[k] != NULL; k++) {
            if (id_of(t, roles[i].tokens[k]) != UINT32_MAX) {
                dt_text_printf(out, ",\n  \"%s\": \"%s\"", roles[i].role, roles[i].tokens[k]);
                break;
            }
        }
    }
    dt_text_puts(out, "\n}\n");
}
