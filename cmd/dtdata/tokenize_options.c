/* See the header. */
#include "cmd/dtdata/tokenize_options.h"

#include "base/text.h"
#include "cmd/dtdata/commands.h"
#include "worker/engine/world.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { THREADS_MOST = 1024 };

static int parse_number(const char *option, const char *text, int64_t most, int64_t *out)
{
    long long number = 0;
    if (!dt_parse_int64(text, &number) || number < 1 || number > most) {
        return command_usage("%s %s: give a whole number from 1 to %" PRId64, option, text, most);
    }
    *out = number;
    return 0;
}

static int parse_format(const char *text, enum source_kind *out)
{
    static const char *const names[] = {"text", "jsonl", "csv", "tsv", "json"};
    for (int i = 0; i < 5; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = (enum source_kind)(SOURCE_TEXT + i);
            return 0;
        }
    }
    return command_usage("--format %s: give text, jsonl, json, csv or tsv", text);
}

static int parse_word(const char *option, const char *text, const char *yes, bool *out)
{
    *out = strcmp(text, yes) == 0;
    return *out || strcmp(text, "refuse") == 0 ? 0 : command_usage("%s %s: give refuse or %s", option, text, yes);
}

static int parse_one(struct tokenize_options *o, int c, const char *text)
{
    int64_t threads = 0;
    int code = 0;
    switch (c) {
    case 'o':
        o->output.dir = text;
        return *text != 0 ? 0 : command_usage("-o: the name of the folder is empty");
    case 't':
        o->tokenizer = text;
        return 0;
    case 'e':
        o->end = text;
        return 0;
    case 'v':
        return dt_parse_double(text, &o->val) && o->val >= 0 && o->val < 1
                   ? 0
                   : command_usage("--val %s: give a fraction from 0 to below 1", text);
    case 's':
        return parse_number("--shard_tokens", text, INT32_MAX, &o->output.shard_tokens);
    case 'f':
        return parse_format(text, &o->format);
    case 'k':
        o->record_option = "--text_key";
        o->records.text_key = text;
        return 0;
    case 'p':
        o->records.pair_key = text;
        return 0;
    case 'l':
        o->records.label_key = text;
        return 0;
    case 'n':
        o->labels = text;
        return 0;
    case 'r':
        o->regression = true;
        return 0;
    case 'm':
        return parse_number("--max_length", text, 1 << 24, &o->max_length);
    case 'u':
        return parse_word("--encoding_errors", text, "replace", &o->records.replace);
    case 'b':
        o->record_option = "--on_bad_record";
        return parse_word("--on_bad_record", text, "skip", &o->records.skip);
    case 'j':
        code = parse_number("--threads", text, THREADS_MOST, &threads);
        o->threads = (int)threads;
        return code;
    case 'w':
        o->output.overwrite = true;
        return 0;
    default:
        return command_usage("tokenize: wrong option");
    }
}

/* Options of rows need a label; other options need none. */
static int check(const struct tokenize_options *o)
{
    const char *row_option = o->records.pair_key != NULL ? "--text_pair_column"
                             : o->labels != NULL         ? "--labels"
                             : o->regression             ? "--regression"
                             : o->max_length > 0         ? "--max_length"
                                                         : NULL;
    if (o->records.label_key == NULL && row_option != NULL) {
        return command_usage("%s: is for labelled rows; give --label_column as well", row_option);
    }
    if (o->records.label_key != NULL && o->end != NULL) {
        return command_usage("--end: is for documents; labelled rows end as the tokenizer's template ends them");
    }
    if (o->labels != NULL && o->regression) {
        return command_usage("--labels: labels of --regression are numbers; give one of the two");
    }
    if (o->records.pair_key != NULL && strcmp(o->tokenizer, "bytes") == 0) {
        return command_usage("--text_pair_column: bytes have no pairs; give a --tokenizer");
    }
    if (o->records.label_key != NULL && o->format == SOURCE_TEXT) {
        return command_usage("--format text: has no labels; give jsonl, csv or tsv");
    }
    return 0;
}

int tokenize_options_parse(struct tokenize_options *o, int argc, char **argv)
{
    static const struct option options[] = {
        {"output_dir", required_argument, NULL, 'o'},
        {"tokenizer", required_argument, NULL, 't'},
        {"end", required_argument, NULL, 'e'},
        {"val", required_argument, NULL, 'v'},
        {"holdout", required_argument, NULL, 'v'},
        {"shard_tokens", required_argument, NULL, 's'},
        {"format", required_argument, NULL, 'f'},
        {"text_key", required_argument, NULL, 'k'},
        {"text_column", required_argument, NULL, 'k'},
        {"text_pair_column", required_argument, NULL, 'p'},
        {"text_pair_key", required_argument, NULL, 'p'},
        {"label_column", required_argument, NULL, 'l'},
        {"label_key", required_argument, NULL, 'l'},
        {"labels", required_argument, NULL, 'n'},
        {"regression", no_argument, NULL, 'r'},
        {"max_length", required_argument, NULL, 'm'},
        {"encoding_errors", required_argument, NULL, 'u'},
        {"on_bad_record", required_argument, NULL, 'b'},
        {"threads", required_argument, NULL, 'j'},
        {"overwrite", no_argument, NULL, 'w'},
        {0},
    };
    *o = (struct tokenize_options){.tokenizer = "bytes",
                                   .records = {.text_key = "text"},
                                   .val = -1,
                                   .threads = world_cores(),
                                   .output = {.dir = "shards", .shard_tokens = 100000000}};
    int c, code = 0;
    while (code == 0 && (c = getopt_long(argc, argv, "o:", options, NULL)) != -1) {
        code = parse_one(o, c, optarg);
    }
    if (code == 0 && optind == argc) {
        code = command_usage("tokenize: no files; give text files or folders, or - for standard input");
    }
    return code == 0 ? check(o) : code;
}

uint64_t tokenize_options_hash(const struct tokenize_options *o)
{
    struct dt_text t;
    dt_text_init(&t);
    const char *texts[] = {o->records.text_key, o->records.pair_key, o->records.label_key, o->labels};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        dt_text_printf(&t, "%s%s", texts[i] != NULL ? "=" : "-", texts[i] != NULL ? texts[i] : "");
        dt_text_add(&t, "", 1);
    }
    dt_text_printf(&t, "%d %d %d %d %" PRId64 " %.17g %" PRId64, o->records.replace, o->records.skip, (int)o->format,
                   o->regression, o->max_length, o->val, o->output.shard_tokens);
    uint64_t hash = XXH3_64bits(t.data, t.size);
    dt_text_clear(&t);
    return hash;
}
