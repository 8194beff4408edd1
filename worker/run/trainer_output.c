/* The run's part of the disk: room for checkpoints, the exported model, the output folder. */
#include "worker/run/trainer.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/size.h"
#include "worker/checkpoints/checkpoint_export.h"
#include "worker/checkpoints/course.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

/* ---- room on the disk ---- */

double trainer_checkpoint_bytes(const struct trainer *t)
{
    double header = 256, sums = 24.0 / (1 << 20); /* per slice in header and manifest; per byte
                                                   * in the manifest */
    double data = 0, slices = 0;
    for (int i = 0; i < t->chain.tensor_count; i++) {
        if (t->chain.tensors[i].unit < 0) {
            continue;
        }
        int each = 1 + optimizer_group_of(&t->optimizer, &t->chain.tensors[i])->states;
        data += (double)each * sizeof(float) * (double)t->chain.tensors[i].numel;
        slices += each;
    }
    data += sizeof(float) * hook_saved_elements(&t->strategy);
    return data * (1 + sums) + header * slices * (t->shards > 1 ? 2 : 1) + 4096.0 * t->size;
}

/* Days of work may lie in what is set aside, so it stays; each start says what that costs and
 * how to be rid of it. */
static double say_aside(struct trainer *t)
{
    struct dt_text remove;
    double bytes;
    char text[32];
    dt_text_init(&remove);
    char *model = dt_format("%s/model", t->job->output_dir);
    int count = course_aside(t->job->checkpointing.checkpoint_dir, model, &bytes, &remove);
    free(model);
    if (count > 0 && t->world->round <= 1) {
        observers_say(
            &t->observers,
            "train: %s: %d folder%s of earlier courses %s set aside and take%s %s; what you do not need goes with: %s",
            t->job->checkpointing.checkpoint_dir, count, count == 1 ? "" : "s", count == 1 ? "is" : "are",
            count == 1 ? "s" : "", dt_text_bytes(bytes, text, sizeof text), dt_text_str(&remove));
    }
    dt_text_clear(&remove);
    return bytes;
}

void trainer_check_disk(struct trainer *t)
{
    const struct job_checkpointing *job = &t->job->checkpointing;
    if (t->rank != 0) {
        return;
    }
    double aside_bytes = say_aside(t);
    int64_t left = t->run.total_steps - t->run.step, every = trainer_save_interval(t),
            saves = every > 0 ? (left + every - 1) / every : left > 0;
    int64_t *steps = NULL;
    int there = 0;
    double free_bytes = dt_file_free_bytes(job->checkpoint_dir);
    /* nobody knows how many there will be before a time is over */
    bool by_clock = job->save_every_n_seconds > 0,
         timed = (t->job->training.max_time_s > 0 || by_clock) && job->keep_last_n == 0;
    saves = by_clock ? left : saves;
    if (saves <= 0 || free_bytes < 0 || timed || checkpoint_steps(job->checkpoint_dir, &steps, &there, NULL) != 0) {
        return;
    }
    int whole = 0;
    for (int i = 0; i < there; i++) {
        char *path = checkpoint_path(job->checkpoint_dir, steps[i]);
        whole += checkpoint_looks_whole(path);
        free(path);
    }
    free(steps);
    if (job->keep_last_n > 0) { /* the new one is complete before the oldest goes */
        int64_t more = job->keep_last_n + 1 - whole;
        saves = saves < more ? saves : more;
        saves = saves > 1 ? saves : 1;
    }
    double one = trainer_checkpoint_bytes(t), need = one * (double)saves;
    char one_text[32], need_text[32], free_text[32], aside_text[32], aside[64] = "";
    if (aside_bytes > 0) {
        (void)snprintf(aside, sizeof aside, " (%s set aside)",
                       dt_text_bytes(aside_bytes, aside_text, sizeof aside_text));
    }
    if (need > free_bytes) {
        observers_say(&t->observers,
                      "train: warning: %s: %s free%s, but %lld more checkpoint%s of %s need%s %s; make room, or lower "
                      "checkpointing.keep_last_n",
                      job->checkpoint_dir, dt_text_bytes(free_bytes, free_text, sizeof free_text), aside,
                      (long long)saves, saves == 1 ? "" : "s", dt_text_bytes(one, one_text, sizeof one_text),
                      saves == 1 ? "s" : "", dt_text_bytes(need, need_text, sizeof need_text));
    }
}

int trainer_export(struct trainer *t, struct dt_error *err)
{
    struct export_options options = export_defaults; /* the job's words have been checked */
    (void)export_parse_type(t->job->export.dtype, &options.type);
    (void)dt_parse_bytes(t->job->export.max_shard_size, &options.shard_bytes);
    char *folder = dt_format("%s/model", t->job->output_dir);
    struct checkpoint *c = NULL;
    struct dt_text notes;
    dt_text_init(&notes);
    int64_t best = t->job->checkpointing.load_best ? best_first(&t->run.best, t->job->checkpointing.mode) : -1;
    char *path = best >= 0 ? checkpoint_path(t->job->checkpointing.checkpoint_dir, best) : NULL;
    bool whole = path != NULL && checkpoint_looks_whole(path);
    if (best >= 0 && !whole) {
        observers_say(&t->observers, "train: %s: the best checkpoint is gone; the model is that of %s", path,
                      t->saver.saved_path);
    }
    if (!whole) {
        free(path);
        path = dt_strdup(t->saver.saved_path);
    }
    int rc = checkpoint_open(&c, path, err);
    if (rc == 0) {
        checkpoint_progress(c, trainer_pulse, t->world->page);
        if (t->run.finished_before && checkpoint_is_exported(c, folder, options.type)) {
            goto out;
        }
        rc = checkpoint_export(c, folder, &options, &notes, err);
    }
    if (rc == 0 && notes.size > 0) {
        observers_say(&t->observers, "train: %s", dt_text_str(&notes));
    }
    if (rc == 0) {
        observers_event(&t->observers, "export", "");
    } else if (trainer_disk_refused(err)) { /* nothing is lost, and another round would find the
                                             * same disk */
        (void)dt_wrap(err, "the model is not exported (%s is complete; dtckpt export writes it where there is room)",
                      path);
        err->status = DT_INVALID;
    } else {
        (void)dt_wrap(err, "export of the model");
    }
out:
    dt_text_clear(&notes);
    checkpoint_close(c);
    free(path);
    free(folder);
    return rc;
}

/* ---- the output folder ---- */

static void write_env(const struct trainer *t, struct dt_text *out)
{
    char host[256] = "", when[32];
    (void)gethostname(host, sizeof host - 1);
    dt_wall_text(dt_wall_s(), when, sizeof when);
    const char *text = t->job->text ? t->job->text : "";
    dt_text_printf(out, "{\n  \"version\": \"%s\",\n  \"time\": \"%s\",\n  \"host\": ", DT_VERSION, when);
    dt_text_json(out, host, strlen(host));
    dt_text_printf(out,
                   ",\n  \"ranks\": %d,\n  \"nodes\": %d,\n  \"round\": %d,\n  \"device\": \"%s\",\n  \"kernels\": "
                   "\"%s\",\n  \"threads\": %d,\n",
                   t->size, t->world->node_count, t->world->round, t->world->device->ops->name,
                   t->world->device->kernels->name, t->world->threads);
    dt_text_printf(out, "  \"job_hash\": \"%016llx\",\n  \"data_hash\": \"%016llx\"\n}\n",
                   (unsigned long long)XXH3_64bits(text, strlen(text)), (unsigned long long)t->feeds.train.hash);
}

int trainer_write_folder(struct trainer *t, struct dt_error *err)
{
    if (t->rank != 0) {
        return 0;
    }
    const char *dir = t->job->output_dir;
    char *logs = dt_format("%s/logs", dir), *job = dt_format("%s/job.json", dir), *env = dt_format("%s/env.json", dir);
    struct dt_text text;
    dt_text_init(&text);
    bool stays = t->run.finished_before && dt_file_exists(job);
    int rc = dt_file_mkdirs(logs, err);
    static const char *const names[] = {"job.json", "env.json", "metrics.jsonl", NULL};
    dt_file_remove_cut(dir, names);
    if (rc == 0 && !stays && t->job->text) {
        rc = dt_file_write(job, t->job->text, strlen(t->job->text), err);
    }
    write_env(t, &text);
    if (rc == 0 && !stays) {
        rc = dt_file_write(env, text.data, text.size, err);
    }
    dt_text_clear(&text);
    free(logs);
    free(job);
    free(env);
    return rc == 0 ? 0 : dt_wrap(err, "output_dir");
}
