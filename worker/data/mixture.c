/* Several sources as one: samples are numbered one source after the other, and the sampler deals them
 * out by weight (sampler.c). The sources must be alike: format, tokenizer, document end, classes. */
#include "base/text.h"
#include "worker/data/rows.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct mixed {
    struct data_mixture mixture;
    struct data_choices choices; /* of all sources, if they are choices */
    struct data_source source[DT_SOURCES_MAX];
    int open;
};

const char *data_source_name(const struct dt_source *from)
{
    return from->text != NULL ? from->text : from->path;
}

/* Opens one source. The files of shards that were made of a text are called by the text, also where messages
 * name a sample of them. */
static int open_one(struct data_source *s, const struct dt_source *from, const char *format,
                    const struct batch_layout *layout, struct dt_error *err)
{
    if (data_open(s, from->path, format, layout, err) != 0) {
        return from->text != NULL ? dt_wrap(err, "%s", from->text) : -1;
    }
    for (int i = 0; from->text != NULL && i < s->file_count; i++) {
        free(s->files[i].name);
        s->files[i].name = s->file_count == 1 ? dt_strdup(from->text) : dt_format("%s, part %d", from->text, i + 1);
    }
    for (int k = 0; from->text != NULL && k < s->layout.count; k++) {
        s->largest[k].path = s->largest[k].path != NULL ? from->text : NULL;
    }
    return 0;
}

static void close_mixed(struct data_source *s)
{
    struct mixed *m = s->state;
    for (int i = 0; m != NULL && i < m->open; i++) {
        data_close(&m->source[i]);
    }
    if (m != NULL) {
        free(m->choices.items);
        free(m->choices.sizes);
    }
    free(m);
    s->state = NULL;
}

/* Splits MIXTURE_BLOCK by weight: whole parts first, then one more each for the largest remainders, of
 * equal ones for the first. */
static int share_out(struct data_mixture *m, const struct dt_sources *from, struct dt_error *err)
{
    double sum = 0, rest[DT_SOURCES_MAX];
    int64_t left = MIXTURE_BLOCK, before = 0;
    for (int i = 0; i < m->count; i++) {
        sum += from->of[i].weight;
    }
    for (int i = 0; i < m->count; i++) {
        double exact = MIXTURE_BLOCK * (from->of[i].weight / sum);
        m->part[i].quota = (int64_t)floor(exact);
        rest[i] = exact - floor(exact);
        left -= m->part[i].quota;
    }
    for (; left > 0; left--) {
        int most = 0;
        for (int i = 1; i < m->count; i++) {
            most = rest[i] > rest[most] ? i : most;
        }
        m->part[most].quota++;
        rest[most] = -1;
    }
    for (int i = 0; i < m->count; i++) {
        if (m->part[i].quota == 0) {
            return dt_fail(err, DT_INVALID, "%s: weight %g is less than a sample in %d; raise it or leave it out",
                           data_source_name(&from->of[i]), from->of[i].weight, MIXTURE_BLOCK);
        }
        m->part[i].before = before;
        before += m->part[i].quota;
    }
    return 0;
}

/* Checks that a source is like the first one. */
static int check_alike(const struct data_source *first, const struct data_source *other, const char *first_path,
                       const char *path, struct dt_error *err)
{
    if (first->ops != other->ops) {
        return dt_fail(err, DT_INVALID, "%s: is of format %s, but %s is of %s; give sources of one format", path,
                       other->ops->name, first_path, first->ops->name);
    }
    if (strcmp(first->tokenizer, other->tokenizer) != 0 || first->tokenizer_hash != other->tokenizer_hash) {
        return dt_fail(err, DT_INVALID, "%s: tokenizer %s, but %s has %s; make both with one", path,
                       other->tokenizer[0] != 0 ? other->tokenizer : "unknown", first_path,
                       first->tokenizer[0] != 0 ? first->tokenizer : "unknown");
    }
    if (first->document_end != other->document_end) {
        return dt_fail(err, DT_INVALID,
                       "%s: documents end with id %" PRId64 ", those of %s with %" PRId64
                       " (-1: not known); make both alike",
                       path, other->document_end, first_path, first->document_end);
    }
    bool same = first->class_count == other->class_count;
    for (int i = 0; same && i < first->class_count; i++) {
        same = strcmp(first->classes[i], other->classes[i]) == 0;
    }
    return same ? 0 : dt_fail(err, DT_INVALID, "%s: has other classes than %s; both need the same", path, first_path);
}

static void add_files(struct data_source *s, const struct data_source *from)
{
    for (int i = 0; i < from->file_count; i++) {
        data_list_named(s, from->files[i].name, from->files[i].count, from->files[i].hash);
    }
}

/* Adds what the tokens of one source are to what those of the mixture are. */
static void add_tokens(struct data_source *s, const struct data_source *from)
{
    s->token_count += from->token_count;
    s->vocabulary = from->vocabulary > s->vocabulary ? from->vocabulary : s->vocabulary;
    for (int k = 0; k < s->layout.count; k++) {
        s->largest[k] = from->largest[k].value > s->largest[k].value ? from->largest[k] : s->largest[k];
    }
}

/* Appends the choices of a source whose samples begin at `first`. */
static void add_choices(struct data_choices *all, const struct data_source *from, int64_t first)
{
    const struct data_choices *c = from->choices;
    all->items = dt_realloc(all->items, (size_t)(all->item_count + c->item_count) * sizeof *all->items);
    all->sizes = dt_realloc(all->sizes, (size_t)(first + from->sample_count) * sizeof *all->sizes);
    memcpy(all->sizes + first, c->sizes, (size_t)from->sample_count * sizeof *all->sizes);
    for (int64_t i = 0; i < c->item_count; i++) {
        struct data_choice_item *item = &all->items[all->item_count++];
        *item = c->items[i];
        item->first += first;
    }
}

/* Adds the facts of one source to those of the mixture. */
static void add_source(struct data_source *s, struct mixed *m, struct data_part *part, const struct data_source *from)
{
    *part = (struct data_part){.first = s->sample_count, .count = from->sample_count, part->quota, part->before};
    if (from->choices != NULL) {
        add_choices(&m->choices, from, s->sample_count);
        s->choices = &m->choices;
    }
    s->sample_count += from->sample_count;
    add_tokens(s, from);
    if (s->blank_count == 0) {
        s->blank_path = from->blank_path;
        s->blank_row = from->blank_row;
    }
    s->blank_count += from->blank_count;
    add_files(s, from);
}

/* The weights count as one more file: a run does not go on with others as if nothing had changed. */
static void list_weights(struct data_source *s, const struct data_mixture *m)
{
    XXH3_state_t *h = XXH3_createState();
    struct dt_text name;
    dt_text_init(&name);
    dt_text_puts(&name, "the mixture");
    (void)XXH3_64bits_reset(h);
    for (int i = 0; i < m->count; i++) {
        dt_text_printf(&name, "%s %.4g %%", i > 0 ? "," : "", 100.0 * (double)m->part[i].quota / MIXTURE_BLOCK);
        (void)XXH3_64bits_update(h, &m->part[i].quota, sizeof m->part[i].quota);
        (void)XXH3_64bits_update(h, &m->part[i].count, sizeof m->part[i].count);
    }
    data_list_file(s, dt_text_str(&name), m->count, XXH3_64bits_digest(h));
    (void)XXH3_64bits_reset(h);
    for (int i = 0; i < s->file_count; i++) {
        (void)XXH3_64bits_update(h, s->files[i].name, strlen(s->files[i].name) + 1);
        (void)XXH3_64bits_update(h, &s->files[i].hash, sizeof s->files[i].hash);
    }
    s->hash = XXH3_64bits_digest(h);
    (void)XXH3_freeState(h);
    dt_text_clear(&name);
}

int data_open_mixture(struct data_source *s, const struct dt_sources *from, const char *format,
                      const struct batch_layout *layout, struct dt_error *err)
{
    if (from->count == 1) {
        return open_one(s, &from->of[0], format, layout, err);
    }
    struct mixed *m = dt_alloc(sizeof *m);
    *s = (struct data_source){.ops = &data_mixed, .layout = *layout, .targets = batch_targets(layout), .state = m};
    m->mixture.count = from->count;
    int rc = share_out(&m->mixture, from, err);
    for (int i = 0; rc == 0 && i < from->count; i++) {
        struct data_source *one = &m->source[i];
        rc = open_one(one, &from->of[i], format, layout, err);
        m->open += rc == 0;
        if (rc == 0 && i > 0) {
            rc = check_alike(&m->source[0], one, data_source_name(&from->of[0]), data_source_name(&from->of[i]), err);
        }
        if (rc == 0) {
            add_source(s, m, &m->mixture.part[i], one);
        }
    }
    if (rc != 0) {
        data_close(s);
        return -1;
    }
    const struct data_source *first = &m->source[0];
    memcpy(s->tokenizer, first->tokenizer, sizeof s->tokenizer);
    s->tokenizer_hash = first->tokenizer_hash;
    s->tokenizer_path = first->tokenizer_path;
    s->sequence_length = first->sequence_length;
    s->document_end = first->document_end;
    s->classes = first->classes;
    s->class_count = first->class_count;
    s->mixture = &m->mixture;
    list_weights(s, &m->mixture);
    return 0;
}

static int prepare_mixed(struct data_source *s, const struct job *job, bool training, struct dt_error *err)
{
    struct mixed *m = s->state;
    int rc = 0;
    s->token_count = 0; /* of choices it is known only now, as is their tokenizer */
    for (int i = 0; rc == 0 && i < m->open; i++) {
        rc = data_prepare(&m->source[i], job, training, err);
        add_tokens(s, &m->source[i]);
    }
    s->tokenizer_hash = m->source[0].tokenizer_hash;
    return rc;
}

/* The part that holds a sample. */
static int part_of(const struct mixed *m, int64_t sample)
{
    int i = 0;
    while (sample >= m->mixture.part[i].first + m->mixture.part[i].count) {
        i++;
    }
    return i;
}

static int read_mixed(const struct data_source *s, int64_t sample, int64_t epoch, const struct batch *b, int64_t row,
                      struct dt_error *err)
{
    const struct mixed *m = s->state;
    int i = part_of(m, sample);
    return m->source[i].ops->read(&m->source[i], sample - m->mixture.part[i].first, epoch, b, row, err);
}

static bool blank_mixed(const struct data_source *s, int64_t sample)
{
    const struct mixed *m = s->state;
    int i = part_of(m, sample);
    return m->source[i].blank_count > 0 && m->source[i].ops->blank(&m->source[i], sample - m->mixture.part[i].first);
}

static void expect_mixed(const struct data_source *s, int64_t sample)
{
    const struct mixed *m = s->state;
    int i = part_of(m, sample);
    m->source[i].ops->expect(&m->source[i], sample - m->mixture.part[i].first);
}

const struct data_ops data_mixed = {.name = "mixture",
                                    .prepare = prepare_mixed,
                                    .read = read_mixed,
                                    .blank = blank_mixed,
                                    .expect = expect_mixed,
                                    .close = close_mixed};
