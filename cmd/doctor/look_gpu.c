/* The row about GPUs: what the driver says by NVML, what CUDA's driver would give a program,
 * which libraries are here, what the kernel's log kept. Facts of GPU i of the host begin with
 * "gpuI."; the values of dt_nvml_value have their names there. */
#include "cmd/doctor/look.h"

#include "base/file.h"
#include "base/gpu/gpu_visible.h"
#include "base/gpu/nvml.h"
#include "base/text.h"
#include "collectives/nccl_load.h"
#include "launcher/workers/gpus.h"
#include "launcher/options/options.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef DT_CUDA_TOOLKIT /* CUDART_VERSION of the toolkit that this was built with; 0: none */
#define DT_CUDA_TOOLKIT 0
#endif
/* for CUDA's driver: without persistence mode each GPU takes a second to wake up */
#define CUDA_S 6.0

enum { PROCESSES = 16, LOG_RECORDS = 100000 };

/* ---- libraries ---- */

/* A library's version by a call of it that needs no GPU, size_t f(void); "missing". */
static void look_library(struct facts *f, const char *fact, const char *const *names, const char *call)
{
    void *library = NULL;
    for (; *names != NULL && library == NULL; names++) {
        library = dlopen(*names, RTLD_LAZY | RTLD_LOCAL);
    }
    void *found = library != NULL ? dlsym(library, call) : NULL;
    long version = -1;
    if (found != NULL) {
        size_t (*get)(void);
        memcpy(&get, &found, sizeof get);
        version = (long)get();
    }
    if (library == NULL) {
        facts_set(f, fact, "missing");
    } else {
        facts_set(f, fact, "%ld", version); /* it stays loaded: closing these has crashed
                                             * programs that end */
    }
}

/* As `train` finds it: "gpu_nccl", its version, and "gpu_nccl_file"; "missing", and
 * "gpu_nccl_why" where one is here that cannot be used. */
static void look_nccl(struct facts *f)
{
    struct dt_error err;
    const struct dt_nccl *n = dt_nccl_load(&err);
    if (n != NULL) {
        facts_set(f, "gpu_nccl", "%d", n->version);
        facts_set(f, "gpu_nccl_file", "%s", n->path);
        return;
    }
    facts_set(f, "gpu_nccl", "missing");
    if (err.status != DT_NOT_FOUND || getenv("DTRUN_NCCL") != NULL) {
        facts_set(f, "gpu_nccl_why", "%s", err.text);
    }
}

static void look_libraries(struct facts *f)
{
    static const char *const lt[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                                     "/usr/local/cuda/lib64/libcublasLt.so.13",
                                     "/usr/local/cuda/lib64/libcublasLt.so.12", NULL};
    static const char *const dnn[] = {"libcudnn.so.9", "libcudnn.so", NULL};
    look_library(f, "gpu_cublaslt", lt, "cublasLtGetVersion");
    look_library(f, "gpu_cudnn", dnn, "cudnnGetVersion");
    look_nccl(f);
}

/* ---- GPUs ---- */

static void look_processes(struct facts *f, struct dt_nvml *n, struct dt_nvml_gpu *gpu, const char *fact)
{
    struct dt_nvml_process users[PROCESSES];
    struct dt_text text;
    int count = dt_nvml_processes(n, gpu, users, PROCESSES);
    dt_text_init(&text);
    for (int i = 0; i < count && i < PROCESSES; i++) {
        char bytes[32];
        dt_text_printf(&text, "%spid %lld", i > 0 ? ", " : "", (long long)users[i].pid);
        if (users[i].name[0] != '\0') {
            dt_text_printf(&text, " (%s)", users[i].name);
        }
        if (users[i].bytes >= 0) {
            dt_text_printf(&text, " %s", dt_text_bytes((double)users[i].bytes, bytes, sizeof bytes));
        }
    }
    if (count > 0) {
        facts_set(f, fact, "%s", dt_text_str(&text));
    }
    dt_text_clear(&text);
}

static void look_one(struct facts *f, struct dt_nvml *n, struct dt_nvml_gpu *gpu, int index)
{
    char fact[64], name[96], uuid[96], bus[32];
    dt_nvml_identify(n, gpu, name, uuid, bus);
    (void)snprintf(fact, sizeof fact, "gpu%d.name", index);
    facts_set(f, fact, "%s", name);
    (void)snprintf(fact, sizeof fact, "gpu%d.uuid", index);
    facts_set(f, fact, "%s", uuid);
    (void)snprintf(fact, sizeof fact, "gpu%d.bus", index);
    facts_set(f, fact, "%s", bus);
    for (int v = 0; v < DT_NVML_VALUE_COUNT; v++) {
        int64_t value = dt_nvml_value(n, gpu, (enum dt_nvml_value)v);
        if (value >= 0) {
            (void)snprintf(fact, sizeof fact, "gpu%d.%s", index, dt_nvml_value_name((enum dt_nvml_value)v));
            facts_set(f, fact, "%lld", (long long)value);
        }
    }
    (void)snprintf(fact, sizeof fact, "gpu%d.processes", index);
    look_processes(f, n, gpu, fact);
}

/* Pairs that cannot read each other's memory: then what they send goes through the host's. */
static void look_pairs(struct facts *f, struct dt_nvml *n, struct dt_nvml_gpu *const *gpus, int count)
{
    struct dt_text apart;
    int linked = 0, pairs = 0;
    dt_text_init(&apart);
    for (int i = 0; i < count; i++) {
        for (int k = i + 1; k < count && gpus[i] != NULL; k++) {
            if (gpus[k] != NULL) {
                pairs++;
                linked += dt_nvml_reaches(n, gpus[i], gpus[k], true) == 1;
                if (dt_nvml_reaches(n, gpus[i], gpus[k], false) == 0) {
                    dt_text_printf(&apart, "%s%d-%d", apart.size > 0 ? ", " : "", i, k);
                }
            }
        }
    }
    facts_set(f, "gpu_pairs", "%d", pairs);
    facts_set(f, "gpu_pairs_nvlink", "%d", linked);
    if (apart.size > 0) {
        facts_set(f, "gpu_pairs_apart", "%s", dt_text_str(&apart));
    }
    dt_text_clear(&apart);
}

static void look_visible(struct facts *f, char *const *env, const char *const *uuids, int count)
{
    struct dt_gpu_visible seen;
    const char *text = options_getenv(env, "CUDA_VISIBLE_DEVICES");
    dt_gpu_visible(text, uuids, count, &seen);
    facts_set(f, "gpus_visible", "%d", seen.count);
    if (text != NULL) {
        facts_set(f, "gpu_variable", "%s", text);
    }
    if (seen.problem[0] != '\0') {
        facts_set(f, "gpu_variable_problem", "%s", seen.problem);
    }
    for (int i = 0; i < seen.count; i++) {
        if (seen.gpu[i] >= 0) {
            char fact[32];
            (void)snprintf(fact, sizeof fact, "gpu%d.visible", seen.gpu[i]);
            facts_set(f, fact, "%d", i);
        }
    }
}

static void look_by_nvml(struct facts *f, struct dt_nvml *n, char *const *env)
{
    struct dt_nvml_gpu *gpus[DT_NVML_GPUS] = {NULL};
    char ids[DT_NVML_GPUS][96], text[96], name[96], bus[32], fact[32];
    const char *uuids[DT_NVML_GPUS];
    struct dt_error err;
    int count = dt_nvml_count(n);
    facts_set(f, "gpu_driver", "%s", dt_nvml_driver(n, text, sizeof text));
    facts_set(f, "gpu_cuda", "%d", dt_nvml_cuda(n));
    facts_set(f, "gpu_count", "%d", count);
    for (int i = 0; i < count; i++) {
        ids[i][0] = '\0';
        uuids[i] = ids[i];
        gpus[i] = dt_nvml_at(n, i, &err);
        if (gpus[i] != NULL) {
            dt_nvml_identify(n, gpus[i], name, ids[i], bus);
            look_one(f, n, gpus[i], i);
        }
        if (gpus[i] == NULL || dt_nvml_health(n, gpus[i], &err) != 0) {
            const char *cause = strchr(err.text, ':'); /* which GPU, the line says itself */
            (void)snprintf(fact, sizeof fact, "gpu%d.error", i);
            facts_set(f, fact, "%s", cause != NULL ? cause + 2 : err.text);
        }
    }
    look_visible(f, env, uuids, count);
    look_pairs(f, n, gpus, count);
}

/* ---- the kernel's log ---- */

/* "gpuI.xids": the numbers that the driver wrote there, each once. Records that nobody may read
 * are none. */
static void look_log(struct facts *f)
{
    int fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    struct dt_text seen;
    dt_text_init(&seen);
    for (int i = 0; fd >= 0 && i < LOG_RECORDS; i++) {
        char record[2048], bus[32], word[64];
        ssize_t n = read(fd, record, sizeof record - 1);
        if (n < 0 && errno != EPIPE) { /* EPIPE: older ones were overwritten meanwhile */
            break;
        }
        record[n > 0 ? n : 0] = '\0';
        int xid = dt_nvml_xid_of_line(record, bus);
        (void)snprintf(word, sizeof word, "%s=%d", bus, xid);
        if (xid > 0 && strstr(dt_text_str(&seen), word) == NULL && seen.size < 2000) {
            dt_text_printf(&seen, "%s%s", seen.size > 0 ? " " : "", word);
        }
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    if (seen.size > 0) {
        facts_set(f, "gpu_xids", "%s", dt_text_str(&seen));
    }
    dt_text_clear(&seen);
}

void look_gpus(struct facts *f, char *const *env)
{
    struct dt_nvml *n = NULL;
    struct dt_error err;
    facts_set(f, "gpu_toolkit", "%d", DT_CUDA_TOOLKIT);
    if (dt_nvml_open(&n, &err) != 0) {
        bool kernel_has_it = dt_file_exists("/proc/driver/nvidia/version");
        if (err.status != DT_NOT_FOUND || kernel_has_it) {
            facts_set(f, "gpu_driver_error", "%s%s", err.text,
                      kernel_has_it && err.status == DT_NOT_FOUND ? ", but the kernel has it" : "");
        }
        look_visible(f, env, NULL, kernel_has_it ? -1 : 0);
        return;
    }
    look_by_nvml(f, n, env);
    dt_nvml_close(n);
    look_log(f);
}

void look_cuda(struct facts *f, char *const *env)
{
    (void)env;
    struct dt_nvml *n = NULL;
    struct dt_error err;
    if (dt_nvml_open(&n, &err) != 0) {
        return;
    }
    dt_nvml_close(n);
    look_libraries(f);
    struct gpus *gpus = dt_alloc(sizeof *gpus);
    if (gpus_read(gpus, -1, CUDA_S, &err) >= 0) {
        facts_set(f, "gpu_cuda_trouble", "%s", err.text);
    } else if (gpus->trouble[0] != '\0') {
        facts_set(f, "gpu_cuda_trouble", "%s", gpus->trouble);
    } else {
        facts_set(f, "gpus_cuda", "%d", gpus->count);
    }
    free(gpus);
}
