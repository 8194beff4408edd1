/* Agreement of ranks outside steps, through the store: rank 0's words reach all ranks, and all ranks' words rank 0.
 * Ranks show a pulse while they wait: one that stands still is found by its agent and not by a deadline of the
 * others. */
#include "worker/run/trainer.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAIT_SLICE_S 1.0

int trainer_await(struct trainer *t, const char *key, struct dt_text *out, double timeout_s, struct dt_error *err)
{
    double until_s = dt_now_s() + timeout_s;
    for (;;) {
        double left_s = until_s - dt_now_s();
        if (dt_store_get(t->world->store, key, out, left_s < WAIT_SLICE_S ? left_s : WAIT_SLICE_S, err) == 0) {
            return 0;
        }
        if (err->status != DT_TIMEOUT || left_s <= WAIT_SLICE_S) {
            return -1;
        }
        dt_page_pulse(t->world->page);
    }
}

void trainer_mark_heard(const struct trainer *t, struct dt_error *err)
{
    const struct world *w = t->world;
    int from = err->blame.fault == DT_FAULT_FAILED ? err->blame.rank : 0, first = w->rank - w->local_rank;
    if (from < first || from >= first + w->local_size) {
        struct dt_blame theirs = err->blame;
        (void)dt_blame_heard(err, &theirs, from, -1);
    }
}

void trainer_name_rank(int rank, struct dt_error *err)
{
    if (rank >= 0 && err->blame.fault == DT_FAULT_OWN) {
        (void)dt_blame(err, DT_FAULT_FAILED, rank);
    }
}

void trainer_add_words(struct dt_error *err, const char *words)
{
    size_t room = sizeof err->text - 1, more = strlen(words), used = strlen(err->text);
    more = more < room ? more : room;
    used = used < room - more ? used : room - more; /* what is added is what to do */
    (void)snprintf(err->text + used, sizeof err->text - used, "%.*s", (int)more, words);
}

bool trainer_only_heard(const struct dt_error *err)
{
    return err->blame.fault == DT_FAULT_FAILED && err->blame.told != DT_TOLD_NOT;
}

/* On the wire a value follows '=', an error '!', its status and its blame: neither can be taken
 * for the other, whatever a path is called. */
int trainer_share(struct trainer *t, const char *key, struct dt_text *text, const struct dt_error *failure,
                  double timeout_s, struct dt_error *err)
{
    struct dt_text sent;
    dt_text_init(&sent);
    int rc = 0;
    if (t->rank == 0) {
        if (failure != NULL) {
            trainer_tell_failure(&sent, failure);
        } else {
            dt_text_printf(&sent, "=%s", dt_text_str(text));
        }
        rc = t->size > 1 ? dt_store_set(t->world->store, key, sent.data, sent.size, err) : 0;
    } else if (trainer_await(t, key, &sent, timeout_s, err) != 0) {
        rc = dt_wrap(err, "rank %d waits for rank 0", t->rank);
    }
    if (rc == 0 && trainer_hear(dt_text_str(&sent), err) != 0) {
        trainer_name_rank(t->rank != 0 ? 0 : -1, err);
        trainer_mark_heard(t, err);
        rc = -1;
    }
    if (rc == 0 && t->rank != 0) {
        dt_text_reset(text);
        dt_text_puts(text, sent.data + 1);
    }
    dt_text_clear(&sent);
    return rc;
}

void trainer_tell_failure(struct dt_text *text, const struct dt_error *failure)
{
    char blame[DT_BLAME_BYTES];
    dt_blame_write(&failure->blame, blame);
    dt_text_reset(text);
    dt_text_printf(text, "!%d %s %s", (int)failure->status, blame, failure->text);
}

int trainer_hear(const char *said, struct dt_error *err)
{
    char *at = NULL;
    struct dt_blame blame;
    if (said[0] != '!') {
        return 0;
    }
    long status = strtol(said + 1, &at, 10);
    size_t size = dt_blame_read(at, &blame);
    if (size == 0 || at[size] != ' ') {
        return dt_fail(err, DT_INTERNAL, "%s", said);
    }
    (void)dt_fail(err, dt_status_of(status), "%s", at + size + 1);
    err->blame = blame;
    return -1;
}

int trainer_agree(struct trainer *t, const char *key, bool *flag, struct dt_error *err)
{
    struct dt_text text;
    dt_text_init(&text);
    dt_text_puts(&text, *flag ? "yes" : "no");
    int rc = trainer_share(t, key, &text, NULL, FOR_EVER_S, err);
    *flag = rc == 0 && strcmp(dt_text_str(&text), "yes") == 0;
    dt_text_clear(&text);
    return rc;
}

int trainer_hear_all(struct trainer *t, const char *key, const struct dt_text *own, int *who, struct dt_error *err)
{
    struct dt_text text;
    dt_text_init(&text);
    int rc = 0;
    for (int r = 0; r < t->size && rc == 0; r++) {
        char of_rank[96];
        snprintf(of_rank, sizeof of_rank, "%s/%d", key, r);
        if (r > 0 && trainer_await(t, of_rank, &text, FOR_EVER_S, err) != 0) {
            rc = dt_wrap(err, "rank 0 waits for rank %d", r);
            break;
        }
        rc = trainer_hear(dt_text_str(r > 0 ? &text : own), err);
        *who = r;
    }
    dt_text_clear(&text);
    return rc;
}

void trainer_say_for(struct trainer *t, int who, struct dt_error *why)
{
    trainer_name_rank(who > 0 ? who : -1, why);
    struct dt_error said = *why;
    trainer_mark_heard(t, &said);
    trainer_say_cause(t, &said);
}
