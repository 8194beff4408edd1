/* See the header. The blocks of the corpus pass in rounds. While the threads work on one round, one of them reads
 * the next and one writes the last. */
#include "cmd/dtdata/pipeline.h"

#include "base/text.h"
#include "cmd/dtdata/stop.h"
#include "kernels/cpu/pool.h"

#include <stdlib.h>

enum { ROUNDS = 3, BLOCKS_PER_THREAD = 4, SMALL_ITEMS = 64 };

struct round {
    struct item *items;
    size_t count;
    /* runs of items that one thread takes: the first of each, and `count` behind the last */
    size_t *begins;
    size_t run_count;
};

struct pipeline {
    const struct work_form *form;
    struct output *output;
    struct progress_side from[SIDES]; /* of an earlier run */
    struct work *work;
    struct round rounds[ROUNDS];
    size_t item_most, bytes_most; /* of a round */
    /* the reader */
    size_t file; /* the next one, or the one that is open */
    struct source *in;
    struct record_columns columns;
    bool ended;
    /* of this region */
    struct round *reads, *works, *writes;
    bool write_failed;
    struct dt_error *err;
};

/* ---- reading ---- */

/* The sides that a file feeds. */
static bool feeds(const struct pipeline *p, size_t file, enum side s)
{
    if (p->form->labels != NULL) {
        return s == SIDE_TRAIN || p->form->val > 0;
    }
    return work_side(p->form, file) == s;
}

/* Where a file must be read from for the sides that it feeds; false: an earlier run has all of it. */
static bool needed_from(const struct pipeline *p, size_t file, struct source_place *from)
{
    bool needed = false;
    for (int s = 0; s < SIDES; s++) {
        const struct progress_side *x = &p->from[s];
        if (!feeds(p, file, (enum side)s) || file < x->file) {
            continue;
        }
        struct source_place at = file == x->file ? x->at : (struct source_place){0};
        *from = !needed || at.offset < from->offset ? at : *from;
        needed = true;
    }
    return needed;
}

static int open_file(struct pipeline *p, struct dt_error *err)
{
    struct source_place from = {0};
    while (p->file < p->form->corpus->count && !needed_from(p, p->file, &from)) {
        p->file++;
    }
    if (p->file == p->form->corpus->count) {
        p->ended = true;
        return 0;
    }
    const char *path = p->form->corpus->files[p->file].path;
    return source_open(&p->in, path, work_kind(p->form, p->file), p->form->coder->tokenizer != NULL ? coder_cut : NULL,
                       p->form->coder, err) != 0 ||
                   source_seek(p->in, &from, err) != 0
               ? -1
               : 0;
}

/* Reads a block into an item: 1, or 0 at the end of the file. */
static int read_item(struct pipeline *p, struct item *i)
{
    enum source_kind kind = work_kind(p->form, p->file);
    int got = source_next(p->in, &i->block, &i->err);
    i->file = p->file;
    i->kind = kind;
    if (got > 0 && source_header(p->in)->size > 0) {
        got = record_columns_find(&p->columns, &p->form->records, kind, p->form->corpus->files[p->file].path,
                                  source_header(p->in), &i->err) == 0
                  ? 1
                  : -1;
        i->columns = p->columns;
    }
    for (int s = 0; s < SIDES && got > 0; s++) {
        const struct progress_side *x = &p->from[s];
        i->needed[s] = feeds(p, p->file, (enum side)s) &&
                       (p->file > x->file || (p->file == x->file && i->block.begin.offset >= x->at.offset));
    }
    return got;
}

/* Fills a round with the next blocks. */
static void read_round(struct pipeline *p)
{
    struct round *r = p->reads;
    size_t bytes = 0;
    r->count = 0;
    while (!p->ended && r->count < p->item_most && bytes < p->bytes_most) {
        struct item *i = &r->items[r->count];
        i->failed = false;
        int got = p->in == NULL && open_file(p, &i->err) != 0 ? -1 : p->ended ? 0 : read_item(p, i);
        if (got < 0) {
            i->failed = p->ended = true;
        }
        if (got > 0) {
            bytes += i->block.size;
        } else if (!p->ended) { /* of the file */
            source_close(p->in);
            p->in = NULL;
            p->file++;
        }
        r->count += got != 0;
    }
}

/* Cuts a round into runs. */
static void cut_round(struct round *r)
{
    r->run_count = 0;
    for (size_t i = 0; i < r->count; i++) {
        const struct item *x = &r->items[i];
        if (i == 0 || x->failed || !x->block.joined) {
            r->begins[r->run_count++] = i;
        }
    }
    r->begins[r->run_count] = r->count;
}

/* ---- writing ---- */

static void write_round(struct pipeline *p)
{
    for (size_t i = 0; i < p->writes->count && !p->write_failed; i++) {
        p->write_failed = output_take(p->output, &p->writes->items[i], p->err) != 0;
    }
    p->writes->count = 0;
}

/* Part 0 reads, part 1 writes, the others are runs. */
static void do_part(void *context, int64_t part)
{
    struct pipeline *p = context;
    if (part == 0) {
        read_round(p);
    } else if (part == 1) {
        write_round(p);
    } else {
        const struct round *r = p->works;
        size_t begin = r->begins[part - 2];
        work_do(p->work, &r->items[begin], r->begins[part - 1] - begin);
    }
}

static int run_all(struct pipeline *p, struct dt_pool *pool, struct dt_error *err)
{
    bool more = true;
    for (int n = 0; more && !p->write_failed; n++) {
        p->reads = &p->rounds[n % ROUNDS];
        p->works = &p->rounds[(n + 2) % ROUNDS];
        p->writes = &p->rounds[(n + 1) % ROUNDS];
        cut_round(p->works);
        dt_pool_run(pool, 2 + (int64_t)p->works->run_count, do_part, p);
        work_round(p->work);
        if (p->output->report != NULL) {
            p->output->report(p->output, p->output->report_context);
        }
        if (stop_check(err) != 0) {
            return -1;
        }
        more = !p->ended || p->reads->count > 0 || p->works->count > 0;
    }
    return p->write_failed ? -1 : 0;
}

static void close_all(struct pipeline *p)
{
    for (int r = 0; r < ROUNDS; r++) {
        for (size_t i = 0; i < p->item_most; i++) {
            item_clear(&p->rounds[r].items[i]);
        }
        free(p->rounds[r].items);
        free(p->rounds[r].begins);
    }
    source_close(p->in);
    work_close(p->work);
}

int pipeline_run(const struct work_form *form, struct output *o, int thread_count, struct dt_error *err)
{
    struct pipeline p = {.form = form, .output = o, .err = err};
    struct dt_pool *pool = NULL;
    size_t blocks = BLOCKS_PER_THREAD * (size_t)thread_count;
    p.item_most = SMALL_ITEMS + blocks;
    p.bytes_most = blocks * SOURCE_BLOCK_BYTES;
    for (int r = 0; r < ROUNDS; r++) {
        p.rounds[r].items = dt_alloc(p.item_most * sizeof *p.rounds[r].items);
        p.rounds[r].begins = dt_alloc((p.item_most + 1) * sizeof *p.rounds[r].begins);
    }
    for (int s = 0; s < SIDES; s++) {
        p.from[s] = o->progress->side[s];
    }
    p.work = work_open(form);
    int result = dt_pool_open(&pool, thread_count, err);
    result = result == 0 ? run_all(&p, pool, err) : -1;
    dt_pool_close(pool);
    close_all(&p);
    return result;
}
