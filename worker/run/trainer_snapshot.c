/* Snapshots (checkpointing.snapshot_every_n_steps): copies of the state in memory of the agents, from which the
 * next round goes on when a worker has died. Which one is up to trainer_peers.c. */
#include "worker/run/trainer.h"

#include "base/clock.h"
#include "base/snapshots.h"
#include "worker/checkpoints/snapshot.h"
#include "worker/run/trainer_save.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes that the memory of the snapshots of this host's workers takes already. */
static double held_bytes(void)
{
    struct stat st;
    int workers, fd = dt_snapshots_attach(&workers, NULL);
    double bytes = fd >= 0 && fstat(fd, &st) == 0 ? (double)st.st_blocks * 512 : 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    return bytes;
}

void trainer_plan_snapshots(struct trainer *t)
{
    struct save_slices all;
    double bytes = 0;
    if (t->job->checkpointing.snapshot_every_n_steps == 0 || t->job->evaluates) {
        return;
    }
    save_list_slices(t, SAVE_SNAPSHOT, NULL, &all);
    for (int i = 0; i < all.count; i++) {
        bytes += 2.0 * sizeof(float) * (double)all.slice[i].count;
    }
    save_free_slices(&all);
    double held = held_bytes() / t->local_size; /* of the round before */
    t->memory.snapshot_bytes = bytes > held ? bytes - held : 0;
}

void trainer_open_snapshots(struct trainer *t)
{
    struct dt_error why;
    if (t->job->checkpointing.snapshot_every_n_steps == 0 || !t->world->agent ||
        snapshots_open(&t->saver.snapshots, t->local_rank, t->world->launch, &why) == 0) {
        return;
    }
    if (why.status != DT_NOT_FOUND) {
        observers_say(&t->observers, "train: warning: no snapshots: %s", why.text);
    } else if (t->world->round <= 1) {
        observers_say(&t->observers,
                      "train: checkpointing.snapshot_every_n_steps: dtrun has no memory for them (see ulimit -f): no "
                      "snapshots, a lost worker goes on from a checkpoint");
    }
}

void trainer_close_snapshots(struct trainer *t)
{
    checkpoint_close(t->saver.opened);
    t->saver.opened = NULL;
    snapshots_close(t->saver.snapshots);
    t->saver.snapshots = NULL;
}

bool trainer_snapshot_falls_on(const struct trainer *t, int64_t step)
{
    int64_t interval = t->job->checkpointing.snapshot_every_n_steps;
    return t->world->agent && !t->job->evaluates && interval > 0 && step % interval == 0 && step < t->run.total_steps;
}

int trainer_snapshot(struct trainer *t, struct dt_error *err)
{
    double begin_s = dt_now_s();
    if (t->world->node_count > 1 && t->job->training.broadcast_buffers) {
        /* Each host keeps them, and those of rank 0 are the run's; the next step would send them all the same. */
        strategy_send_buffers(&t->strategy, t->stepper.walk.buffers, t->chain.buffer_count);
    }
    if (t->world->node_count > 1) {
        /* No host keeps a step that rank 0 has not reported: were rank 0 lost before, the run would go on behind it. */
        strategy_barrier(&t->strategy, "snapshot");
    }
    if (trainer_settle(t, "snapshot", err) != 0) {
        return -1; /* a peer is gone: what there is stays good */
    }
    if (t->saver.snapshots == NULL) { /* this rank's failed before; the others do as if it had one */
        return 0;
    }
    atomic_store(&t->world->page->begun_step, t->run.step);
    if (save_snapshot(t, err) == 0) {
        atomic_store(&t->world->page->snapshot_step, t->run.step);
        observers_note(&t->observers, "train: snapshot of step %lld in %.4f s", (long long)t->run.step,
                       dt_now_s() - begin_s);
        return 0;
    }
    if (t->lost) {
        return -1;
    }
    /* what this rank has is older than what others will have, so nobody goes on from it */
    observers_say(&t->observers, "train: warning: %s; %s", err->text,
                  t->world->node_count > 1
                      ? "this host has no more snapshots: a lost worker goes on from those of other hosts where they "
                        "have all of it, otherwise from a checkpoint"
                      : "there are no more snapshots, and a lost worker goes on from a checkpoint");
    atomic_store(&t->world->page->snapshot_step, -1);
    snapshots_keep(t->saver.snapshots, NULL);
    trainer_close_snapshots(t);
    return 0;
}
