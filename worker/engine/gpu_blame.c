/* Asked in a thread of its own, which is left behind when the driver hangs; whoever is last
 * frees what both know. */
#include "worker/engine/gpu_blame.h"

#include "base/clock.h"
#include "base/gpu/nvml.h"
#include "base/text.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLAME_S 2.0

struct blame {
    pthread_mutex_t lock;
    pthread_cond_t done;
    int users;
    bool ready;
    char bus[32], text[300];
    double most_total;
};

static void add_users(struct blame *b, struct dt_nvml *n, struct dt_nvml_gpu *gpu)
{
    struct dt_nvml_process users[4];
    char name[96], uuid[96], bus[32], bytes[32];
    dt_nvml_identify(n, gpu, name, uuid, bus);
    int count = dt_nvml_processes(n, gpu, users, 4);
    size_t size = strlen(b->text);
    if (strcmp(bus, b->bus) != 0 || count <= 0) {
        return;
    }
    int named = 0;
    for (int i = 0; i < count && i < 4; i++) {
        size = strlen(b->text);
        if (users[i].pid != getpid()) {
            (void)snprintf(b->text + size, sizeof b->text - size, "%s pid %lld%s%s%s%s%s",
                           named++ == 0 ? "; it is used by" : ",", (long long)users[i].pid,
                           users[i].name[0] != '\0' ? " (" : "", users[i].name, users[i].name[0] != '\0' ? ")" : "",
                           users[i].bytes > 0 ? " " : "",
                           users[i].bytes > 0 ? dt_text_bytes((double)users[i].bytes, bytes, sizeof bytes) : "");
        }
    }
}

static void *ask(void *argument)
{
    struct blame *b = argument, own = {.ready = true, .most_total = -1};
    struct dt_nvml *n = NULL;
    struct dt_error err;
    memcpy(own.bus, b->bus, sizeof own.bus); /* written before the thread began */
    if (dt_nvml_open(&n, &err) == 0) {
        for (int i = 0; i < dt_nvml_count(n); i++) {
            struct dt_nvml_gpu *gpu = dt_nvml_at(n, i, &err);
            if (gpu == NULL || dt_nvml_health(n, gpu, &err) != 0) {
                const char *cause = strchr(err.text, ':');
                size_t size = strlen(own.text);
                (void)snprintf(own.text + size, sizeof own.text - size,
                               "; GPU %d of this host (nvidia-smi's number) is %s", i,
                               cause != NULL ? cause + 2 : "lost");
            } else {
                double total = (double)dt_nvml_value(n, gpu, DT_NVML_MEMORY_TOTAL);
                own.most_total = total > own.most_total ? total : own.most_total;
                add_users(&own, n, gpu);
            }
        }
        dt_nvml_close(n);
    } else if (err.status == DT_INVALID) {
        (void)snprintf(own.text, sizeof own.text, "; %.250s", err.text);
    }
    (void)pthread_mutex_lock(&b->lock);
    memcpy(b->text, own.text, sizeof b->text);
    b->most_total = own.most_total;
    b->ready = true;
    (void)pthread_cond_broadcast(&b->done);
    bool last = --b->users == 0;
    (void)pthread_mutex_unlock(&b->lock);
    if (last) {
        free(b);
    }
    return NULL;
}

/* Null: no word within the time. Freed by the caller with `free`. */
static struct blame *ask_within(const char *bus)
{
    struct blame *b = dt_alloc(sizeof *b), *answer = NULL;
    pthread_t thread;
    pthread_condattr_t clock;
    struct timespec until = dt_timespec(dt_now_s() + BLAME_S);
    (void)snprintf(b->bus, sizeof b->bus, "%s", bus != NULL ? bus : "");
    b->users = 2;
    (void)pthread_mutex_init(&b->lock, NULL);
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&b->done, &clock);
    (void)pthread_condattr_destroy(&clock);
    if (pthread_create(&thread, NULL, ask, b) != 0) {
        free(b);
        return NULL;
    }
    (void)pthread_detach(thread);
    (void)pthread_mutex_lock(&b->lock);
    while (!b->ready && pthread_cond_timedwait(&b->done, &b->lock, &until) != ETIMEDOUT) {
    }
    if (b->ready) {
        answer = dt_alloc(sizeof *answer);
        memcpy(answer->text, b->text, sizeof answer->text);
        answer->most_total = b->most_total;
    }
    bool last = --b->users == 0;
    (void)pthread_mutex_unlock(&b->lock);
    if (last) {
        free(b);
    }
    return answer;
}

void gpu_blame(const char *bus, struct dt_error *err)
{
    struct blame *b = ask_within(bus);
    size_t size = strlen(err->text);
    (void)snprintf(err->text + size, sizeof err->text - size, "%s", b != NULL ? b->text : "");
    free(b);
}

double gpu_most_total(void)
{
    struct blame *b = ask_within(NULL);
    double bytes = b != NULL ? b->most_total : -1;
    free(b);
    return bytes;
}
