/* dtdata convert-tokenizer: a model of SentencePiece or ranks of tiktoken to tokenizer.json. */
#include "worker/data/tokenizers/convert.h"

#include "base/file.h"
#include "base/text.h"
#include "cmd/dtdata/commands.h"
#include "worker/data/tokenizers/tokenizer.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INPUT_BYTES ((size_t)256 << 20) /* largest file */
enum { MOST_SPECIAL = 4096 };

struct specials {
    struct convert_special at[MOST_SPECIAL];
    size_t count;
};

/* Reads NAME=ID,NAME=ID,... in place. Null, or the part that is wrong. */
static const char *read_specials(struct specials *s, char *text)
{
    for (char *part = strtok(text, ","); part != NULL; part = strtok(NULL, ",")) {
        char *equals = strrchr(part, '=');
        long long id = -1;
        if (equals == NULL || equals == part || !dt_parse_int64(equals + 1, &id) || id < 0 || id > 1 << 24 ||
            s->count == MOST_SPECIAL) {
            return part;
        }
        *equals = 0;
        s->at[s->count++] = (struct convert_special){part, id};
    }
    return NULL;
}

/* Ranks are lines of text; a model of SentencePiece begins with the key of its first piece. */
static bool is_sentencepiece(const struct dt_text *file)
{
    return file->size > 0 && file->data[0] == '\n';
}

/* Says which texts have other ids than those of the model. */
static void say_differs(const char *from, const char *lines)
{
    for (size_t size; *lines != 0; lines += size + 1) {
        size = strcspn(lines, "\n");
        dt_text_say(stderr, "dtdata: %s: other ids: %.*s", from, (int)size, lines);
    }
}

static int convert(const char *from, const char *out, const struct convert_options *o, struct dt_error *err)
{
    char *to = tokenizer_file(out);
    struct dt_text file = {0}, json = {0}, differs = {0};
    struct tokenizer *t = NULL;
    struct convert_options with_lines = *o;
    with_lines.differs = &differs;
    int result = dt_file_read(from, INPUT_BYTES, &file, err);
    if (result == 0) {
        bool model = is_sentencepiece(&file);
        if (model && (o->pattern != NULL || o->special_count > 0)) {
            result = dt_fail(err, DT_USAGE, "a model of SentencePiece; --pattern and --special are for ranks");
        } else if (!model && (o->begin || o->end)) {
            result = dt_fail(err, DT_USAGE, "no model of SentencePiece, which --bos and --eos are for");
        } else if (!model && o->pattern == NULL) {
            result = dt_fail(err, DT_USAGE, "ranks do not say how text is split; give --pattern");
        } else {
            result = model ? convert_sentencepiece(file.data, file.size, &with_lines, &json, err)
                           : convert_tiktoken(dt_text_str(&file), file.size, o, &json, err);
        }
        result = result == 0 ? tokenizer_parse(&t, to, json.data, json.size, err) : dt_wrap(err, "%s", from);
    }
    if (result == 0) {
        result = dt_file_write(to, json.data, json.size, err);
    }
    if (result == 0) {
        say_differs(from, dt_text_str(&differs));
        dt_text_say(stdout, "%s: vocabulary %" PRId64, to, tokenizer_vocabulary(t));
    }
    tokenizer_close(t);
    dt_text_clear(&file);
    dt_text_clear(&json);
    dt_text_clear(&differs);
    free(to);
    return result;
}

int run_convert(int argc, char **argv)
{
    static const struct option options[] = {{"pattern", required_argument, NULL, 'p'},
                                            {"special", required_argument, NULL, 's'},
                                            {"bos", no_argument, NULL, 'b'},
                                            {"eos", no_argument, NULL, 'e'},
                                            {0}};
    static struct specials specials;
    struct convert_options o = {.special = specials.at};
    const char *wrong = NULL;
    int c;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (c) {
        case 'p':
            o.pattern = optarg;
            break;
        case 's':
            wrong = read_specials(&specials, optarg);
            if (wrong != NULL) {
                return command_usage("--special %s: must be NAME=ID,NAME=ID,...", wrong);
            }
            break;
        case 'b':
            o.begin = true;
            break;
        case 'e':
            o.end = true;
            break;
        default:
            return command_usage("convert-tokenizer: wrong option");
        }
    }
    if (argc - optind != 2) {
        return command_usage("convert-tokenizer: give the file to read and the tokenizer.json to write");
    }
    o.special_count = specials.count;
    struct dt_error err = {0};
    if (convert(argv[optind], argv[optind + 1], &o, &err) != 0) {
        return command_fail(&err,
                            err.status == DT_USAGE || err.status == DT_NOT_FOUND ? DT_EXIT_USAGE : DT_EXIT_FAILED);
    }
    return DT_EXIT_DONE;
}
