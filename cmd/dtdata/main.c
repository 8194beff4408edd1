/* dtdata: the commands, and how good a compressor must be. The other files here are the commands. */
#include "base/text.h"
#include "cmd/dtdata/baseline.h"
#include "cmd/dtdata/commands.h"
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

static const char help[] = "usage: dtdata COMMAND [options] PATH...\n"
                           "\n"
                           "  tokenize PATH...    text, .jsonl, .csv and .tsv files, each also as .gz or\n"
                           "                      .zst, folders of them, or - for standard input ->\n"
                           "                      DIR/train-00000.bin ... and val-00000.bin ...\n"
                           "      -o DIR              where the shards go [shards]\n"
                           "      --tokenizer PATH    tokenizer.json or its folder; bytes: one id per byte,\n"
                           "                          0 after each file or record [bytes]\n"
                           "      --end TOKEN         what ends each file or record [eos_token of\n"
                           "                          tokenizer_config.json]\n"
                           "      --val FRACTION      share of the text held out as whole files for val\n"
                           "                          [0.05; 0 when there is only one file]; also --holdout\n"
                           "      --shard_tokens N    most tokens per shard [100000000]\n"
                           "      --format KIND       text, jsonl, json, csv or tsv [by names of files]\n"
                           "      --text_key KEY      where the text is in records [text]; --text_column too\n"
                           "      --encoding_errors replace  U+FFFD for what is not UTF-8 [refuse]\n"
                           "      --on_bad_record skip  count records that are broken and go on [refuse]\n"
                           "      --threads N         how many work at the same time [all cores]\n"
                           "      --overwrite         replace shards that are in DIR\n"
                           "  Rows for a classifier, in DIR/train-00000.safetensors ...:\n"
                           "      --label_column KEY  where the label is; --label_key too\n"
                           "      --text_pair_column KEY  where a second text is; --text_pair_key too\n"
                           "      --labels A,B,...    the classes in order [all that are there, sorted]\n"
                           "      --regression        labels are numbers\n"
                           "      --max_length N      most ids of a row\n"
                           "      --val FRACTION      share of rows held out, by a hash of their text [0]\n"
                           "\n"
                           "  train-tokenizer TEXT...\n"
                           "                      text -> DIR/tokenizer.json and tokenizer_config.json\n"
                           "      -o DIR              where they go [tokenizer]\n"
                           "      -v N, --vocab_size N  tokens in all [32768]\n"
                           "      --type TYPE         bpe, wordpiece or unigram [bpe]\n"
                           "      --pattern NAME      bpe: gpt2, llama3, qwen2, o200k, sentencepiece, or a\n"
                           "                          regular expression [gpt2]\n"
                           "      --special TOKEN     a special token; also repeated [those of the type]\n"
                           "      --min_frequency N   merge no pair that is rarer [0]\n"
                           "      --limit_alphabet N  most characters, of the most frequent ones [all]\n"
                           "      --keep_case         wordpiece: do not make letters small\n"
                           "      --memory SIZE       most memory; the rest goes to DIR.counts [2G]\n"
                           "      --save_every SIZE   text between two saves of the counts [500M]\n"
                           "      --threads --text_key --text_column --overwrite  as above\n"
                           "\n"
                           "  encode, decode      text on standard input to ids, or ids to text\n"
                           "      --tokenizer PATH\n"
                           "  inspect FILE...     header, counts, tokenizer, hash and first texts of shards\n"
                           "      --tokenizer PATH    [the one that their JSON names]\n"
                           "      --samples N         how many texts [2]\n"
                           "  convert-tokenizer IN OUT\n"
                           "                      a .model of SentencePiece, or ranks of tiktoken, to OUT,\n"
                           "                      a tokenizer.json that gives the same ids\n"
                           "      --bos, --eos        .model: its begin and end tokens around each text\n"
                           "      --pattern NAME      ranks: how text is split: gpt2, cl100k, o200k, llama3,\n"
                           "                          or a regular expression\n"
                           "      --special NAME=ID,...  ranks: special tokens\n"
                           "  baseline --train GLOB --val GLOB\n"
                           "                      bits per byte of gzip and of n-gram models on val\n"
                           "\n"
                           "  --help  --version\n"
                           "\n"
                           "Exit codes: 0 done, 1 bad or unreadable data, disk full, 2 wrong use.\n";

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
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            (void)fputs(help, stdout);
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
