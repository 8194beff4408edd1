/* What ranks find out about each other's NCCL before they use it: hosts are not always alike.
 * NCCL refuses ranks of two versions itself, after all have connected and with a line that names
 * no host; here it is said before. */
#include "collectives/backends.h"
#include "collectives/nccl.h"
#include "collectives/shm.h"

#include "base/log.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fact { /* what a rank finds */
    int32_t version, status;
    uint32_t features;
    char number[32], path[200], host[64], why[264];
};

/* Not by default: such gathers wait for each other by memory operations of the streams, which no
 * abort ends; a rank that dies before its gather would leave the streams of the others waiting
 * for good. */
static bool wants_zero_ctas(void)
{
    const char *text = getenv("DTRUN_NCCL_ZERO_CTA");
    return text != NULL && strcmp(text, "1") == 0;
}

static void find(struct nccl *n, struct fact *out)
{
    struct dt_error why = {0};
    memset(out, 0, sizeof *out);
    n->lib = dt_nccl_load(&why);
    out->status = (int32_t)why.status;
    (void)snprintf(out->why, sizeof out->why, "%s", why.text);
    (void)gethostname(out->host, sizeof out->host - 1);
    if (n->lib != NULL) {
        out->version = n->lib->version;
        out->features = dt_nccl_features(n->lib) & ~(wants_zero_ctas() ? 0U : DT_NCCL_ZERO_CTAS);
        (void)snprintf(out->number, sizeof out->number, "%s", n->lib->number);
        (void)snprintf(out->path, sizeof out->path, "%s", n->lib->path);
    }
}

/* What came over the network ends somewhere. */
static void end_texts(struct fact *x)
{
    x->number[sizeof x->number - 1] = x->path[sizeof x->path - 1] = x->host[sizeof x->host - 1] =
        x->why[sizeof x->why - 1] = '\0';
}

/* " on host b"; "" where all ranks are on one. */
static const char *on_host(const struct dt_comm *c, const struct fact *x, char out[80])
{
    (void)snprintf(out, 80, "%s%s", c->ops == &dt_comm_nccl_hosts ? " on host " : "",
                   c->ops == &dt_comm_nccl_hosts ? x->host : "");
    return out;
}

void nccl_heard(const struct dt_comm *c, int rank, struct dt_error *err)
{
    if (rank != c->rank) {
        (void)dt_blame_heard(err, &(struct dt_blame){0}, dt_comm_job_rank(c, rank), -1);
    }
}

static int compare_versions(const struct dt_comm *c, const struct fact *all, struct dt_error *err)
{
    char first[80], other[80];
    for (int r = 0; r < c->size; r++) {
        if (all[r].version == 0) {
            (void)dt_fail(err, dt_status_of(all[r].status), "rank %d%s: %s", shm_shown(c, r),
                          on_host(c, &all[r], other), all[r].why);
            nccl_heard(c, r, err);
            return -1;
        }
    }
    for (int r = 1; r < c->size; r++) {
        if (all[r].version != all[0].version) {
            return dt_fail(
                err, DT_INVALID,
                "rank %d%s has NCCL %s (%.100s), rank %d%s %s (%.100s); install the same version on all hosts",
                shm_shown(c, 0), on_host(c, &all[0], first), all[0].number, all[0].path, shm_shown(c, r),
                on_host(c, &all[r], other), all[r].number, all[r].path);
        }
    }
    return 0;
}

/* Libraries of one version may still differ: one that somebody built with less. What a rank
 * lacks nobody may call, since the others would wait for it there. */
static void agree_on_features(struct dt_comm *c, const struct fact *all)
{
    struct nccl *n = c->state;
    int poor = 0;
    unsigned any = 0;
    n->features = c->parent != NULL ? ((const struct nccl *)c->parent->state)->features : all[0].features;
    for (int r = 0; r < c->size; r++) {
        any |= all[r].features;
        n->features &= all[r].features;
    }
    /* what all ask for is between windows */
    n->features |= (n->features & DT_NCCL_ZERO_CTAS) != 0 ? DT_NCCL_WINDOWS : 0;
    /* the others were not wanted everywhere */
    unsigned missing = any & ~n->features & (DT_NCCL_SPLIT | DT_NCCL_WINDOWS);
    /* in a group all may have what a rank outside of it lacks */
    if (missing == 0 || c->rank != 0 || c->parent != NULL) {
        return;
    }
    while ((all[poor].features & missing) == missing) {
        poor++;
    }
    static const char *const names[] = {"", "ncclCommSplit", "symmetric windows",
                                        "ncclCommSplit and no symmetric windows"};
    char host[80];
    dt_log(DT_LOG_WARN, "comm",
           "%s: NCCL %s of rank %d%s (%.100s) has no %s, that of another rank has; no rank uses it", c->name,
           all[poor].number, shm_shown(c, poor), on_host(c, &all[poor], host), all[poor].path,
           names[missing & ~all[poor].features]);
}

int nccl_agree(struct dt_comm *c, struct dt_error *err)
{
    struct fact mine, *all = dt_alloc((size_t)c->size * sizeof *all);
    find(c->state, &mine);
    int rc = nccl_hosts_run(c, DT_ALL_GATHER, "NCCL's version", &mine, all, sizeof mine, err);
    for (int r = 0; r < c->size; r++) {
        end_texts(&all[r]);
    }
    rc = rc == 0 ? compare_versions(c, all, err) : rc;
    if (rc == 0) {
        agree_on_features(c, all);
    }
    free(all);
    return rc;
}
