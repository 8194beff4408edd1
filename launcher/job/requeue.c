/* The command is a program of the scheduler, found in PATH: it knows where the controller is and
 * how to prove who we are. */
#include "launcher/job/requeue.h"

#include "base/clock.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

/* a controller under load answers late, but a job that was told to stop has not much time left */
#define ASK_S 20.0

bool requeue_wanted(const struct options *o, int signal)
{
    bool warned = signal == SIGUSR1 || signal == SIGUSR2;
    return strcmp(o->requeue, "on") == 0 || (strcmp(o->requeue, "auto") == 0 && o->here.requeue.batch && warned);
}

/* Its status, or -1 when it had to be ended. */
static int wait_for(pid_t pid)
{
    double end_s = dt_now_s() + ASK_S;
    int status = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (dt_now_s() > end_s) {
            (void)kill(pid, SIGKILL);
            (void)waitpid(pid, &status, 0);
            return -1;
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    }
    return status;
}

int requeue_ask(const struct options *o, char *const *env, struct dt_error *err)
{
    struct cluster_requeue q = o->here.requeue;
    char *argv[] = {q.program, q.verb, q.id, NULL};
    if (q.verb[0] == '\0') {
        argv[1] = q.id;
        argv[2] = NULL;
    }
    posix_spawnattr_t plain; /* our own mask holds back what we take by a descriptor */
    sigset_t none, all;
    pid_t pid;
    (void)sigemptyset(&none);
    (void)sigfillset(&all);
    (void)posix_spawnattr_init(&plain);
    (void)posix_spawnattr_setsigmask(&plain, &none);
    (void)posix_spawnattr_setsigdefault(&plain, &all);
    (void)posix_spawnattr_setflags(&plain, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    errno = posix_spawnp(&pid, argv[0], NULL, &plain, argv, env);
    (void)posix_spawnattr_destroy(&plain);
    if (errno != 0) {
        return dt_fail_errno(err, "--requeue: %s", argv[0]);
    }
    int status = wait_for(pid);
    if (status == -1) {
        return dt_fail(err, DT_TIMEOUT, "--requeue: %s %s %s: no answer in %g s; submit the job again", q.program,
                       q.verb, q.id, ASK_S);
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        return dt_fail(err, DT_IO, "--requeue: %s %s %s: refused; submit the job again", q.program, q.verb, q.id);
    }
    return 0;
}
