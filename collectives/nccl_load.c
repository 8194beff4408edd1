/* Finds NCCL and its functions. Functions that an older library lacks stay null. */
#include "collectives/nccl_load.h"

#include "base/library.h"
#include "base/log.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEAST 21400   /* first version with communicators that do not block */
#define ORDERED 22600 /* first version that knows NCCL_LAUNCH_ORDER_IMPLICIT */
/* first version whose kernels over symmetric windows end when their communicator is aborted */
#define WINDOWS 22907

static const char *const names[] = {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2",
                                    "/usr/local/cuda/lib/libnccl.so.2"};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct dt_nccl table;
static bool loaded;
static struct dt_error problem;

static const struct dt_symbol functions[] = {
#define ROW(result, name, symbol, arguments) {#symbol, &table.name},
    NCCL_FUNCTIONS(ROW)
#undef ROW
};
static const struct dt_symbol later_functions[] = {
#define ROW(result, name, symbol, arguments) {#symbol, &table.name},
    NCCL_LATER_FUNCTIONS(ROW)
#undef ROW
};

static void write_number(void)
{
    int v = table.version; /* 2812 is 2.8.12; since 2.9 versions are numbered 20900 */
    if (v < 10000) {
        (void)snprintf(table.number, sizeof table.number, "%d.%d.%d", v / 1000, v % 1000 / 100, v % 100);
    } else {
        (void)snprintf(table.number, sizeof table.number, "%d.%d.%d", v / 10000, v % 10000 / 100, v % 100);
    }
}

/* True if the kernels of two communicators may be on the device at once.
 *
 * NCCL's kernels wait on the device for those of the other ranks. Two communicators can deadlock:
 * one rank's device has begun with the first, another's with the second, and neither finds room
 * beside it. With this variable NCCL (2.26 or newer) begins a kernel only after the kernel that the
 * host launched before it, of any communicator, has all its blocks on the device (by launch
 * completion events, CUDA 12.3; before 12.3, after that kernel has ended). The program must launch
 * in the same order on all ranks, as ours does: NCCL's documentation, "Using multiple NCCL
 * communicators concurrently". A user's other value is kept; then all communicators share one
 * stream. */
static bool order_launches(int version)
{
    const char *text = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    if (version < ORDERED) {
        return false;
    }
    return text != NULL ? strcmp(text, "1") == 0 : setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1) == 0;
}

static bool take(void *library)
{
    struct link_map *map = NULL;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != NULL) {
        (void)snprintf(table.path, sizeof table.path, "%s", map->l_name);
    }
    const char *missing = dt_library_find(library, functions, sizeof functions / sizeof functions[0]);
    (void)dt_library_find(library, later_functions, sizeof later_functions / sizeof later_functions[0]);
    if (table.get_version == NULL || table.get_version(&table.version) != NCCL_SUCCESS) {
        (void)dt_fail(&problem, DT_INVALID,
                      "NCCL: %s does not tell its version; install another one, or name one in DTRUN_NCCL", table.path);
        return false;
    }
    write_number();
    table.ordered = order_launches(table.version);
    if (table.version < LEAST || missing != NULL) {
        (void)dt_fail(&problem, DT_INVALID,
                      "NCCL %s (%s): too old, 2.14 is the least; install a newer one, or name one in DTRUN_NCCL",
                      table.number, table.path);
        return false;
    }
    return true;
}

/* This variable of NCCL overrides what a program asks for. A rank inside a blocking call could not
 * be told that the round ends (NCCL's documentation, "Environment Variables"). */
static void refuse_blocking(void)
{
    const char *text = getenv("NCCL_COMM_BLOCKING");
    if (text != NULL && strcmp(text, "0") != 0) {
        dt_log(DT_LOG_WARN, "nccl", "NCCL_COMM_BLOCKING=%s is not followed: no communicator may block here", text);
        (void)setenv("NCCL_COMM_BLOCKING", "0", 1);
    }
}

static void load(void)
{
    refuse_blocking();
    const char *wish = getenv("DTRUN_NCCL");
    if (wish != NULL && wish[0] != '\0') {
        void *library = dlopen(wish, RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) {
            const char *why = dlerror();
            (void)dt_fail(&problem, DT_NOT_FOUND, "NCCL: DTRUN_NCCL=%.200s: %.200s", wish,
                          why != NULL ? why : "cannot be loaded");
            return;
        }
        loaded = take(library);
        return;
    }
    void *library = dt_library_open(names, sizeof names / sizeof names[0]);
    if (library != NULL) {
        loaded = take(library);
        return;
    }
    (void)dt_fail(
        &problem, DT_NOT_FOUND,
        "NCCL: libnccl.so.2 is not here; install it, name its folder in LD_LIBRARY_PATH, or the file in DTRUN_NCCL");
}

const struct dt_nccl *dt_nccl_load(struct dt_error *err)
{
    (void)pthread_once(&once, load);
    if (!loaded) {
        (void)dt_fail(err, problem.status, "%s", problem.text);
        return NULL;
    }
    return &table;
}

unsigned dt_nccl_features(const struct dt_nccl *n)
{
    bool registers = n->mem_alloc != NULL && n->mem_free != NULL && n->window != NULL && n->window_end != NULL;
    unsigned split = n->split != NULL ? DT_NCCL_SPLIT : 0,
             windows = registers && n->version >= WINDOWS ? DT_NCCL_WINDOWS : 0;
    return split | windows | (n->version >= 22800 && split != 0 && registers ? DT_NCCL_ZERO_CTAS : 0) |
           (n->ordered && split != 0 ? DT_NCCL_BESIDE : 0);
}

bool dt_nccl_has_limits(const struct dt_nccl *n)
{
    return n->version >= 21700;
}

bool dt_nccl_has_policies(const struct dt_nccl *n)
{
    return n->version >= 22700;
}
