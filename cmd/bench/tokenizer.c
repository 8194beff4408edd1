/* A fresh scratch for each sample: no piece was met before, as at the beginning of a run. */
#include "cmd/bench/tokenizer.h"

#include "base/bench.h"
#include "base/file.h"
#include "base/text.h"
#include "worker/data/tokenizers/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { REPEATS_MOST = 101, PART = 16 << 10 };
#define TEXT_MOST ((size_t)1 << 30)

/* Seconds of the processor in the program itself. */
static double user_s(void)
{
    struct rusage r;
    (void)getrusage(RUSAGE_SELF, &r);
    return (double)r.ru_utime.tv_sec + (double)r.ru_utime.tv_usec * 1e-6;
}

/* Seconds, or below 0 after an error. */
static double encode_s(const struct tokenizer *t, const struct dt_text *text, struct dt_error *err)
{
    struct tokenizer_scratch *s = tokenizer_scratch_open(t);
    struct token_ids ids = {0};
    int rc = 0;
    double begin = user_s();
    for (size_t at = 0; at < text->size && rc == 0;) {
        size_t from = at + PART < text->size ? at + PART : text->size;
        const char *end = memchr(text->data + from, '\n', text->size - from);
        size_t next = end != NULL ? (size_t)(end - text->data) + 1 : text->size;
        ids.count = 0;
        rc = tokenizer_encode(t, s, text->data + at, next - at, false, &ids, err);
        at = next;
    }
    double took = user_s() - begin;
    token_ids_clear(&ids);
    tokenizer_scratch_close(s);
    return rc == 0 ? took : -1;
}

static const char *last_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static int run(const char *tokenizer, const char *path, struct dt_bench_peer *peer, int repeats)
{
    struct tokenizer *t = NULL;
    struct dt_text text;
    struct dt_error err;
    double rate[REPEATS_MOST], peer_rate[REPEATS_MOST];
    dt_text_init(&text);
    int rc = tokenizer_open(&t, tokenizer, &err) == 0 ? dt_file_read(path, TEXT_MOST, &text, &err) : -1;
    for (int i = 0; i < repeats && rc == 0; i++) {
        double took = encode_s(t, &text, &err);
        rc = took < 0 ? -1 : 0;
        rate[i] = (double)text.size / 1e6 / (took > 0 ? took : 1e-6);
        if (peer != NULL && rc == 0) {
            peer_rate[i] = (double)text.size / 1e6 / dt_bench_peer_ask(peer, "encode\t%s\t%s", tokenizer, path);
        }
    }
    if (rc == 0) {
        char *name = dt_format("%s, %s", last_name(tokenizer), last_name(path));
        struct dt_bench_case line = {.bench = "tokenizer", .name = name, .unit = "MB/s"};
        if (peer != NULL) {
            line.peer = dt_bench_median(peer_rate, (size_t)repeats);
            line.peer_name = "tokenizers";
        }
        dt_bench_print(&line, rate, (size_t)repeats);
        free(name);
    } else {
        (void)fprintf(stderr, "bench: tokenizer: %s\n", err.text);
    }
    dt_text_clear(&text);
    tokenizer_close(t);
    return rc == 0 ? DT_EXIT_DONE : DT_EXIT_FAILED;
}

/* The peer writes them into a new folder. */
static int run_made(struct dt_bench_peer *peer, int repeats)
{
    static const char *const tokenizers[] = {"gpt2.json", "llama3.json"}, *const texts[] = {"english.txt", "code.txt"};
    char folder[] = "/tmp/bench-tokenizer-XXXXXX";
    struct dt_error err;
    if (mkdtemp(folder) == NULL || dt_bench_peer_ask(peer, "make\t%s", folder) < 0) {
        (void)fprintf(stderr, "bench: tokenizer: %s: the peer made no tokenizers there\n", folder);
        return DT_EXIT_FAILED;
    }
    int code = DT_EXIT_DONE;
    for (int i = 0; i < 4 && code == DT_EXIT_DONE; i++) {
        char *tokenizer = dt_format("%s/%s", folder, tokenizers[i / 2]),
             *text = dt_format("%s/%s", folder, texts[i % 2]);
        code = run(tokenizer, text, peer, repeats);
        free(tokenizer);
        free(text);
    }
    (void)dt_file_remove_tree(folder, &err);
    return code;
}

int bench_tokenizer(int argc, char **argv)
{
    const char *tokenizer = dt_bench_option(argc, argv, "tokenizer", NULL);
    const char *text = dt_bench_option(argc, argv, "text", NULL);
    int repeats = (int)dt_bench_number(argc, argv, "repeats", 5);
    bool asks = dt_bench_flag(argc, argv, "peer");
    if ((tokenizer == NULL) != (text == NULL) || (tokenizer == NULL && !asks)) {
        (void)fprintf(stderr, "bench: tokenizer: needs --tokenizer and --text, or --peer, which makes some\n");
        return DT_EXIT_USAGE;
    }
    struct dt_bench_peer peer;
    if (asks) {
        const char *script = dt_bench_option(argc, argv, "script", "tests/peers/tokenizers_speed.py");
        char *python = dt_bench_peer_program("python"), *command[] = {python, (char *)(uintptr_t)script, NULL};
        if (python == NULL || dt_bench_peer_open(&peer, command) != 0) {
            (void)fprintf(stderr, "bench: no tokenizers library to compare with: scripts/setup.sh --peers\n");
            free(python);
            return DT_EXIT_USAGE;
        }
        free(python);
    }
    int code = tokenizer != NULL ? run(tokenizer, text, asks ? &peer : NULL, repeats) : run_made(&peer, repeats);
    if (asks) {
        dt_bench_peer_close(&peer);
    }
    return code;
}
