/* The command is a program of the scheduler, found in PATH: it knows where the controller is and
 * how to prove who we are. */
#include "launcher/job/requeue.h"

#include "base/helper.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

/* a controller under load answers late, but a job that was told to stop has not much time left */
#define ASK_S 20.0

bool requeue_wanted(const struct options *o, int signal)
{
    bool warned = signal == SIGUSR1 || signal == SIGUSR2;
    return strcmp(o->requeue.when, "on") == 0 ||
           (strcmp(o->requeue.when, "auto") == 0 && o->here.requeue.batch && warned);
}

int requeue_ask(const struct options *o, char *const *env, struct dt_error *err)
{
    struct cluster_requeue q = o->here.requeue;
    char *argv[] = {q.program, q.verb, q.id, NULL};
    if (q.verb[0] == '\0') {
        argv[1] = q.id;
        argv[2] = NULL;
    }
    int status;
    if (dt_helper_run(&(struct dt_helper_task){.path = q.program, .argv = argv, .envp = env, .output = DT_HELPER_SHOWN},
                      ASK_S, NULL, &status, err) != 0) {
        return err->status == DT_TIMEOUT
                   ? dt_fail(err, DT_TIMEOUT, "--requeue: %s %s %s: no answer in %g s; submit the job again", q.program,
                             q.verb, q.id, ASK_S)
                   : dt_wrap(err, "--requeue");
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        return dt_fail(err, DT_IO, "--requeue: %s %s %s: refused; submit the job again", q.program, q.verb, q.id);
    }
    return 0;
}
