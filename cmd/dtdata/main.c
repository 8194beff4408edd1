/* dtdata: the commands, and how good a compressor must be. The other files here are the commands. */
#include "base/text.h"
#include "cmd/dtdata/baseline.h"
#include "cmd/dtdata/commands.h"
#include "cmd/dtdata/help.h"
#include "cmd/dtdata/stop.h"
#include "worker/data/data.h"

#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES_VOCABULARY = 256 };
/* most of each text that is looked at: seconds, not minutes */
#define BASELINE_BYTES ((int64_t)16 << 20)

/* The tokens of a source as bytes; of more than `limit` pieces from everywhere, evenly spaced.
 * The caller frees. */
static uint8_t *bytes_of(const char *glob, int64_t limit, size_t *size, struct dt_error *err)
{
    enum { PIECE = 16384 };
    struct data_source s;
    const struct batch_layout layout = batch_tokens(1, 1, 0, NULL);
    if (data_open(&s, glob, "tokens", &layout, err) != 0) {
        return NULL;
    }
    uint8_t *bytes = NULL;
    int64_t count = s.sample_count < limit ? s.sample_count : limit / PIECE * PIECE,
            stride = s.sample_count < limit ? PIECE : s.sample_count / (limit / PIECE);
    if (s.vocabulary > BYTES_VOCABULARY) {
        (void)dt_fail(err, DT_INVALID, "%s: a vocabulary of %" PRId64 "; the baselines are for bytes", glob,
                      s.vocabulary);
    } else {
        bytes = dt_alloc((size_t)count + 1);
        for (int64_t i = 0; i < count; i++) { /* samples of one token and its label */
            int32_t id, label;
            (void)s.ops->read(&s, i / PIECE * stride + i % PIECE, 0,
                              &(struct batch){.layout = &layout, .at = {&id, &label}}, 0, NULL);
            bytes[i] = (uint8_t)id;
        }
    }
    *size = (size_t)count;
    data_close(&s);
    return bytes;
}

static int run_baseline(int argc, char **argv)
{
    static const struct option options[] = {
        {"train", required_argument, NULL, 't'}, {"val", required_argument, NULL, 'v'}, {0}};
    const char *train_glob = NULL, *val_glob = NULL;
    int c;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (c != 't' && c != 'v') {
            return command_usage("baseline: wrong option");
        }
        *(c == 't' ? &train_glob : &val_glob) = optarg;
    }
    if (train_glob == NULL || val_glob == NULL || optind != argc) {
        return command_usage("baseline: give --train GLOB and --val GLOB");
    }
    struct dt_error err = {0};
    size_t train_size = 0, val_size = 0;
    double bits = 0;
    uint8_t *train = bytes_of(train_glob, BASELINE_BYTES, &train_size, &err);
    uint8_t *val = train != NULL ? bytes_of(val_glob, BASELINE_BYTES, &val_size, &err) : NULL;
    int code = val == NULL || baseline_gzip(val, val_size, &bits, &err) != 0 ? command_fail(&err, DT_EXIT_FAILED)
                                                                             : DT_EXIT_DONE;
    if (code == DT_EXIT_DONE) {
        (void)printf("gzip -9 %.3f\n", bits);
    }
    for (int order = 1; code == DT_EXIT_DONE && order <= 4; order++) {
        if (baseline_ngram(train, train_size, val, val_size, order, &bits, &err) != 0) {
            code = command_fail(&err, DT_EXIT_FAILED);
        } else {
            (void)printf("%d-gram %.3f\n", order, bits);
        }
    }
    free(train);
    free(val);
    return code;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } commands[] = {{"tokenize", run_tokenize},
                    {"encode", run_encode},
                    {"decode", run_decode},
                    {"inspect", run_inspect},
                    {"convert-tokenizer", run_convert},
                    {"train-tokenizer", run_train_tokenizer},
                    {"baseline", run_baseline}};
    enum { COMMANDS = sizeof commands / sizeof commands[0] };
    const char *names[COMMANDS];
    const char *command = argc > 1 ? argv[1] : NULL;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        bool all = strcmp(argv[i], "--help=all") == 0;
        if (all || strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            if (all || !help_print(command, false)) {
                (void)help_print(NULL, all);
            }
            return DT_EXIT_DONE;
        }
    }
    if (command != NULL && strcmp(command, "--version") == 0) {
        (void)puts("dtdata " DT_VERSION);
        return DT_EXIT_DONE;
    }
    if (command == NULL) {
        return command_usage("no command; try for example dtdata tokenize -o shards TEXT...");
    }
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is an error of write */
    stop_open();
    for (size_t i = 0; i < COMMANDS; i++) {
        names[i] = commands[i].name;
        if (strcmp(command, commands[i].name) == 0) {
            argv[1] = argv[0];
            int code = commands[i].run(argc - 1, argv + 1);
            if ((fflush(stdout) != 0 || ferror(stdout)) && code == DT_EXIT_DONE) {
                (void)fprintf(stderr, "dtdata: standard output: cannot be written\n");
                code = DT_EXIT_FAILED;
            }
            return code;
        }
    }
    const char *nearest = dt_text_nearest(command, names, COMMANDS);
    return command_usage("%s: unknown command%s%s%s", command, nearest != NULL ? "; did you mean " : "",
                         nearest != NULL ? nearest : "", nearest != NULL ? "?" : "");
}
