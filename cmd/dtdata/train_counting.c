/* See the header. */
#include "cmd/dtdata/train_counting.h"

#include "cmd/dtdata/train_runs.h"
#include "cmd/dtdata/train_store.h"
#include "worker/data/tokenizers/characters.h"

#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A block ends at the first safe end of line behind BLOCK_BYTES. The place depends on the text alone. */
enum { BLOCK_BYTES = 256 << 10, BLOCK_MOST = 1 << 20, LEAST_TABLE = 256 << 10, BLOCKS_PER_THREAD = 2 };

struct block {
    struct dt_text text;
    size_t *ends; /* of the texts in it */
    size_t count, capacity;
    const char *path;
    int64_t offset; /* in the text of the file */
    struct block *next;
};

struct counting {
    struct counting_options o;
    struct runs runs;
    struct run_reader *reader;
    int64_t resumed_bytes;
    /* reading */
    struct block *filling;
    struct dt_text rest; /* text that has no block yet */
    size_t looked;       /* of it, searched for a cut */
    const char *path;
    int64_t file, block, skip, offset; /* of the next block; blocks of this file counted before */
    int64_t since_save;
    /* shared with the threads */
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    struct block *full, **full_end, *free;
    int busy; /* blocks handed out and not done */
    bool ending, failed;
    struct dt_error err;
    struct run_row *made; /* runs since the last save */
    size_t made_count;
    struct thread *threads;
    int thread_count;
};

struct thread {
    struct counting *c;
    pthread_t id;
    struct tokenizer_scratch *scratch;
    struct piece_table *table;
    bool failed;
    struct dt_error err;
};

/* ---- counting ---- */

/* Writes a thread's table as a run. */
static int write_table(struct thread *t, struct dt_error *err)
{
    struct counting *c = t->c;
    struct run_row row = {0};
    (void)pthread_mutex_lock(&c->lock);
    row.number = c->runs.next_number++;
    (void)pthread_mutex_unlock(&c->lock);
    char *path = runs_path(&c->runs, row.number);
    int result = piece_table_write(t->table, path, &row.info, err);
    free(path);
    if (result == 0) {
        (void)pthread_mutex_lock(&c->lock);
        c->made = dt_realloc(c->made, (c->made_count + 1) * sizeof *c->made);
        c->made[c->made_count++] = row;
        (void)pthread_mutex_unlock(&c->lock);
    }
    return result;
}

static void count_piece(void *context, const char *piece, size_t size)
{
    struct thread *t = context;
    if (t->failed || size == 0 || piece_table_add(t->table, piece, size)) {
        return;
    }
    t->failed = write_table(t, &t->err) != 0;
    if (!t->failed) {
        (void)piece_table_add(t->table, piece, size);
    }
}

static int count_text(struct thread *t, const struct block *b, const char *text, size_t size, struct dt_error *err)
{
    if (tokenizer_pieces(t->c->o.splitter, t->scratch, text, size, count_piece, t, err) != 0) {
        size_t valid = utf8_valid(text, size);
        long long offset = b->offset + (text - b->text.data);
        return valid == size ? dt_wrap(err, "%s: in the text behind byte %lld", b->path, offset)
                             : dt_fail(err, DT_INVALID,
                                       "%s: byte %lld (0x%02x) is not UTF-8; convert the file (iconv -f ENCODING -t "
                                       "UTF-8)",
                                       b->path, offset + (long long)valid, (unsigned char)text[valid]);
    }
    if (t->failed) {
        *err = t->err;
        return -1;
    }
    return 0;
}

static int count_lines(struct thread *t, const struct block *b, const char *text, size_t size, struct dt_error *err)
{
    for (size_t at = 0; at < size;) {
        const char *end = memchr(text + at, '\n', size - at);
        size_t n = end != NULL ? (size_t)(end - text) - at : size - at;
        size_t line = n - (n > 0 && text[at + n - 1] == '\r');
        if (line > 0 && count_text(t, b, text + at, line, err) != 0) {
            return -1;
        }
        at += n + 1;
    }
    return 0;
}

static int count_block(struct thread *t, const struct block *b, struct dt_error *err)
{
    size_t begin = 0;
    for (size_t i = 0; i < b->count; begin = b->ends[i++]) {
        const char *text = b->text.data + begin;
        size_t size = b->ends[i] - begin;
        if ((t->c->o.lines ? count_lines : count_text)(t, b, text, size, err) != 0) {
            return -1;
        }
    }
    return 0;
}

static void *work(void *context)
{
    struct thread *t = context;
    struct counting *c = t->c;
    (void)pthread_mutex_lock(&c->lock);
    for (;;) {
        while (c->full == NULL && !c->ending) {
            (void)pthread_cond_wait(&c->work, &c->lock);
        }
        struct block *b = c->full;
        if (b == NULL) {
            break;
        }
        c->full = b->next;
        c->full_end = c->full == NULL ? &c->full : c->full_end;
        bool skip = c->failed;
        (void)pthread_mutex_unlock(&c->lock);
        struct dt_error err = {0};
        int result = skip ? 0 : count_block(t, b, &err);
        (void)pthread_mutex_lock(&c->lock);
        if (result != 0 && !c->failed) {
            c->failed = true;
            c->err = err;
        }
        b->next = c->free;
        c->free = b;
        c->busy--;
        (void)pthread_cond_signal(&c->idle);
    }
    (void)pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- blocks ---- */

static int check(struct counting *c, struct dt_error *err)
{
    (void)pthread_mutex_lock(&c->lock);
    bool failed = c->failed;
    if (failed) {
        *err = c->err;
    }
    (void)pthread_mutex_unlock(&c->lock);
    return failed ? -1 : c->o.go_on(err);
}

/* Waits until all blocks are counted, and makes what was counted so far outlive the program. */
static int save(struct counting *c, struct dt_error *err)
{
    (void)pthread_mutex_lock(&c->lock);
    while (c->busy > 0) {
        (void)pthread_cond_wait(&c->idle, &c->lock);
    }
    (void)pthread_mutex_unlock(&c->lock);
    if (check(c, err) != 0) {
        return -1;
    }
    for (int i = 0; i < c->thread_count; i++) {
        if (!piece_table_empty(c->threads[i].table) && write_table(&c->threads[i], err) != 0) {
            return -1;
        }
    }
    c->runs.files = c->file;
    c->runs.blocks = c->block;
    c->runs.text_bytes += c->since_save;
    c->since_save = 0;
    int result = runs_commit(&c->runs, c->made, c->made_count, err);
    c->made_count = 0;
    return result;
}

/* Hands the block that is being filled to the threads. */
static int hand_out(struct counting *c, struct dt_error *err)
{
    struct block *b = c->filling;
    bool counted = c->block < c->skip; /* by an earlier run of the program */
    c->block++;
    c->offset += (int64_t)b->text.size;
    if (!counted) {
        c->since_save += (int64_t)b->text.size;
        (void)pthread_mutex_lock(&c->lock);
        b->next = NULL;
        *c->full_end = b;
        c->full_end = &b->next;
        c->busy++;
        (void)pthread_cond_signal(&c->work);
        while (c->free == NULL) {
            (void)pthread_cond_wait(&c->idle, &c->lock);
        }
        c->filling = c->free;
        c->free = c->filling->next;
        (void)pthread_mutex_unlock(&c->lock);
    }
    c->filling->text.size = 0;
    c->filling->count = 0;
    if (check(c, err) != 0) {
        return -1;
    }
    return c->since_save >= c->o.save_bytes ? save(c, err) : 0;
}

static void add_text(struct counting *c, const char *text, size_t size)
{
    struct block *b = c->filling;
    if (b->count == 0) {
        b->path = c->path;
        b->offset = c->offset;
    }
    if (b->count == b->capacity) {
        b->capacity = b->capacity == 0 ? 16 : b->capacity * 2;
        b->ends = dt_realloc(b->ends, b->capacity * sizeof *b->ends);
    }
    dt_text_add(&b->text, text, size);
    b->ends[b->count++] = b->text.size;
}

/* True for an end of line at which the pieces are the same as in the whole text: a visible character
 * before it, a letter or digit behind. */
static bool safe_cut(const char *text, size_t at)
{
    unsigned char before = (unsigned char)text[at - 1], behind = (unsigned char)text[at + 1];
    bool letter = ((behind | 0x20) >= 'a' && (behind | 0x20) <= 'z') || (behind >= '0' && behind <= '9');
    return text[at] == '\n' && before > ' ' && before < 0x7f && letter;
}

/* Where the first block of c->rest ends; 0: more text must come first. */
static size_t find_cut(struct counting *c)
{
    const char *text = c->rest.data;
    size_t most = c->rest.size < BLOCK_MOST ? c->rest.size : BLOCK_MOST;
    for (size_t at = c->looked > BLOCK_BYTES ? c->looked : BLOCK_BYTES; at + 1 < most; at++) {
        const char *end = memchr(text + at, '\n', most - 1 - at);
        if (end == NULL) {
            break;
        }
        at = (size_t)(end - text);
        if (safe_cut(text, at)) {
            return at + 1;
        }
    }
    c->looked = most > 0 ? most - 1 : 0;
    if (c->rest.size < BLOCK_MOST) {
        return 0;
    }
    const char *end = memrchr(text + BLOCK_BYTES, '\n', BLOCK_MOST - BLOCK_BYTES - 1);
    size_t cut = end != NULL ? (size_t)(end - text) + 1 : BLOCK_MOST - 1;
    while (end == NULL && cut > BLOCK_BYTES && (text[cut] & 0xc0) == 0x80) { /* inside a character */
        cut--;
    }
    return cut;
}

static int take_text(void *context, const unsigned char *text, size_t size, struct dt_error *err)
{
    struct counting *c = context;
    dt_text_add(&c->rest, text, size);
    for (size_t cut; (cut = find_cut(c)) > 0;) {
        add_text(c, c->rest.data, cut);
        memmove(c->rest.data, c->rest.data + cut, c->rest.size - cut);
        c->rest.size -= cut;
        c->looked = 0;
        if (hand_out(c, err) != 0) {
            return -1;
        }
    }
    return c->o.go_on(err);
}

static int take_record(void *context, const unsigned char *text, size_t size, struct dt_error *err)
{
    struct counting *c = context;
    if (size == 0) {
        return 0;
    }
    add_text(c, (const char *)text, size);
    return c->filling->text.size >= BLOCK_BYTES ? hand_out(c, err) : 0;
}

static int read_file(struct counting *c, const char *path, enum source_kind kind, struct counting_result *result,
                     struct dt_error *err)
{
    c->path = path;
    c->offset = 0;
    c->block = 0;
    if (kind != SOURCE_TEXT) {
        if (corpus_read_records(path, kind, c->o.text_key, take_record, c, &result->records, &result->marks, err) !=
            0) {
            return -1;
        }
    } else {
        if (corpus_read(path, take_text, c, &result->marks, err) != 0) {
            return -1;
        }
        if (c->rest.size > 0) {
            add_text(c, c->rest.data, c->rest.size);
        }
        dt_text_reset(&c->rest);
        c->looked = 0;
    }
    return c->filling->count > 0 ? hand_out(c, err) : 0;
}

static int read_all(struct counting *c, const struct corpus *corpus, struct counting_result *result,
                    struct dt_error *err)
{
    int64_t first = c->runs.files;
    for (size_t i = (size_t)first; i < corpus->count; i++) {
        c->file = (int64_t)i;
        c->skip = (int64_t)i == first ? c->runs.blocks : 0;
        if (read_file(c, corpus->files[i].path, corpus->files[i].kind, result, err) != 0) {
            return -1;
        }
    }
    c->file = (int64_t)corpus->count;
    c->block = 0;
    return save(c, err);
}

/* ---- threads ---- */

static int begin_threads(struct counting *c, struct dt_error *err)
{
    int64_t blocks = ((int64_t)c->o.threads * BLOCKS_PER_THREAD + 3) * 3 * BLOCK_BYTES;
    int64_t room = (c->o.memory_bytes / 8 * 7 - store_resident() - blocks) / c->o.threads;
    c->threads = dt_alloc((size_t)c->o.threads * sizeof *c->threads);
    for (int i = 0; i < c->o.threads * BLOCKS_PER_THREAD + 1; i++) {
        struct block *b = dt_alloc(sizeof *b);
        dt_text_init(&b->text);
        b->next = c->free;
        c->free = b;
    }
    c->filling = c->free;
    c->free = c->filling->next;
    for (; c->thread_count < c->o.threads; c->thread_count++) {
        struct thread *t = &c->threads[c->thread_count];
        t->c = c;
        t->table = piece_table_open((size_t)(room > LEAST_TABLE ? room : LEAST_TABLE));
        t->scratch = tokenizer_scratch_open(c->o.splitter);
        int code = pthread_create(&t->id, NULL, work, t);
        if (code != 0) {
            piece_table_close(t->table);
            tokenizer_scratch_close(t->scratch);
            return dt_fail(err, DT_IO, "thread %d: %s; give fewer --threads", c->thread_count, strerror(code));
        }
    }
    return 0;
}

static void free_blocks(struct block *b)
{
    while (b != NULL) {
        struct block *next = b->next;
        dt_text_clear(&b->text);
        free(b->ends);
        free(b);
        b = next;
    }
}

static void end_threads(struct counting *c)
{
    (void)pthread_mutex_lock(&c->lock);
    c->ending = true;
    (void)pthread_cond_broadcast(&c->work);
    (void)pthread_mutex_unlock(&c->lock);
    for (int i = 0; i < c->thread_count; i++) {
        (void)pthread_join(c->threads[i].id, NULL);
        piece_table_close(c->threads[i].table);
        tokenizer_scratch_close(c->threads[i].scratch);
    }
    free(c->threads);
    free(c->made);
    c->made = NULL;
    if (c->filling != NULL) {
        c->filling->next = c->free;
        free_blocks(c->filling);
    }
    dt_text_clear(&c->rest);
    (void)malloc_trim(0); /* training needs the memory */
}

int counting_run(struct counting **out, const struct corpus *corpus, const struct counting_options *o,
                 struct counting_result *result, struct dt_error *err)
{
    struct counting *c = dt_alloc(sizeof *c);
    c->o = *o;
    c->full_end = &c->full;
    dt_text_init(&c->rest);
    int64_t buffers = o->memory_bytes / 8 < (4 << 20) ? o->memory_bytes / 8 : 4 << 20;
    if (runs_open(&c->runs, o->folder, o->settings, (size_t)buffers, &result->started_anew, err) != 0) {
        free(c);
        return -1;
    }
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_cond_init(&c->work, NULL);
    (void)pthread_cond_init(&c->idle, NULL);
    result->resumed_bytes = c->runs.text_bytes;
    int code = 0;
    if (c->runs.files < (int64_t)corpus->count) {
        code = begin_threads(c, err) == 0 ? read_all(c, corpus, result, err) : -1;
        end_threads(c);
        if (code != 0 && c->failed) {
            *err = c->err; /* the first cause */
        }
    }
    if (code == 0) {
        code = runs_finish(&c->runs, err);
    }
    result->text_bytes = c->runs.text_bytes;
    if (code != 0) {
        counting_close(c, false);
        return -1;
    }
    *out = c;
    return 0;
}

static int rewind_words(void *context, struct dt_error *err)
{
    struct counting *c = context;
    run_close(c->reader);
    c->reader = NULL;
    char *path = runs_path(&c->runs, c->runs.rows[0].number);
    int result = run_open(&c->reader, path, &c->runs.rows[0].info, 65536, err);
    free(path);
    return result;
}

static int next_word(void *context, const char **piece, size_t *size, uint64_t *count, struct dt_error *err)
{
    return run_next(((struct counting *)context)->reader, piece, size, count, err);
}

struct words counting_words(struct counting *c)
{
    return (struct words){.rewind = rewind_words, .next = next_word, .context = c, .go_on = c->o.go_on};
}

void counting_close(struct counting *c, bool remove)
{
    if (c != NULL) {
        run_close(c->reader);
        (void)pthread_cond_destroy(&c->work);
        (void)pthread_cond_destroy(&c->idle);
        (void)pthread_mutex_destroy(&c->lock);
        runs_close(&c->runs, remove);
        free(c);
    }
}
