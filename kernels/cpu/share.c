/* Sharing between ranks that are threads of one process, and so have one memory. A stream polls the
 * word that it waits for, first often, then less often. For ranks in several processes on the CPU,
 * collectives/shm.c does this instead. */
#include "kernels/cpu/cpu.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LOOKS_WITHOUT_SLEEP 2000
#define SLEEP_NS 50000

static int export_here(struct dt_device *d, void *base, char own[DT_DEVICE_OWN_BYTES], struct dt_error *err)
{
    (void)d, (void)base, (void)own, (void)err;
    return 0;
}

static int import_theirs(struct dt_device *d, const char own[DT_DEVICE_OWN_BYTES], void **out, struct dt_error *err)
{
    (void)own, (void)out;
    return dt_fail(err, DT_INVALID, "device %s: memory of another process cannot be reached; use collectives over shm",
                   d->ops->name);
}

static void release(struct dt_device *d, void *p)
{
    (void)d, (void)p;
}

static int pin(struct dt_device *d, void *host, size_t size_bytes, struct dt_error *err)
{
    (void)d, (void)host, (void)size_bytes, (void)err;
    return 0;
}

static void unpin(struct dt_device *d, void *host)
{
    (void)d, (void)host;
}

struct word {
    uint32_t *at, value;
};

static int run_write(struct dt_stream *s, void *args, struct dt_error *err)
{
    (void)s, (void)err;
    const struct word *w = args;
    __atomic_store_n(w->at, w->value, __ATOMIC_RELEASE);
    return 0;
}

static int run_wait(struct dt_stream *s, void *args, struct dt_error *err)
{
    const struct word *w = args;
    for (int looks = 0; (int32_t)(__atomic_load_n(w->at, __ATOMIC_ACQUIRE) - w->value) < 0; looks++) {
        if (dt_stream_failed(s, err)) {
            return -1;
        }
        if (looks < LOOKS_WITHOUT_SLEEP) {
            (void)sched_yield();
        } else {
            (void)nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
        }
    }
    return 0;
}

static void write_word(struct dt_stream *s, uint32_t *at, uint32_t value)
{
    dt_stream_call(s, run_write, &(struct word){at, value}, sizeof(struct word));
}

static void wait_word(struct dt_stream *s, uint32_t *at, uint32_t value)
{
    dt_stream_call(s, run_wait, &(struct word){at, value}, sizeof(struct word));
}

const struct dt_device_sharing dt_cpu_sharing = {.export_memory = export_here,
                                                 .import_memory = import_theirs,
                                                 .release = release,
                                                 .pin = pin,
                                                 .unpin = unpin,
                                                 .write_word = write_word,
                                                 .wait_word = wait_word};
