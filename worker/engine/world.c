/* Who and where this rank is, and what it talks through. Nothing here knows what training is. */
#include "worker/engine/world.h"

#include "base/clock.h"
#include "base/gpu/gpu_visible.h"
#include "base/log.h"
#include "collectives/nccl_load.h"
#include "worker/engine/gpu_blame.h"

#include <dirent.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STORE_TIMEOUT_S 300.0
#define FOR_EVER_S 1e9

/* Reads a number from the environment; `fallback` when it is not set. */
static int env_int(const char *name, int fallback, int *out, struct dt_error *err)
{
    const char *text = getenv(name);
    long long value = fallback;
    if (text && *text && (!dt_parse_int64(text, &value) || value < 0 || value > 1 << 20)) {
        return dt_fail(err, DT_INVALID, "%s: %s: not a number of ranks; unset it or start through dtrun", name, text);
    }
    *out = (int)value;
    return 0;
}

double world_device_bytes(const struct world *w)
{
    return w->device->host_memory ? 0 : w->gpus.share_bytes;
}

int world_cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* A driver is here: its control device. Asking the driver itself would cost each start on the
 * CPU the loading of it. */
static bool driver_is_here(void)
{
    return access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0;
}

const char *world_device_name(const char *wanted)
{
    const char *given = getenv("DTRUN_DEVICE");
    if (wanted == NULL || strcmp(wanted, "auto") == 0) {
        wanted = given != NULL && given[0] != '\0'             ? given
                 : driver_is_here() && dt_device_known("cuda") ? "cuda"
                                                               : "cpu";
    }
    return strcmp(wanted, "gpu") == 0 ? "cuda" : wanted;
}

/* " visible (CUDA_VISIBLE_DEVICES=0,0: 0 is named twice, then none is seen)" */
static const char *by_variable(const char *list, char *out, size_t out_bytes)
{
    struct dt_gpu_visible seen;
    out[0] = '\0';
    if (list != NULL) {
        dt_gpu_visible(list, NULL, -1, &seen);
        (void)snprintf(out, out_bytes, " visible (CUDA_VISIBLE_DEVICES=%.100s%s%.150s)", list,
                       seen.problem[0] != '\0' ? ": " : "", seen.problem);
    }
    return out;
}

/* Of a list of parts that MIG cut a process sees one. */
static bool lists_parts(const char *list)
{
    return list != NULL && strncmp(list, "MIG-", 4) == 0;
}

static int too_few(int ranks, int count, struct dt_error *err)
{
    char variable[320], advice[128] = "";
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (lists_parts(list)) {
        (void)snprintf(advice, sizeof advice,
                       "a process sees one part of a GPU: give each rank its own with --virtual_local_rank, or ");
    } else if (count > 0) {
        (void)snprintf(advice, sizeof advice,
                       "start fewer (--nproc_per_node=%d), let ranks share one with training.share_gpu=true, or ",
                       count);
    } else if (list != NULL) {
        (void)snprintf(advice, sizeof advice, "correct or unset that, or ");
    }
    return dt_fail(err, DT_INVALID, "training.device: %d rank%s on this host and %d GPU%s%s; %suse training.device=cpu",
                   ranks, ranks == 1 ? "" : "s", count, count == 1 ? "" : "s",
                   by_variable(list, variable, sizeof variable), advice);
}

/* GPUs by their files, where they have some: asking the driver takes seconds when it has to wake
 * up. -1: not known so. */
static int count_files(void)
{
    int count = 0;
    DIR *folder = opendir("/dev");
    for (const struct dirent *e; folder != NULL && (e = readdir(folder)) != NULL;) {
        count += strncmp(e->d_name, "nvidia", 6) == 0 && e->d_name[6] >= '0' && e->d_name[6] <= '9';
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
    return count > 0 ? count : -1;
}

int world_check_device(const struct world_options *o, int local_size, const char **name, struct dt_error *err)
{
    struct dt_gpu_visible seen;
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    int count = count_files();
    *name = world_device_name(o->device);
    if (strcmp(*name, "cuda") != 0) {
        return 0;
    }
    local_size = getenv("DTRUN_OWN_GPU") != NULL ? 1 : local_size;
    dt_gpu_visible(list, NULL, -1, &seen);
    seen.count = lists_parts(list) && seen.count > 1 ? 1 : seen.count;
    count = list != NULL && (count < 0 || seen.count < count) ? seen.count : count;
    return count < 0 || count >= local_size || (o->share_gpu && count > 0) ? 0 : too_few(local_size, count, err);
}

/* Name and index of this rank's device: of several GPUs the one of its number. */
static int choose_device(const struct world *w, const struct world_options *o, const char **name, int *index,
                         struct dt_error *err)
{
    *index = 0;
    *name = world_device_name(o->device);
    if (strcmp(*name, "cuda") != 0) {
        return 0;
    }
    int count = 0;
    if (dt_device_count(*name, &count, err) != 0) {
        gpu_blame(NULL, err);
        return -1;
    }
    *index = w->local_rank;
    if (w->local_rank >= count && !o->share_gpu) {
        (void)too_few(w->local_size, count, err);
        gpu_blame(NULL, err);
        return -1;
    }
    *index %= count;
    return 0;
}

/* Ranks that share a GPU must be meant to. */
static int look_at_gpus(struct world *w, const struct world_options *o, struct dt_error *err)
{
    if (strcmp(w->device->ops->name, "cuda") != 0) {
        w->gpus = (struct gpu_share){.ranks = 1, .share_bytes = INFINITY, .first = -1, .second = -1, .unseen = -1};
        return 0;
    }
    if (gpu_share_look(&w->gpus, w->store, w->page, w->rank, w->size, w->device, err) != 0) {
        return -1;
    }
    return w->gpus.first < 0 || o->share_gpu
               ? 0
               : dt_fail(err, DT_INVALID,
                         "training.device: ranks %d and %d compute on one GPU (bus %s); give each its own "
                         "(CUDA_VISIBLE_DEVICES, --nproc_per_node), or let "
                         "ranks share one with training.share_gpu=true",
                         w->gpus.first, w->gpus.second, w->gpus.bus);
}

/* Can GPUs read each other's memory? Only those of one host that each rank sees. */
static int check_peer(const struct world *w, bool here, struct dt_error *err)
{
    if (!here) {
        return dt_fail(err, DT_INVALID,
                       "training.collectives: peer is for GPUs of one host, and there are %d hosts; use nccl",
                       w->node_count);
    }
    return w->gpus.unseen < 0
               ? 0
               : dt_fail(err, DT_INVALID,
                         "training.collectives: with peer ranks read each other's memory, and rank %d does not see the "
                         "GPU of rank %d; leave out "
                         "--virtual_local_rank, or what else gives each rank a list of its own, or use nccl",
                         w->rank, w->gpus.unseen);
}

static int check_nccl(const struct world *w, bool here, bool deterministic, struct dt_error *err)
{
    if (deterministic) {
        return dt_fail(
            err, DT_INVALID,
            "training.deterministic: NCCL, which GPUs %s use, sums in an order of its own; set it to false, or use %s",
            here ? "with training.collectives=nccl" : "of several hosts",
            here ? "training.collectives=peer" : "GPUs of one host");
    }
    return w->gpus.first < 0 ? 0
                             : dt_fail(err, DT_INVALID,
                                       "training.collectives: nccl needs a GPU for each rank, and ranks %d and %d "
                                       "share one (bus %s); start fewer (--nproc_per_node)%s",
                                       w->gpus.first, w->gpus.second, w->gpus.bus, here ? ", or use peer" : "");
}

/* What GPUs talk by: null where there is nothing to choose. NCCL refuses ranks that share a GPU,
 * and sums in an order of its own. All ranks of a host find the same; of several hosts there is
 * only NCCL, and whoever has none is named when the communicator is opened. */
static int choose_collectives(const struct world *w, const struct world_options *o, const char **backend,
                              struct dt_error *err)
{
    const char *wanted = o->collectives != NULL ? o->collectives : "auto";
    bool here = w->node_count <= 1 && o->host == NULL, shared = w->gpus.first >= 0;
    struct dt_error why;
    *backend = NULL;
    if (w->size == 1 || strcmp(w->device->ops->name, "cuda") != 0) {
        return 0;
    }
    if (strcmp(wanted, "auto") == 0) {
        bool nccl = !here || (!shared && !o->deterministic && dt_nccl_load(&why) != NULL);
        wanted = nccl ? "nccl" : "peer";
        if (!nccl && !shared && !o->deterministic && w->rank == 0) {
            dt_log(DT_LOG_WARN, "train",
                   "%s; %d GPUs of this host read each other's memory instead (training.collectives=peer)", why.text,
                   w->size);
        }
    }
    *backend = wanted;
    return strcmp(wanted, "peer") == 0 ? check_peer(w, here, err) : check_nccl(w, here, o->deterministic, err);
}

/* Device, streams, communicators; rank, sizes, page and store are there. */
static int open_inside(struct world *w, const struct world_options *o, struct dt_error *err)
{
    int sharers = 1; /* ranks that run on our cores; fewer than on this host when the launcher
                      * bound us to some of them */
    if (env_int("DTRUN_CPU_SHARERS", w->local_size, &sharers, err) != 0) {
        return -1;
    }
    sharers = sharers > 0 ? sharers : 1;
    w->threads = o->threads > 0 ? o->threads : world_cores() / sharers;
    if (w->threads < 1) {
        w->threads = 1;
    }
    struct dt_device_options device = {.thread_count = w->threads,
                                       .local_rank_count = sharers,
                                       .attention = o->deterministic ? "own" : o->attention,
                                       .convolution = o->deterministic ? "own" : o->attention,
                                       .tf32 = o->tf32};
    const char *name = NULL;
    if (choose_device(w, o, &name, &device.index, err) != 0) {
        return -1;
    }
    w->device = dt_alloc(sizeof *w->device);
    if (dt_device_open(w->device, name, &device, err) != 0) {
        struct dt_device_place place;
        if (dt_device_place(name, device.index, &place)) {
            gpu_blame(place.bus, err);
        }
        return -1;
    }
    if (dt_stream_open(w->device, 0, &w->compute, err) != 0) {
        return -1;
    }
    w->communication = w->compute;
    if (w->size > 1 && w->device->options.streams == DT_STREAMS_THREAD &&
        dt_stream_open(w->device, 1, &w->communication, err) != 0) {
        w->communication = w->compute;
        return -1;
    }
    w->gpu = gpu_watch_open(w->device, w->page, w->compute);
    if (look_at_gpus(w, o, err) != 0) {
        return -1;
    }
    double timeout_s = o->collective_timeout_s > 0 ? o->collective_timeout_s : FOR_EVER_S;
    struct dt_comm_options comm = {.rank = w->rank,
                                   .size = w->size,
                                   .store = w->store,
                                   .page = w->page,
                                   .device = w->device,
                                   .timeout_s = timeout_s};
    char host[32];
    (void)snprintf(host, sizeof host, "%d", w->node_rank);
    /* what one agent runs is a host */
    comm.host = o->host ? o->host : w->node_count > 1 ? host : NULL;
    comm.sm_limit = o->collective_sms;
    if (choose_collectives(w, o, &comm.backend, err) != 0 || dt_comm_open(&w->comm, &comm, err) != 0) {
        return -1;
    }
    return world_split(w, o->shards, err);
}

/* DTRUN_HOST_OF_RANK, "0(x3),1": the host of each rank. */
static int read_hosts(struct world *w, const char *text, struct dt_error *err)
{
    int ranks = 0, first = 0, count = 0;
    bool uneven = false;
    struct dt_text sizes;
    dt_text_init(&sizes);
    for (const char *p = text; *p != '\0'; count++) {
        int host = 0, n = 1, used = 0;
        if (sscanf(p, "%9d%n", &host, &used) != 1 || host != count) {
            ranks = -1;
            break;
        }
        p += used;
        used = 0;
        if (sscanf(p, "(x%9d)%n", &n, &used) == 1 && used > 0) {
            p += used;
        }
        if (n < 1 || n > w->size - ranks) {
            ranks = -1;
            break;
        }
        first = count == 0 ? n : first;
        uneven = uneven || n != first;
        ranks += n;
        dt_text_printf(&sizes, "%s%d", count > 0 ? "," : "", n);
        p += *p == ',';
    }
    (void)snprintf(w->uneven, sizeof w->uneven, "%s", uneven ? dt_text_str(&sizes) : "");
    dt_text_clear(&sizes);
    return ranks == w->size
               ? 0
               : dt_fail(err, DT_INVALID,
                         "DTRUN_HOST_OF_RANK=%.60s: does not say the hosts of %d ranks; start through dtrun", text,
                         w->size);
}

int world_open(struct world *w, const struct world_options *o, struct dt_error *err)
{
    memset(w, 0, sizeof *w);
    w->page_fd = -1;
    if (dt_page_attach(&w->page, err) != 0 || env_int("WORLD_SIZE", 1, &w->size, err) != 0 ||
        env_int("RANK", 0, &w->rank, err) != 0 || env_int("LOCAL_RANK", 0, &w->local_rank, err) != 0) {
        return -1;
    }
    if (w->size < 1 || w->rank >= w->size) {
        return dt_fail(err, DT_INVALID, "RANK %d, WORLD_SIZE %d: a rank is below the world size; start through dtrun",
                       w->rank, w->size);
    }
    if (env_int("LOCAL_WORLD_SIZE", w->size, &w->local_size, err) != 0 ||
        env_int("GROUP_RANK", 0, &w->node_rank, err) != 0) {
        return -1;
    }
    w->local_size = w->local_size < 1 ? 1 : w->local_size;
    if (env_int("GROUP_WORLD_SIZE", (w->size + w->local_size - 1) / w->local_size, &w->node_count, err) != 0) {
        return -1;
    }
    const char *hosts = getenv("DTRUN_HOST_OF_RANK");
    if (hosts != NULL && w->size > 1 && read_hosts(w, hosts, err) != 0) {
        return -1;
    }
    w->run_id = getenv("TORCHELASTIC_RUN_ID");
    const char *launch = getenv("DTRUN_LAUNCH");
    if (launch != NULL) {
        (void)snprintf(w->launch, sizeof w->launch, "%s", launch);
    } else if (w->size == 1) { /* of more ranks each would have another one */
        dt_text_random(w->launch);
    }
    w->round = (int)w->page->round;
    w->agent = getenv("DTRUN_PAGE") != NULL;
    dt_page_phase(w->page, DT_PHASE_START);
    if (w->size > 1) {
        const char *host = getenv("MASTER_ADDR");
        int port = 0;
        if (env_int("MASTER_PORT", 0, &port, err) != 0) {
            return -1;
        }
        if (!host || port == 0) {
            return dt_fail(err, DT_INVALID, "WORLD_SIZE %d: MASTER_ADDR or MASTER_PORT is not set; start through dtrun",
                           w->size);
        }
        if (dt_store_open(&w->store, host, port, STORE_TIMEOUT_S, w->page, err) != 0) {
            return dt_wrap(err, "rank %d", w->rank);
        }
    }
    if (open_inside(w, o, err) != 0) {
        return -1;
    }
    atomic_store(&w->page->ready_s, dt_now_s());
    return 0;
}

int world_open_thread(struct world *w, const struct world_options *o, struct dt_store *store, int rank, int size,
                      struct dt_error *err)
{
    memset(w, 0, sizeof *w);
    *w = (struct world){.rank = rank,
                        .size = size,
                        .local_rank = rank,
                        .local_size = size,
                        .node_count = 1,
                        .run_id = "test",
                        .page_fd = -1};
    w->store = store;
    if (dt_page_create(&w->page, &w->page_fd, 0, err) != 0) {
        return -1;
    }
    return open_inside(w, o, err);
}

int world_split(struct world *w, int shards, struct dt_error *err)
{
    w->shard = w->gather = w->comm;
    w->gathering = w->communication;
    if (shards <= 0 || shards == w->size) {
        return 0;
    }
    if (w->size % shards != 0) {
        return dt_fail(err, DT_INTERNAL, "world of %d ranks cannot be split into groups of %d", w->size, shards);
    }
    w->shard = w->gather = NULL;
    if (dt_comm_split(w->comm, w->rank / shards, "shard", &w->shard, err) != 0) {
        return -1;
    }
    w->gather = w->shard;
    return dt_comm_split(w->comm, w->rank % shards, "replica", &w->replica, err);
}

int world_separate_gathers(struct world *w, struct dt_error *err)
{
    if (w->shard->size == 1 || world_gathers_separate(w) || !world_may_separate_gathers(w)) {
        return 0;
    }
    struct dt_comm *gather = NULL;
    struct dt_stream *gathering = NULL;
    if (dt_comm_split(w->comm, w->rank / w->shard->size, "gather", &gather, err) != 0) {
        return -1;
    }
    if (dt_stream_open(w->device, 1, &gathering, err) != 0) {
        dt_comm_abort(gather);
        dt_comm_close(gather);
        return -1;
    }
    w->gather = gather;
    w->gathering = gathering;
    return 0;
}

int world_split_again(struct world *w, int ranks, struct dt_error *err)
{
    return w->reshard != NULL ? 0 : dt_comm_split(w->comm, w->rank / ranks, "reshard", &w->reshard, err);
}

int world_open_homes(struct world *w, struct dt_error *err)
{
    if (w->homes_in == NULL && dt_stream_open(w->device, -1, &w->homes_in, err) != 0) {
        return -1;
    }
    return w->homes_out == NULL ? dt_stream_open(w->device, -1, &w->homes_out, err) : 0;
}

bool world_may_separate_gathers(const struct world *w)
{
    return w->communication != w->compute && dt_comm_beside(w->comm);
}

bool world_gathers_separate(const struct world *w)
{
    return w->gathering != w->communication;
}

int world_comms(const struct world *w, struct dt_comm *out[WORLD_COMMS_MAX])
{
    int count = 0;
    struct dt_comm *const all[] = {w->gather != w->shard ? w->gather : NULL, w->shard != w->comm ? w->shard : NULL,
                                   w->reshard, w->replica, w->comm};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i] != NULL) {
            out[count++] = all[i];
        }
    }
    return count;
}

void world_abort(struct world *w)
{
    struct dt_comm *all[WORLD_COMMS_MAX];
    int count = world_comms(w, all);
    for (int i = 0; i < count; i++) {
        dt_comm_abort(all[i]);
    }
}

void world_close(struct world *w)
{
    gpu_watch_close(w->gpu);
    if (w->failed) {
        world_abort(w);
    }
    if (w->gathering && w->gathering != w->communication) {
        dt_stream_close(w->gathering);
    }
    if (w->communication && w->communication != w->compute) {
        dt_stream_close(w->communication);
    }
    dt_stream_close(w->homes_in);
    dt_stream_close(w->homes_out);
    dt_stream_close(w->compute);
    if (w->gather != w->shard) {
        dt_comm_close(w->gather);
    }
    dt_comm_close(w->reshard);
    dt_comm_close(w->replica);
    if (w->shard != w->comm) {
        dt_comm_close(w->shard);
    }
    dt_comm_close(w->comm);
    if (w->device) {
        dt_device_close(w->device);
        free(w->device);
    }
    dt_store_close(w->store);
    if (w->page) {
        dt_page_close(w->page, w->page_fd);
    }
    memset(w, 0, sizeof *w);
}

void world_explain(struct world *w, struct dt_error *err, bool patient)
{
    gpu_watch_explain(w->gpu, err, patient);
}

bool world_tell_cause(struct world *w, const struct dt_error *why)
{
    if (w->page == NULL) {
        return false;
    }
    dt_page_set_cause(w->page, why);
    return w->agent && atomic_load(&w->page->order) != DT_ORDER_STOP;
}
