/* The text of an answer for people. An answer holds text from workers and peers, so the output is
 * bounded and made harmless for a terminal. */
#include "launcher/query/status.h"

#include "base/scan.h"
#include "launcher/output/log_lines.h"
#include "launcher/query/numbers.h"

#include <cjson/cJSON.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 80, ROWS = 32 };

static const char *text_of(const cJSON *object, const char *key)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    return text != NULL ? text : "";
}

static double number_of(const cJSON *object, const char *key, double otherwise)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(item) ? item->valuedouble : otherwise;
}

/* Appends a line of at most COLUMNS characters. A longer line is cut and ends in "..." unless
 * `whole` is set. */
static void add_line(struct dt_text *out, const struct dt_text *line, bool whole)
{
    struct dt_text safe;
    dt_text_init(&safe);
    log_safe(&safe, dt_text_str(line), line->size, false);
    const char *s = dt_text_str(&safe);
    size_t end = 0, cut = 0;
    for (int columns = 0; s[end] != '\0' && (whole || columns <= COLUMNS); columns++) {
        cut = columns == COLUMNS - 3 ? end : cut;
        do {
            end++;
        } while ((s[end] & 0xc0) == 0x80); /* the rest of a UTF-8 sequence */
        if (!whole && columns == COLUMNS) {
            safe.size = cut;
        }
    }
    dt_text_add(out, s, safe.size);
    dt_text_puts(out, safe.size < end ? "..." : "");
    dt_text_puts(out, "\n");
    dt_text_clear(&safe);
}

/* "0.4 s", "12 min 31 s", "3 h 20 min". */
static const char *span(double seconds, char *out, size_t out_bytes)
{
    seconds = seconds > 0 && seconds < 1e12 ? seconds : 0;
    long long s = (long long)seconds;
    if (seconds < 100) {
        (void)snprintf(out, out_bytes, "%.1f s", seconds);
    } else if (s < 6000) {
        (void)snprintf(out, out_bytes, "%lld min %lld s", s / 60, s % 60);
    } else {
        (void)snprintf(out, out_bytes, "%lld h %lld min", s / 3600, s / 60 % 60);
    }
    return out;
}

/* Whether the job runs without the host that answers. Then the answer describes hosts and ranks of
 * others. */
static bool is_spare(const cJSON *job)
{
    return strcmp(text_of(job, "state"), "spare") == 0;
}

static void add_members(struct dt_text *out, const cJSON *job)
{
    const cJSON *members = cJSON_GetObjectItemCaseSensitive(job, "members"), *m;
    struct dt_text line;
    char age[32];
    int shown = 0;
    dt_text_init(&line);
    cJSON_ArrayForEach(m, members)
    {
        if (++shown > ROWS) {
            dt_text_reset(&line);
            dt_text_printf(&line, "  ... and %d more hosts", cJSON_GetArraySize(members) - ROWS);
            add_line(out, &line, false);
            break;
        }
        dt_text_reset(&line);
        bool witness = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(m, "witness"));
        dt_text_printf(&line, "  %s %s", witness ? "witness" : "host", text_of(m, "host"));
        if (!witness && number_of(m, "pid", 0) > 0) { /* the agents of one machine share its name */
            dt_text_printf(&line, " pid %.0f", number_of(m, "pid", 0));
        }
        if (number_of(m, "order", -1) >= 0) {
            dt_text_printf(&line, " (node %.0f)", number_of(m, "order", 0));
        }
        dt_text_printf(&line, ": %s", text_of(m, "state"));
        if (number_of(m, "workers", 0) > 0) {
            dt_text_printf(&line, ", %.0f worker%s", number_of(m, "workers", 0),
                           number_of(m, "workers", 0) == 1 ? "" : "s");
        }
        if (cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(m, "answered"))) {
            dt_text_puts(&line, ", no answer");
        }
        if (number_of(m, "heard_s", -1) >= 0) {
            dt_text_printf(&line, ", heard from %s ago", span(number_of(m, "heard_s", 0), age, sizeof age));
        }
        add_line(out, &line, false);
    }
    dt_text_clear(&line);
}

/* Slow ranks come first: the lowest step, then the oldest sign of life. */
static int by_suspicion(const void *a, const void *b)
{
    const cJSON *x = *(const cJSON *const *)a, *y = *(const cJSON *const *)b;
    double steps = number_of(x, "step", -1) - number_of(y, "step", -1);
    double silence =
        number_of(y, "pulse_s", number_of(y, "output_s", 0)) - number_of(x, "pulse_s", number_of(x, "output_s", 0));
    double order = number_of(x, "rank", 0) - number_of(y, "rank", 0);
    double key = steps < 0 || steps > 0 ? steps : silence < 0 || silence > 0 ? silence : order;
    return key < 0 ? -1 : key > 0;
}

static int by_rank(const void *a, const void *b)
{
    double order = number_of(*(const cJSON *const *)a, "rank", 0) - number_of(*(const cJSON *const *)b, "rank", 0);
    return order < 0 ? -1 : order > 0;
}

/* ---- ranks and GPUs: the columns of numbers.c ---- */

/* The share of a step in which a rank does not wait for the others, "60%". The rank with the
 * largest share is the slowest. "": unknown. */
static void busy(const cJSON *r, char *out, size_t out_bytes)
{
    double own_s = number_of(r, "data_s", 0) + number_of(r, "compute_s", 0),
           all_s = own_s + number_of(r, "communication_s", 0);
    if (own_s >= 0 && all_s > 0 && own_s <= all_s) {
        (void)snprintf(out, out_bytes, "%.0f%%", 100 * own_s / all_s);
    }
}

/* "12.3 s", "250 s", "21 min": shorter than span(). */
static void age_of(double seconds, char *out, size_t out_bytes)
{
    bool minutes = seconds >= 1000;
    (void)snprintf(out, out_bytes, "%.*f %s", seconds < 100 ? 1 : 0, minutes ? seconds / 60 : seconds,
                   minutes ? "min" : "s");
}

/* The text of a column for an object, which may have the row's key. */
static const char *cell_of(const struct number *n, const cJSON *object, char *out, size_t out_bytes)
{
    double value = number_of(object, n->key != NULL ? n->key : "", -1), at_least_0 = value > 0 ? value : 0;
    char bytes[32];
    (void)snprintf(out, out_bytes, "%s", "");
    switch (n->column.cell) {
    case CELL_TEXT:
        return text_of(object, n->key);
    case CELL_NUMBER:
        (void)snprintf(out, out_bytes, "%.*f", n->column.decimals, at_least_0);
        break;
    case CELL_COUNT:
        (void)snprintf(out, out_bytes, value >= 0 ? "%.0f" : "", value);
        break;
    case CELL_OR_DASH:
        (void)snprintf(out, out_bytes, value >= 0 ? "%.0f" : "-", value);
        break;
    case CELL_PERCENT:
        (void)snprintf(out, out_bytes, value >= 0 ? "%.0f%%" : "-", value * 100);
        break;
    case CELL_BYTES:
        return dt_text_bytes(at_least_0, out, out_bytes);
    case CELL_OF_BYTES:
        (void)snprintf(out, out_bytes, "of %8s", dt_text_bytes(at_least_0, bytes, sizeof bytes));
        break;
    case CELL_AGE:
        age_of(at_least_0, out, out_bytes);
        break;
    case CELL_BUSY:
        busy(object, out, out_bytes);
        break;
    }
    return out;
}

/* Appends the columns of a table that the view has and whose needs are known, separated by spaces.
 * Without an object it appends the headings. Long texts are cut. */
static void add_cells(struct dt_text *line, enum numbers_table table, enum number_view view, unsigned known,
                      const cJSON *object)
{
    size_t count;
    const struct number *rows = numbers_rows(table, &count);
    for (const struct number *n = rows; n < rows + count; n++) {
        int width = n->column.width[view];
        if (width == 0 || (n->needs & ~known) != 0) {
            continue;
        }
        char out[64];
        const char *cell = object == NULL ? n->column.heading : cell_of(n, object, out, sizeof out);
        bool cut = object != NULL && n->column.cell == CELL_TEXT;
        dt_text_printf(line, "%s%*.*s", line->size > 0 ? " " : "", width, cut ? abs(width) : INT_MAX, cell);
    }
}

/* ", in all_reduce", ", last all_reduce"; nothing if no collective is known. */
static void add_collective(struct dt_text *line, const cJSON *r)
{
    if (text_of(r, "collective")[0] != '\0') {
        bool in = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(r, "in_collective"));
        dt_text_printf(line, ", %s %s", in ? "in" : "last", text_of(r, "collective"));
    }
}

/* Appends the line of a rank. With several hosts, the columns for time and memory are left out
 * (they are in the JSON), and one for the pulse's age is added. */
static void add_rank(struct dt_text *out, const cJSON *r, enum number_view view)
{
    struct dt_text line;
    char age[32];
    bool running = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(r, "running"));
    double pulse_s = number_of(r, "pulse_s", -1), output_s = number_of(r, "output_s", -1);
    unsigned known = !running ? 0 : pulse_s >= 0 || view == VIEW_ONE_HOST ? ~0u : RANK_RUNS | RANK_PROCESS;
    dt_text_init(&line);
    add_cells(&line, NUMBERS_RANK, view, known, r);
    if (!running && cJSON_HasObjectItem(r, "exit_code")) {
        dt_text_printf(&line, " ended with %.0f", number_of(r, "exit_code", 0));
    } else if (!running) {
        dt_text_puts(&line, " not started");
    } else if (pulse_s >= 0) {
        dt_text_printf(&line, " %s", text_of(r, "phase"));
        if (view == VIEW_ONE_HOST) {
            dt_text_printf(&line, ", pulse %s ago", span(pulse_s, age, sizeof age));
        }
        add_collective(&line, r);
    } else if (output_s >= 0) {
        dt_text_printf(&line, " output %s ago", span(output_s, age, sizeof age));
    }
    add_line(out, &line, false);
    dt_text_clear(&line);
}

static void add_headings(struct dt_text *out, enum number_view view, const char *last)
{
    struct dt_text line;
    dt_text_init(&line);
    add_cells(&line, NUMBERS_RANK, view, ~0u, NULL);
    if (view == VIEW_GPUS) {
        add_cells(&line, NUMBERS_GPU, view, ~0u, NULL);
    }
    dt_text_printf(out, "%s %s\n", dt_text_str(&line), last);
    dt_text_clear(&line);
}

/* Appends the GPUs of ranks whose worker reports its GPU. The memory is that of the whole GPU. */
static void add_gpus(struct dt_text *out, const cJSON *const *list, int count)
{
    bool heading = false;
    for (int i = 0; i < count; i++) {
        const cJSON *g = cJSON_GetObjectItemCaseSensitive(list[i], "gpu");
        struct dt_text line;
        if (!cJSON_IsObject(g)) {
            continue;
        }
        if (!heading) {
            add_headings(out, VIEW_GPUS, "slowed by");
            heading = true;
        }
        dt_text_init(&line);
        add_cells(&line, NUMBERS_RANK, VIEW_GPUS, ~0u, list[i]);
        add_cells(&line, NUMBERS_GPU, VIEW_GPUS, ~0u, g);
        dt_text_printf(&line, " %s", text_of(g, "slowed_by"));
        if (number_of(g, "xid", 0) > 0) {
            dt_text_printf(&line, "%sXid %.0f", text_of(g, "slowed_by")[0] != '\0' ? ", " : "", number_of(g, "xid", 0));
        }
        add_line(out, &line, false);
        dt_text_clear(&line);
    }
}

static void add_ranks(struct dt_text *out, const cJSON *job)
{
    const cJSON *ranks = cJSON_GetObjectItemCaseSensitive(job, "ranks"), *r;
    int count = cJSON_GetArraySize(ranks), n = 0;
    if (count == 0) {
        return;
    }
    const cJSON **list = dt_alloc((size_t)count * sizeof *list);
    cJSON_ArrayForEach(r, ranks)
    {
        list[n++] = r;
    }
    enum number_view view = number_of(job, "hosts", 1) > 1 || is_spare(job) ? VIEW_HOSTS : VIEW_ONE_HOST;
    add_headings(out, view, "doing");
    qsort(list, (size_t)count, sizeof *list, count > ROWS ? by_suspicion : by_rank);
    for (int i = 0; i < count && i < ROWS; i++) {
        add_rank(out, list[i], view);
    }
    if (count > ROWS) {
        dt_text_printf(out, "  ... and %d more, which are further or newer (--json shows all)\n", count - ROWS);
    }
    add_gpus(out, list, count < ROWS ? count : ROWS);
    free(list);
}

static void add_ignored(struct dt_text *out, const cJSON *job)
{
    const cJSON *names = cJSON_GetObjectItemCaseSensitive(job, "ignored_signals"), *name;
    struct dt_text line;
    dt_text_init(&line);
    cJSON_ArrayForEach(name, names)
    {
        const char *text = cJSON_GetStringValue(name);
        dt_text_printf(&line, "%s %s", line.size > 0 ? "," : "  ignores", text != NULL ? text : "");
    }
    if (line.size > 0) {
        dt_text_puts(&line, ", ignored at its start; TERM stops it");
        add_line(out, &line, false);
    }
    dt_text_clear(&line);
}

static void add_store(struct dt_text *out, const cJSON *job)
{
    const cJSON *store = cJSON_GetObjectItemCaseSensitive(job, "store"), *w;
    const cJSON *waits = cJSON_GetObjectItemCaseSensitive(store, "waits");
    struct dt_text line;
    char bytes[32], age[32];
    int shown = 0;
    if (!cJSON_IsObject(store)) {
        return;
    }
    dt_text_init(&line);
    dt_text_printf(&line, "  store port %.0f: %.0f connections, %.0f keys, %s", number_of(job, "store_port", 0),
                   number_of(store, "clients", 0), number_of(store, "keys", 0),
                   dt_text_bytes(number_of(store, "bytes", 0), bytes, sizeof bytes));
    add_line(out, &line, false);
    cJSON_ArrayForEach(w, waits)
    {
        if (++shown > ROWS / 2) {
            dt_text_printf(out, "    ... and %d more keys\n", cJSON_GetArraySize(waits) - ROWS / 2);
            break;
        }
        dt_text_reset(&line);
        dt_text_printf(&line, "    %s: %.0f wait%s for %s", span(number_of(w, "age_s", 0), age, sizeof age),
                       number_of(w, "count", 1), number_of(w, "count", 1) > 1 ? "" : "s", text_of(w, "key"));
        add_line(out, &line, false);
    }
    dt_text_clear(&line);
}

int status_show(const char *answer, size_t size, struct dt_text *out, struct dt_error *err)
{
    cJSON *job = dt_scan_parse(answer, size, "answer", NULL, err);
    if (job == NULL) {
        return -1;
    }
    struct dt_text line;
    char age[32];
    dt_text_init(&line);
    dt_text_printf(&line, "run %s: %s, ", text_of(job, "run_id"), text_of(job, "state"));
    if (number_of(job, "round", 0) > 0 && !is_spare(job)) {
        dt_text_printf(&line, "round %.0f, ", number_of(job, "round", 0));
    }
    dt_text_printf(&line, "%.0f of %.0f restarts used", number_of(job, "restarts", 0),
                   number_of(job, "max_restarts", 0));
    add_line(out, &line, false);
    dt_text_reset(&line);
    dt_text_puts(&line, "  ");
    if (!is_spare(job)) {
        dt_text_printf(&line, "%.0f host%s, %.0f rank%s; ", number_of(job, "hosts", 1),
                       number_of(job, "hosts", 1) != 1 ? "s" : "", number_of(job, "world_size", 0),
                       number_of(job, "world_size", 0) != 1 ? "s" : "");
    }
    dt_text_printf(&line, "host %s %s, pid %.0f, up %s", text_of(job, "host"), text_of(job, "role"),
                   number_of(job, "pid", 0), span(number_of(job, "up_s", 0), age, sizeof age));
    add_line(out, &line, false);
    dt_text_reset(&line);
    dt_text_printf(&line, "  command %s", text_of(job, "command"));
    add_line(out, &line, false);
    static const char *const folders[] = {"log_dir", "output_dir"}, *const words[] = {"logs", "output"};
    for (int i = 0; i < 2; i++) {
        if (text_of(job, folders[i])[0] != '\0') {
            dt_text_reset(&line);
            dt_text_printf(&line, "  %s %s", words[i], text_of(job, folders[i]));
            add_line(out, &line, true); /* a path is useful only as a whole */
        }
    }
    add_ignored(out, job);
    add_members(out, job);
    add_ranks(out, job);
    add_store(out, job);
    dt_text_clear(&line);
    cJSON_Delete(job);
    return 0;
}
