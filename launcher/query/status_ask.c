/* The other end of status.c: finds the sockets, reads the answers, shows them. A socket without
 * a listener is removed; an agent that does not answer (stopped, or hanging) is named. What an
 * answer holds comes from workers and peers: bounded, and harmless for a terminal. */
#include "launcher/query/status.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/scan.h"
#include "launcher/output/log_lines.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { COLUMNS = 80, ROWS = 32, ANSWER_BYTES = 8 << 20, AT_ONCE = 128 };
#define PATIENCE_S 5.0

/* ---- one answer as text ---- */

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

/* A line of at most COLUMNS characters, the rest as "..."; `whole`: never cut. */
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

/* The job runs without the host that answers: what the answer says of hosts and ranks is of
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
        if (!witness && number_of(m, "pid", 0) > 0) { /* several agents of one machine have its
                                                       * name */
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

/* Who is behind comes first: the lowest step, then the oldest sign of life. */
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

/* The share of a step in which a rank does not wait for the others, "60%": who has most of it is
 * the slowest. "": not known. */
static const char *busy(const cJSON *r, char *out, size_t out_bytes)
{
    double own_s = number_of(r, "data_s", 0) + number_of(r, "compute_s", 0),
           all_s = own_s + number_of(r, "communication_s", 0);
    if (own_s < 0 || all_s <= 0 || own_s > all_s) {
        return "";
    }
    (void)snprintf(out, out_bytes, "%.0f%%", 100 * own_s / all_s);
    return out;
}

/* One of a job on several hosts. What it costs in time and memory stands in the JSON. */
static void add_rank_of_host(struct dt_text *out, const cJSON *r)
{
    struct dt_text line;
    char age[32], number[32] = "", share[8];
    double pulse_s = number_of(r, "pulse_s", -1);
    dt_text_init(&line);
    dt_text_printf(&line, "%6.0f %-12.12s %5.0f %7.0f ", number_of(r, "rank", 0), text_of(r, "host"),
                   number_of(r, "local_rank", 0), number_of(r, "pid", 0));
    if (number_of(r, "step", -1) >= 0) {
        (void)snprintf(number, sizeof number, "%.0f", number_of(r, "step", 0));
    }
    if (!cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(r, "running"))) {
        dt_text_printf(&line, "ended with %.0f", number_of(r, "exit_code", 0));
    } else if (pulse_s >= 0) {
        bool minutes = pulse_s >= 1000;
        (void)snprintf(age, sizeof age, "%.*f %s", pulse_s < 100 ? 1 : 0, minutes ? pulse_s / 60 : pulse_s,
                       minutes ? "min" : "s");
        dt_text_printf(&line, "%1.1s %8s %4s %7s %s", text_of(r, "state"), number, busy(r, share, sizeof share), age,
                       text_of(r, "phase"));
        if (text_of(r, "collective")[0] != '\0') {
            bool in = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(r, "in_collective"));
            dt_text_printf(&line, ", %s %s", in ? "in" : "last", text_of(r, "collective"));
        }
    } else {
        dt_text_printf(&line, "%1.1s", text_of(r, "state"));
        if (number_of(r, "output_s", -1) >= 0) {
            dt_text_printf(&line, " output %s ago", span(number_of(r, "output_s", 0), age, sizeof age));
        }
    }
    add_line(out, &line, false);
    dt_text_clear(&line);
}

static void add_rank(struct dt_text *out, const cJSON *r)
{
    struct dt_text line;
    char age[32], memory[32], number[32] = "", share[8];
    dt_text_init(&line);
    bool running = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(r, "running"));
    if (!running) {
        dt_text_printf(&line, "%5.0f %7.0f ended with %.0f", number_of(r, "rank", 0), number_of(r, "pid", 0),
                       number_of(r, "exit_code", 0));
        add_line(out, &line, false);
        dt_text_clear(&line);
        return;
    }
    if (number_of(r, "step", -1) >= 0) {
        (void)snprintf(number, sizeof number, "%.0f", number_of(r, "step", 0));
    }
    dt_text_printf(&line, "%5.0f %7.0f %1.1s %6.1f %9s %8s %4s", number_of(r, "rank", 0), number_of(r, "pid", 0),
                   text_of(r, "state"), number_of(r, "cpu_s", 0),
                   dt_text_bytes(number_of(r, "memory_bytes", 0), memory, sizeof memory), number,
                   busy(r, share, sizeof share));
    if (number_of(r, "pulse_s", -1) >= 0) {
        dt_text_printf(&line, " %s, pulse %s ago", text_of(r, "phase"),
                       span(number_of(r, "pulse_s", 0), age, sizeof age));
        if (text_of(r, "collective")[0] != '\0') {
            bool in = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(r, "in_collective"));
            dt_text_printf(&line, ", %s %s", in ? "in" : "last", text_of(r, "collective"));
        }
    } else if (number_of(r, "output_s", -1) >= 0) {
        dt_text_printf(&line, " output %s ago", span(number_of(r, "output_s", 0), age, sizeof age));
    }
    add_line(out, &line, false);
    dt_text_clear(&line);
}

/* "87%", or "-" */
static const char *or_dash(double value, double unit, const char *end, char out[16])
{
    (void)snprintf(out, 16, value < 0 ? "-" : "%.0f%s", value * unit, end);
    return out;
}

/* Of ranks whose worker looks at its GPU. The memory is the whole GPU's. */
static void add_gpus(struct dt_text *out, const cJSON *const *list, int count)
{
    bool heading = false;
    for (int i = 0; i < count; i++) {
        const cJSON *g = cJSON_GetObjectItemCaseSensitive(list[i], "gpu");
        struct dt_text line;
        char busy_text[16], clock[16], heat[16], used[32], all[32];
        if (!cJSON_IsObject(g)) {
            continue;
        }
        if (!heading) {
            dt_text_puts(out, "  rank gpu          busy               memory   MHz   C slowed by\n");
            heading = true;
        }
        dt_text_init(&line);
        dt_text_printf(&line, "%6.0f %-12.12s %4s %9s of %8s %5s %3s %s", number_of(list[i], "rank", 0),
                       text_of(g, "bus"), or_dash(number_of(g, "busy", -1), 100, "%", busy_text),
                       dt_text_bytes(number_of(g, "memory_bytes", 0), used, sizeof used),
                       dt_text_bytes(number_of(g, "memory_total_bytes", 0), all, sizeof all),
                       or_dash(number_of(g, "clock_mhz", -1), 1, "", clock),
                       or_dash(number_of(g, "temperature", -1), 1, "", heat), text_of(g, "slowed_by"));
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
    bool hosts = number_of(job, "hosts", 1) > 1 || is_spare(job);
    dt_text_puts(out, hosts ? "  rank host         local     pid S     step busy   pulse doing\n"
                            : " rank     pid S  cpu s    memory     step busy doing\n");
    qsort(list, (size_t)count, sizeof *list, count > ROWS ? by_suspicion : by_rank);
    for (int i = 0; i < count && i < ROWS; i++) {
        (hosts ? add_rank_of_host : add_rank)(out, list[i]);
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
            add_line(out, &line, true); /* of use only when it is whole */
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

/* ---- asking ---- */

/* A line without an end never is one: a longer id than any run has is cut, and fits none either. */
static bool send_request(int fd, const char *run_id)
{
    char line[STATUS_REQUEST_BYTES];
    int n = snprintf(line, sizeof line - 1, run_id != NULL ? "status %s" : "status", run_id);
    size_t size = n < (int)sizeof line - 1 ? (size_t)n : sizeof line - 2;
    line[size++] = '\n';
    return send(fd, line, size, MSG_NOSIGNAL) == (ssize_t)size; /* an empty buffer takes it whole */
}

/* Reads until the end. False: not in time, or too much. */
static bool read_answer(int fd, double until_s, struct dt_text *out)
{
    char buffer[65536];
    for (;;) {
        double left_s = fmax(until_s - dt_now_s(), 0); /* what has come by then counts */
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int ready = poll(&p, 1, (int)(left_s * 1e3));
        if (ready == 0 || (ready < 0 && errno != EINTR)) {
            return false;
        }
        ssize_t n = read(fd, buffer, sizeof buffer);
        if (n == 0) {
            return out->size > 0;
        }
        if (n > 0) {
            dt_text_add(out, buffer, (size_t)n);
        } else if (errno != EAGAIN && errno != EINTR) {
            return false;
        }
        if (out->size > ANSWER_BYTES) {
            return false;
        }
    }
}

struct asking {
    const char *run_id; /* null: all */
    bool json;
    int found, silent;
    bool hidden; /* agents cannot make a socket either where we look: whether there are any is
                  * not known */
    struct dt_text out, ids;
};

/* Each once, however many agents of a job run here; "first, second". */
static void add_id(struct dt_text *ids, const char *id)
{
    size_t n = strlen(id);
    for (const char *p = dt_text_str(ids); *p != '\0'; p += strcspn(p, ","), p += *p == ',' ? 2 : 0) {
        if (strcspn(p, ",") == n && memcmp(p, id, n) == 0) {
            return;
        }
    }
    if (ids->size < 1000) {
        dt_text_printf(ids, "%s%s", ids->size > 0 ? ", " : "", id);
    }
}

/* A connection with the question on its way; -1: it is said why there is none. */
static int begin_asking(struct asking *a, const char *path, const char *name)
{
    bool stale;
    int fd = status_connect(path, &stale);
    if (fd < 0 && stale) {
        (void)unlink(path);
    } else if (fd < 0 && errno != ENOENT) { /* EAGAIN: many ask at once, or it does not accept */
        (void)fprintf(stderr, "dtrun: --status: the agent with pid %d does not answer: %s\n", atoi(name),
                      strerror(errno));
        a->silent++;
    }
    if (fd >= 0) {
        (void)send_request(fd, a->run_id); /* one that does not take it does not answer */
    }
    return fd;
}

static void take_answer(struct asking *a, int fd, const char *name, double until_s)
{
    struct dt_text answer;
    struct dt_error err;
    dt_text_init(&answer);
    if (!read_answer(fd, until_s, &answer)) {
        (void)fprintf(stderr,
                      "dtrun: --status: the agent with pid %d does not answer; it is stopped, or ends just now\n",
                      atoi(name));
        a->silent++;
    } else {
        cJSON *job = dt_scan_parse(answer.data, answer.size, name, NULL, &err);
        const char *id = text_of(job, "run_id");
        bool wanted = job != NULL && (a->run_id == NULL || strcmp(id, a->run_id) == 0);
        if (job == NULL) {
            (void)fprintf(stderr, "dtrun: --status: %s\n", err.text);
            a->silent++;
        } else if (!wanted) {
            add_id(&a->ids, id);
        }
        if (wanted && a->json) {
            dt_text_add(&a->out, answer.data, answer.size);
        } else if (wanted) {
            (void)status_show(answer.data, answer.size, &a->out, NULL);
        }
        a->found += wanted;
        cJSON_Delete(job);
    }
    dt_text_clear(&answer);
}

/* Of agents that do not answer all have the same time, not one after the other. */
static void ask_some(struct asking *a, const char *folder, struct dirent *const *list, int count)
{
    int fds[AT_ONCE];
    double until_s = dt_now_s() + PATIENCE_S;
    for (int i = 0; i < count; i++) {
        char *path = dt_format("%s/%s", folder, list[i]->d_name);
        fds[i] = begin_asking(a, path, list[i]->d_name);
        free(path);
    }
    for (int i = 0; i < count; i++) {
        if (fds[i] >= 0) {
            take_answer(a, fds[i], list[i]->d_name, until_s);
            (void)close(fds[i]);
        }
    }
}

static int by_number(const struct dirent **a, const struct dirent **b)
{
    return atoi((*a)->d_name) - atoi((*b)->d_name);
}

static int only_sockets(const struct dirent *e)
{
    return status_is_socket(e->d_name);
}

static void ask_folder(struct asking *a, const char *folder)
{
    struct dirent **list;
    struct dt_error err;
    a->hidden = false;
    if (status_folder_check(folder, false, &err) != 0) {
        a->hidden = err.status != DT_NOT_FOUND; /* of the last folder, which is used when those
                                                 * before it cannot be */
        if (a->hidden) {
            (void)fprintf(stderr, "dtrun: --status: %s\n", err.text);
        }
        return;
    }
    int count = scandir(folder, &list, only_sockets, by_number);
    for (int i = 0; i < count; i += AT_ONCE) {
        ask_some(a, folder, list + i, count - i < AT_ONCE ? count - i : AT_ONCE);
    }
    for (int i = 0; i < count; i++) {
        free(list[i]);
    }
    if (count >= 0) {
        free(list);
    }
}

int status_ask(const char *run_id, bool json)
{
    struct asking a = {.run_id = run_id, .json = json};
    char *folder;
    for (int i = 0; (folder = status_folder(i)) != NULL; i++) {
        ask_folder(&a, folder);
        free(folder);
    }
    bool unknown = a.hidden && a.found == 0;
    int code = a.silent > 0 || unknown ? DT_EXIT_FAILED : DT_EXIT_DONE;
    if (a.found == 0 && a.silent == 0 && !json && !unknown) {
        struct dt_text safe;
        dt_text_init(&safe);
        if (run_id == NULL) {
            dt_text_puts(&safe, "no job of this user runs on this host");
        } else {
            log_safe(&safe, run_id, strlen(run_id), false);
            dt_text_puts(&safe, ": no such run on this host; ");
            dt_text_puts(&safe, a.ids.size > 0 ? "there are: " : "no job of this user runs here");
            log_safe(&safe, dt_text_str(&a.ids), a.ids.size, false);
        }
        (void)fprintf(stderr, "dtrun: --status: %s\n", dt_text_str(&safe));
        dt_text_clear(&safe);
    }
    if (a.found == 0 && run_id != NULL) {
        code = DT_EXIT_FAILED;
    }
    if (dt_file_write_all(1, dt_text_str(&a.out), a.out.size, "stdout", NULL) != 0) {
        code = DT_EXIT_FAILED;
    }
    dt_text_clear(&a.out);
    dt_text_clear(&a.ids);
    return code;
}
