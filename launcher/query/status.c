/* The socket is made under a passing name and renamed when it listens, so whoever finds
 * PID-RANDOM.sock and is refused knows that its agent is gone: the file may be removed. */
#include "launcher/query/status.h"

#include "base/file.h"
#include "launcher/net/asked.h"
#include "launcher/net/runtime_folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { ASKERS = 8, SWEEP_FILES = 64 };
/* for one who asks, from the connection to its end */
#define SLOW_S 5.0

struct status {
    struct asked *asked;
    const char *run_id;
    status_describe *describe;
    status_prepare *prepare; /* or null */
    void *user;
    char *path;
};

/* ---- sockets ---- */

bool status_is_socket(const char *name)
{
    size_t n = strlen(name);
    return n > 5 && name[0] >= '1' && name[0] <= '9' && strcmp(name + n - 5, ".sock") == 0;
}

static int address_of(const char *path, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof out->sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    (void)strcpy(out->sun_path, path);
    return 0;
}

int status_connect(const char *path, bool *stale)
{
    struct sockaddr_un at;
    *stale = false;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && address_of(path, &at) == 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0) {
        return fd;
    }
    int cause = errno;
    *stale = fd >= 0 && cause == ECONNREFUSED;
    if (fd >= 0) {
        (void)close(fd);
    }
    errno = cause;
    return -1;
}

static bool program_of(const char *pid, char *out, size_t out_bytes)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%.20s/exe", pid);
    ssize_t size = readlink(path, out, out_bytes - 1);
    out[size > 0 ? size : 0] = '\0';
    return size > 0;
}

/* The number in a socket's name is of a process that runs our program, and not ours. In another
 * PID namespace an agent may be there without being seen. Opens nothing. */
static bool is_there(const char *name)
{
    char own[512], theirs[512], number[16];
    (void)snprintf(number, sizeof number, "%d", atoi(name));
    return atoi(name) != (int)getpid() && program_of("self", own, sizeof own) &&
           program_of(number, theirs, sizeof theirs) && strcmp(own, theirs) == 0;
}

/* Removes what killed agents have left; a few per start are enough. Agents that live are not
 * woken: a host may have many. */
static void sweep(const char *folder)
{
    DIR *d = opendir(folder);
    int looked = 0;
    for (struct dirent *e; d != NULL && looked < SWEEP_FILES && (e = readdir(d)) != NULL;) {
        if (!status_is_socket(e->d_name) || is_there(e->d_name)) {
            continue;
        }
        bool stale;
        char *path = dt_format("%s/%s", folder, e->d_name);
        int fd = status_connect(path, &stale);
        if (fd >= 0) {
            (void)close(fd);
        } else if (stale) {
            (void)unlink(path);
        }
        free(path);
        looked++;
    }
    if (d != NULL) {
        (void)closedir(d);
    }
}

/* A listening socket in the folder; *path is the caller's. */
static int listen_in(const char *folder, char **path, struct dt_error *err)
{
    unsigned char random[6] = {0};
    struct sockaddr_un at;
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
        return dt_fail_errno(err, "random numbers");
    }
    char *name = dt_format("%d-%02x%02x%02x%02x%02x%02x.sock", (int)getpid(), random[0], random[1], random[2],
                           random[3], random[4], random[5]);
    char *made = dt_format("%s/new-%s", folder, name);
    *path = dt_format("%s/%s", folder, name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool bound = fd >= 0 && address_of(made, &at) == 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0;
    if (!bound || listen(fd, ASKERS) != 0 || rename(made, *path) != 0) {
        (void)dt_fail_errno(err, "%s", made);
        if (bound) {
            (void)unlink(made);
        }
        if (fd >= 0) {
            (void)close(fd);
        }
        free(*path);
        *path = NULL;
        fd = -1;
    }
    free(made);
    free(name);
    return fd;
}

/* ---- those who ask ---- */

/* Our user's processes and root's come this far, by the folder's mode; this is for a folder
 * whose mode was changed. */
static bool may_ask(int fd)
{
    struct ucred who;
    socklen_t size = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && (who.uid == geteuid() || who.uid == 0);
}

static struct asked_answer *describe(const struct status *s)
{
    struct asked_answer *answer = asked_answer_make();
    s->describe(s->user, &answer->text);
    dt_text_puts(&answer->text, "\n");
    return answer;
}

static struct asked_answer *name_run(const struct status *s)
{
    struct asked_answer *answer = asked_answer_make();
    dt_text_puts(&answer->text, "{\"format\":1,\"run_id\":");
    dt_text_json(&answer->text, s->run_id, strlen(s->run_id));
    dt_text_puts(&answer->text, "}\n");
    return answer;
}

/* "status" or "status RUN_ID", and the end of a line. */
static enum asked_take take(void *user, int fd, const char *request, size_t size, struct asked_answer **answer)
{
    const struct status *s = user;
    static const char word[] = "status";
    const size_t n = sizeof word - 1;
    const char *end = memchr(request, '\n', size);
    size_t length = end != NULL ? (size_t)(end - request) : 0, id_size = strlen(s->run_id);
    if (end == NULL) {
        return ASKED_MORE;
    }
    if (!may_ask(fd) || length < n || memcmp(request, word, n) != 0 || (length > n && request[n] != ' ')) {
        return ASKED_DROP;
    }
    if (length > n && (length - n - 1 != id_size || memcmp(request + n + 1, s->run_id, id_size) != 0)) {
        *answer = name_run(s);
        return ASKED_ANSWER;
    }
    if (s->prepare != NULL && s->prepare(s->user)) {
        return ASKED_LATER;
    }
    *answer = describe(s);
    return ASKED_ANSWER;
}

void status_ready(struct status *s)
{
    if (asked_waits(s->asked)) {
        asked_ready(s->asked, describe(s));
    }
}

void status_set_prepare(struct status *s, status_prepare *prepare)
{
    s->prepare = prepare;
}

/* ---- open, close ---- */

int status_open(struct status **out, uv_loop_t *loop, const char *run_id, status_describe *describe_job, void *user,
                struct dt_error *err)
{
    int fd = -1;
    char *path = NULL;
    for (int i = 0; fd < 0; i++) {
        char *folder = runtime_folder(i);
        if (folder == NULL) {
            return -1; /* err says why not the last one */
        }
        if (runtime_folder_check(folder, true, err) == 0) {
            sweep(folder);
            fd = listen_in(folder, &path, err);
        }
        free(folder);
    }
    struct status *s = dt_alloc(sizeof *s);
    *s = (struct status){.run_id = run_id, .describe = describe_job, .user = user, .path = path};
    if (asked_open(
            &s->asked, loop, fd,
            &(struct asked_options){
                .places = ASKERS, .request_bytes = STATUS_REQUEST_BYTES, .slow_s = SLOW_S, .take = take, .user = s},
            err) != 0) {
        (void)dt_wrap(err, "%s", path);
        (void)close(fd);
        (void)unlink(path);
        free(path);
        free(s);
        return -1;
    }
    *out = s;
    return 0;
}

void status_close(struct status *s)
{
    (void)unlink(s->path);
    free(s->path);
    asked_close(s->asked);
    free(s);
}
