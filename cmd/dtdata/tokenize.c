/* dtdata tokenize: text to token shards, or labelled rows to safetensors files. */
#include "base/text.h"
#include "cmd/dtdata/commands.h"
#include "cmd/dtdata/stop.h"
#include "cmd/dtdata/tokenize_run.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void say(const struct tokenize_run *r, enum side side)
{
    static const char *const names[SIDES] = {"train", "val"};
    bool rows = r->form.labels != NULL;
    size_t files = rows ? r->corpus.count : side == SIDE_VAL ? r->held_out : r->corpus.count - r->held_out;
    int shards = output_shards(&r->output, side);
    dt_text_say(stdout, "%s: %zu file%s, %" PRId64 " %s in %d shard%s: %s/%s-*.%s", names[side], files,
                files == 1 ? "" : "s", output_count(&r->output, side), rows ? "rows" : "tokens", shards,
                shards == 1 ? "" : "s", r->o.output.dir, names[side], rows ? "safetensors" : "bin");
}

static void say_all(const struct tokenize_run *r)
{
    say(r, SIDE_TRAIN);
    if (r->val) {
        say(r, SIDE_VAL);
    }
    if (r->form.labels != NULL && !r->labels.numbers) {
        struct dt_text names;
        dt_text_init(&names);
        struct dt_list list = {.text = &names, .most = 20};
        for (size_t k = 0; k < r->labels.count; k++) {
            dt_list_add(&list, "%s", r->labels.names[k]);
        }
        dt_text_say(stdout, "labels: %s", dt_text_str(&names));
        dt_text_clear(&names);
    }
    tokenize_run_say_left_out(r);
}

/* Ends a run that failed. Complete shards stay where the same command may succeed later. */
static int give_up(struct tokenize_run *r, struct dt_error *err)
{
    int number = stop_signal();
    bool settled = r->progress.settled && err->status == DT_USAGE;
    char *folder = dt_strdup(r->progress.folder != NULL ? r->progress.folder : "");
    bool kept = tokenize_run_give_up(r, err);
    if (number != 0) {
        (void)dt_fail(err, DT_STOPPED, "stopped by signal %d; %s", number,
                      kept ? "the same command goes on" : "nothing was written");
    }
    int code = number != 0 ? 128 + number : err->status == DT_USAGE ? DT_EXIT_USAGE : DT_EXIT_FAILED;
    if (settled) {
        dt_text_say(stderr,
                    "dtdata: %s: this command was killed when its shards were complete; they have their names now",
                    r->o.output.dir);
        free(folder);
        return DT_EXIT_DONE;
    }
    (void)command_fail(err, code);
    if (kept && number == 0) {
        dt_text_say(stderr, "dtdata: complete shards are kept in %s; the same command goes on", folder);
    }
    free(folder);
    return code;
}

static void say_end(const struct tokenize_run *r)
{
    size_t size = 0;
    const char *token = r->coder.tokenizer != NULL && r->o.records.label_key == NULL
                            ? tokenizer_token(r->coder.tokenizer, r->coder.end, &size)
                            : NULL;
    if (token != NULL) {
        dt_text_say(stderr, "dtdata: each document ends with %.*s (%" PRId32 ")", (int)size, token, r->coder.end);
    }
}

static int run_all(struct tokenize_run *r, char **paths, int count)
{
    struct dt_error err = {0};
    if (tokenize_run_open(r, paths, (size_t)count, &err) != 0) {
        return command_fail(&err, r->usage ? DT_EXIT_USAGE : DT_EXIT_FAILED);
    }
    say_end(r);
    if (tokenize_run_write(r, &err) != 0) {
        int code = give_up(r, &err);
        return r->usage ? DT_EXIT_USAGE : code;
    }
    say_all(r);
    return DT_EXIT_DONE;
}

int run_tokenize(int argc, char **argv)
{
    struct tokenize_run *r = dt_alloc(sizeof *r);
    tokenize_run_init(r);
    int code = tokenize_options_parse(&r->o, argc, argv);
    if (code == 0) {
        code = run_all(r, argv + optind, argc - optind);
    }
    tokenize_run_close(r);
    free(r);
    return code;
}
