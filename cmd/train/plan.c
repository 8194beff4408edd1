#include "cmd/train/plan.h"

#include "base/scan.h"
#include "worker/engine/gpu_blame.h"
#include "worker/job/folder.h"
#include "worker/run/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int train_env_number(const char *name, int fallback)
{
    long long value;
    const char *text = getenv(name);
    return text && dt_parse_int64(text, &value) && value >= 1 && value <= 1 << 20 ? (int)value : fallback;
}

int train_find_room(const struct job *job, int ranks, bool prints, struct train_room *out, struct dt_error *err)
{
    int local = train_env_number("LOCAL_WORLD_SIZE", ranks);
    *out = (struct train_room){.ranks = ranks, .local_size = local > ranks ? ranks : local, .device = "cpu"};
    struct world_options wishes = {.device = job->training.device, .share_gpu = job->training.share_gpu};
    /* who looks at a plan by hand may do so elsewhere */
    int here = getenv("LOCAL_WORLD_SIZE") != NULL ? out->local_size : 0;
    if (precision_device(job, &wishes.device, err) != 0 ||
        world_check_device(&wishes, prints ? here : 0, &out->device, err) != 0) {
        return -1;
    }
    out->on_gpu = strcmp(out->device, "cuda") == 0;
    out->device_bytes = out->on_gpu ? gpu_most_total() : 0;
    out->type = strcmp(out->device, "twin64") == 0 ? DT_F64 : DT_F32;
    return 0;
}

double train_device_bytes(const struct train_room *room)
{
    return !room->on_gpu ? 0 : room->device_bytes > 0 ? room->device_bytes : INFINITY;
}

int train_plan(const struct job *job, const struct train_plan *o, struct dt_error *err)
{
    bool print = o->prints;
    struct train_room room;
    struct trainer t;
    struct dt_text text;
    if (train_find_room(job, o->ranks, print, &room, err) != 0) {
        return -1;
    }
    int local = room.local_size;
    dt_text_init(&text);
    int rc = trainer_prepare(&t, job, 0, room.ranks, local, room.type, train_device_bytes(&room), err);
    rc = rc == 0 && !o->evaluates ? trainer_plan_samples(&t, err) : rc;
    if (rc == 0) {
        trainer_plan_saves(&t);
        trainer_plan_snapshots(&t);
    }
    if (rc == 0) {
        if (print) {
            trainer_print_plan(&t, room.device, local, o->json, &text);
            fputs(dt_text_str(&text), stdout);
            if (job->idle_keys != NULL && !o->json) {
                printf("\nno effect    %s\n", job->idle_keys);
            }
        }
        rc = room.on_gpu
                 ? trainer_check_total(&t, room.device_bytes, local, err)
                 : trainer_check_memory(&t, NULL, print ? local : 1, err); /* as a rank, the others' memory may be taken
                                                                            * already */
    }
    if (o->evaluates) { /* writes nothing, and begins with what it is given */
        dt_text_clear(&text);
        trainer_close(&t);
        return rc;
    }
    const struct job_checkpointing *saves = &job->checkpointing;
    bool anew = job->fresh || (saves->resume != NULL && strcmp(saves->resume, "never") == 0);
    if (rc == 0 && (folder_check("output_dir", job->output_dir, err) != 0 ||
                    folder_check("checkpointing.checkpoint_dir", saves->checkpoint_dir, err) != 0 ||
                    folder_check_names(job->output_dir, saves->checkpoint_dir, anew, err) != 0)) {
        rc = -1;
    }
    /* who asks for the plan of a running job is told it */
    bool starts = !print || getenv("TORCHELASTIC_RUN_ID") != NULL;
    rc = rc == 0 && starts ? trainer_check_free(job, err) : rc;
    rc = rc == 0 ? trainer_check_folder(&t, err) : rc;
    rc = rc == 0 && !job->evaluates && !job->elsewhere ? trainer_check_limit(&t, err) : rc;
    if (rc == 0 && print && !o->json && t.run.step > 0) {
        printf("\ngoes on    from step %lld to step %lld\n", (long long)t.run.step, (long long)t.run.total_steps);
    }
    dt_text_clear(&text);
    trainer_close_samples(&t);
    trainer_close(&t);
    return rc;
}
