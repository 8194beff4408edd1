#include "tests/lib/comm_threads.h"

#include "base/text.h"
#include "collectives/tree.h"

#include <string.h>

struct rank everyone[THREADS_MAX];
pthread_barrier_t meeting;

static void *begin(void *arg)
{
    struct rank *r = arg;
    r->main(r);
    return NULL;
}

void threads_run(int size, const char *layout, int without, void (*body)(struct rank *r))
{
    struct dt_error err;
    struct dt_store_local *local = dt_store_local_open();
    CHECK(size <= THREADS_MAX && pthread_barrier_init(&meeting, NULL, (unsigned)size - (without >= 0)) == 0);
    for (int i = 0; i < size; i++) {
        struct rank *r = &everyone[i];
        *r = (struct rank){
            .rank = i, .size = size, .host = {layout != NULL ? layout[i] : 0}, .timeout_s = 60, .main = body};
        if (i != without) {
            OK(dt_page_attach(&r->page, &err));
            OK(dt_store_open_local(&r->store, local, r->page, &err));
            CHECK(pthread_create(&r->thread, NULL, begin, r) == 0);
        }
    }
    for (int i = 0; i < size; i++) {
        if (i != without) {
            CHECK(pthread_join(everyone[i].thread, NULL) == 0);
            dt_store_close(everyone[i].store);
            dt_page_close(everyone[i].page, -1);
        }
    }
    CHECK(pthread_barrier_destroy(&meeting) == 0);
    dt_store_local_close(local);
}

struct dt_comm *world(struct rank *r)
{
    struct dt_error err;
    struct dt_comm *c = NULL;
    struct dt_comm_options o = {.rank = r->rank,
                                .size = r->size,
                                .store = r->store,
                                .page = r->page,
                                .timeout_s = r->timeout_s,
                                .open_timeout_s = 60};
    o.host = r->host[0] != 0 ? r->host : NULL;
    o.device = r->device.ops != NULL ? &r->device : NULL;
    OK(dt_comm_open(&c, &o, &err));
    CHECK(o.host == NULL || strcmp(c->ops->name, r->size == 1 ? "solo" : "tcp") == 0);
    return c;
}

static __thread struct dt_stream *own_stream;

void device_open(struct rank *r, const char *name)
{
    struct dt_error err;
    OK(dt_device_open(&r->device, name, &(struct dt_device_options){.streams = DT_STREAMS_THREAD}, &err));
    OK(dt_stream_open(&r->device, 0, &r->stream, &err));
    own_stream = r->stream;
}

void device_close(struct rank *r)
{
    dt_stream_close(r->stream);
    dt_device_close(&r->device);
    own_stream = NULL;
}

void start(struct dt_comm *c, const struct dt_collective *x)
{
    struct dt_error err;
    dt_comm_start(c, x, own_stream);
    if (own_stream != NULL) {
        OK(dt_stream_finish(own_stream, 60, &err));
    }
    OK(dt_comm_poll(c, &err));
}

double element(int r, int64_t i)
{
    uint64_t h = ((uint64_t)r + 1) * 0x9e3779b97f4a7c15ull + (uint64_t)i * 0xd1b54a32d192ed03ull;
    h = (h ^ (h >> 31)) * 0xbf58476d1ce4e5b9ull;
    static const double scales[] = {1e-5, 1, 3e4};
    return ((double)(h >> 40) / 8388608.0 - 1.0) * scales[h % 3];
}

void put(void *p, enum dt_dtype type, int64_t i, int r, int64_t at)
{
    double v = element(r, at);
    if (type == DT_F32) {
        ((float *)p)[i] = (float)v;
    } else if (type == DT_F64) {
        ((double *)p)[i] = v;
    } else if (type == DT_I64) {
        ((int64_t *)p)[i] = (int64_t)(v * 1e6);
    } else {
        float f = (float)v;
        uint32_t bits;
        memcpy(&bits, &f, sizeof(bits));
        ((uint16_t *)p)[i] = (uint16_t)(bits >> 16);
    }
}

void check_one(struct dt_comm *c, enum dt_coll kind, enum dt_reduction op, enum dt_dtype type, int64_t count, char *in,
               char *out)
{
    size_t width = dt_dtype_size(type);
    int64_t in_count = kind == DT_REDUCE_SCATTER ? count * c->size : count,
            out_count = kind == DT_ALL_GATHER ? count * c->size : count;
    int root = (int)(count % c->size);
    for (int64_t i = 0; i < in_count; i++) {
        put(in, type, i, c->rank, i);
    }
    start(c, &(struct dt_collective){kind, op, "check", in, out, count, type, root});
    char *want = dt_alloc((size_t)out_count * width + 1), *all[THREADS_MAX];
    const void *ptr[THREADS_MAX];
    int64_t first = kind == DT_REDUCE_SCATTER ? count * c->rank : 0;
    for (int r = 0; r < c->size; r++) {
        all[r] = kind == DT_ALL_GATHER ? want + (size_t)(r * count) * width : dt_alloc((size_t)count * width + 1);
        for (int64_t i = 0; i < count; i++) {
            put(all[r], type, i, r, first + i);
        }
        ptr[r] = all[r];
    }
    if (kind == DT_BROADCAST) {
        memcpy(want, all[root], (size_t)count * width);
    } else if (kind != DT_ALL_GATHER) {
        dt_tree_reduce(want, ptr, c->size, op, type, count);
    }
    CHECK(memcmp(want, out, (size_t)out_count * width) == 0);
    for (int r = 0; r < c->size && kind != DT_ALL_GATHER; r++) {
        free(all[r]);
    }
    free(want);
}

void check_in_place(struct dt_comm *c, int64_t n, float *x, float *want)
{
    int64_t all = n * c->size;
    float *mine = x + n * c->rank;
    for (int64_t i = 0; i < all; i++) {
        put(x, DT_F32, i, c->rank, i);
    }
    start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "whole", x, want, all, DT_F32, 0});
    start(c, &(struct dt_collective){DT_REDUCE_SCATTER, DT_SUM, "mine", x, mine, n, DT_F32, 0});
    CHECK(memcmp(mine, want + n * c->rank, (size_t)n * 4) == 0);
    start(c, &(struct dt_collective){DT_ALL_GATHER, DT_SUM, "all", mine, x, n, DT_F32, 0});
    CHECK(memcmp(x, want, (size_t)all * 4) == 0);
    start(c, &(struct dt_collective){DT_BROADCAST, DT_SUM, "same", x, x, all, DT_F32, 0});
    CHECK(memcmp(x, want, (size_t)all * 4) == 0);
    start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_MAX, "same", x, x, all, DT_F32, 0});
    CHECK(memcmp(x, want, (size_t)all * 4) == 0);
}

void check_two_by_two(struct dt_comm *c, struct dt_comm *row, struct dt_comm *column, int64_t n, float *x, float *y,
                      float *whole)
{
    for (int64_t i = 0; i < n; i++) {
        put(x, DT_F32, i, c->rank, i);
    }
    start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "whole", x, whole, n, DT_F32, 0});
    start(row, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "row", x, x, n, DT_F32, 0});
    start(column, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "column", x, y, n, DT_F32, 0});
    CHECK(memcmp(y, whole, (size_t)n * 4) == 0);
}
