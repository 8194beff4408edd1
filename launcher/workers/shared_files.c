#include "launcher/workers/shared_files.h"

#include "base/clock.h"
#include "base/text.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_NS = 1000 * 1000 };

/* freed when the parent needs a descriptor, because the child may have taken all others */
static int spare = -1;

/* glibc's fork() cannot share the table. Of its other work, a process with one thread that has just
 * begun only needs that the thread knows its id. */
pid_t shared_files_fork(void)
{
    int *number = NULL;
    spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (prctl(PR_GET_TID_ADDRESS, &number) != 0 || number == NULL) {
        return fork();
    }
    pid_t pid = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        *number = (int)syscall(SYS_set_tid_address, number);
    }
    return pid;
}

static bool is_connection(int fd)
{
    int domain = 0, type = 0, listens = 1;
    socklen_t size = sizeof domain;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && (domain == AF_INET || domain == AF_INET6) &&
           getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM &&
           getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && !listens;
}

/* Closes descriptors above 2 that are not connections. Writes the connections to *out, which the
 * caller frees. */
static int take_connections(int **out)
{
    int count = 0, capacity = 0;
    *out = NULL;
    (void)close(spare);
    spare = -1;
    DIR *all = opendir("/proc/self/fd");
    const struct dirent *e;
    while (all != NULL && (e = readdir(all)) != NULL) {
        int fd = isdigit((unsigned char)e->d_name[0]) ? atoi(e->d_name) : 0;
        if (fd <= 2 || fd == dirfd(all)) {
            continue;
        }
        if (!is_connection(fd)) {
            (void)close(fd);
            continue;
        }
        if (count == capacity) {
            capacity = 2 * capacity + 64;
            *out = dt_realloc(*out, (size_t)capacity * sizeof **out);
        }
        (*out)[count++] = fd;
    }
    if (all != NULL) {
        (void)closedir(all);
    }
    return count;
}

void shared_files_part(void)
{
    if (unshare(CLONE_FILES) != 0 || syscall(SYS_close_range, 3u, ~0u, 0u) == 0) {
        return;
    }
    int *list, count = take_connections(&list); /* Linux before 5.9 */
    for (int i = 0; i < count; i++) {
        (void)close(list[i]);
    }
    free(list);
}

void shared_files_trim(void)
{
    int *list;
    (void)take_connections(&list);
    free(list);
}

/* Unread input would turn the end of a connection into a reset, as would later input. */
static void read_away(int fd, double end_s)
{
    char bytes[16384];
    while (recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0 && dt_now_s() < end_s) {
    }
}

/* Whether the other side's kernel has not yet confirmed our end. */
static bool is_ending(int fd)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
           (info.tcpi_state == TCP_FIN_WAIT1 || info.tcpi_state == TCP_CLOSING || info.tcpi_state == TCP_LAST_ACK);
}

void shared_files_end(double timeout_s)
{
    double end_s = dt_now_s() + timeout_s;
    int *list, count = take_connections(&list);
    for (int i = 0; i < count; i++) {
        read_away(list[i], end_s);
        (void)shutdown(list[i], SHUT_WR);
    }
    for (bool wait = count > 0; wait;) {
        wait = false;
        for (int i = 0; i < count; i++) {
            read_away(list[i], end_s);
            wait = wait || is_ending(list[i]);
        }
        wait = wait && dt_now_s() < end_s;
        if (wait) {
            struct timespec pause = {.tv_nsec = LOOK_NS};
            (void)nanosleep(&pause, NULL);
        }
    }
    free(list);
}
