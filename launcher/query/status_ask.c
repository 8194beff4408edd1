/* The other end of status.c: finds the sockets and reads the answers. A socket without a listener
 * is removed; an agent that does not answer (stopped, or hanging) is named. */
#include "launcher/query/status.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/scan.h"
#include "launcher/net/runtime_folder.h"
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

enum { ANSWER_BYTES = 8 << 20, AT_ONCE = 128 };
#define PATIENCE_S 5.0

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
        const char *id = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(job, "run_id"));
        id = id != NULL ? id : "";
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
    if (runtime_folder_check(folder, false, &err) != 0) {
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
    for (int i = 0; (folder = runtime_folder(i)) != NULL; i++) {
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
