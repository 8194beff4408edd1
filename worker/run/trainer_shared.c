/* Have all ranks the same job? Do all hosts see one folder of checkpoints, and the same data? Rank 0 puts a file with a name
 * that nobody can guess there, and the others look for it: slices that lie in another folder of
 * the same name would be missing from every checkpoint. With the name it sends hashes of its
 * data. Ranks on one host are not asked for the folder. */
#include "worker/run/trainer.h"

#include "base/clock.h"
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define SEEN_S 5.0 /* a file server may show late what another host has made */
#define LOOK_S 0.05
#define MARK ".seen-from-all-hosts-"
#define JOB_KEY "train/job"
#define JOB_TEXT_KEY JOB_KEY "/text"
#define DATA_BYTES 33 /* two hashes in hexadecimal digits */

/* Where the mark lies: in the folder of checkpoints if there is one, otherwise beside it. The
 * caller frees. */
static char *place_of(const char *dir, bool inside)
{
    char *place = dt_strdup(dir);
    if (!inside) {
        dt_file_strip(place);
    }
    return place;
}

/* What a rank 0 that was killed has left. */
static void remove_marks(const char *place)
{
    DIR *d = opendir(place);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        if (strncmp(e->d_name, MARK, strlen(MARK)) == 0) {
            (void)unlinkat(dirfd(d), e->d_name, 0);
        }
    }
    if (d != NULL) {
        (void)closedir(d);
    }
}

/* What data.train and data.val hold here. */
static void hash_data(const struct trainer *t, char out[DATA_BYTES])
{
    uint64_t val = 0;
    for (int i = 0; i < t->feeds.val_count; i++) {
        val = val * 31 + data_content(&t->feeds.val[i].data);
    }
    (void)snprintf(out, DATA_BYTES, "%016llx%016llx", (unsigned long long)data_content(&t->feeds.train),
                   (unsigned long long)val);
}

/* Rank 0: makes the mark, and says "in NAME HOST DATA" or "by NAME HOST DATA". Nothing when
 * there can be no file: whatever is written next says why. */
static char *make_mark(const char *dir, const char *data, struct dt_text *out)
{
    bool inside = dt_file_exists(dir);
    char random[33], host[256] = "", *place = place_of(dir, inside);
    dt_text_random(random);
    (void)gethostname(host, sizeof host - 1);
    char *path = dt_format("%s/" MARK "%s", place, random);
    remove_marks(place);
    int fd = dt_file_create(path, NULL);
    if (fd >= 0 && close(fd) == 0 && dt_file_sync_dir(place, NULL) == 0) {
        dt_text_printf(out, "%s " MARK "%s %s %s", inside ? "in" : "by", random, host, data);
    }
    free(place);
    return path;
}

/* Opened, not listed: a file server is asked about a name that it has not been asked about
 * before. What is there and cannot be opened is there. */
static bool sees(struct trainer *t, const char *place, const char *name)
{
    char *path = dt_format("%s/%s", place, name);
    bool seen = false;
    for (double until_s = dt_now_s() + SEEN_S;;) {
        int folder = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC),
            fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        seen = fd >= 0 || (errno != ENOENT && errno != ENOTDIR && errno != ESTALE);
        if (fd >= 0) {
            (void)close(fd);
        }
        if (folder >= 0) {
            (void)close(folder);
        }
        if (seen || dt_now_s() > until_s) {
            break;
        }
        dt_page_pulse(t->world->page);
        dt_sleep_s(LOOK_S);
    }
    free(path);
    return seen;
}

/* Is it a name that make_mark gives, and so no path? */
static bool is_mark(const char *name)
{
    size_t size = strlen(MARK);
    return strncmp(name, MARK, size) == 0 && strlen(name) == size + 32 && strspn(name + size, "0123456789abcdef") == 32;
}

/* Any other rank: "ok", or the error. */
static void look(struct trainer *t, const char *said, struct dt_text *out)
{
    const struct job *job = t->job;
    const char *dir = job->checkpointing.checkpoint_dir;
    char kind[3], name[64], there[256] = "?", here[256] = "?", theirs[DATA_BYTES] = "", ours[DATA_BYTES];
    struct dt_error why;
    if (said[0] == '\0') {
        dt_text_puts(out, "ok");
        return;
    }
    if (sscanf(said, "%2s %63s %255s %32s", kind, name, there, theirs) < 4 || !is_mark(name)) {
        (void)dt_fail(&why, DT_INTERNAL, "the store's train/shared names no mark of rank 0: %.100s", said);
        trainer_tell_failure(out, &why);
        return;
    }
    hash_data(t, ours);
    (void)gethostname(here, sizeof here - 1);
    char *place = place_of(dir, strcmp(kind, "in") == 0);
    if (strcmp(ours, theirs) != 0) {
        bool train = strncmp(ours, theirs, DATA_BYTES / 2) != 0;
        (void)dt_fail(
            &why, DT_USAGE,
            "data.%s: %s holds other data on host %s (rank %d) than on host %s (rank 0); give all hosts the same files",
            train ? "train" : "val",
            train                      ? job->data.train.words
            : job->data.val.count == 0 ? "none"
            : job->data.val.count == 1 ? job->data.val.of[0].from.words
                                       : "one of its sets",
            here, t->rank, there);
        trainer_tell_failure(out, &why);
    } else if (sees(t, place, name)) {
        dt_text_puts(out, "ok");
    } else {
        bool below = strncmp(dir, job->output_dir, strlen(job->output_dir)) == 0;
        (void)dt_fail(&why, DT_USAGE,
                      "%s: %s is another folder on host %s (rank %d) than on host %s (rank 0); it must be shared "
                      "between the hosts",
                      below ? "output_dir" : "checkpointing.checkpoint_dir", below ? job->output_dir : dir, here,
                      t->rank, there);
        trainer_tell_failure(out, &why);
    }
    free(place);
}

int trainer_check_shared(struct trainer *t, bool *failed, struct dt_error *why, struct dt_error *err)
{
    if (t->world->node_count <= 1 || t->size == 1) {
        return 0;
    }
    struct dt_text said, word;
    dt_text_init(&said);
    dt_text_init(&word);
    char key[64], data[DATA_BYTES];
    hash_data(t, data);
    char *mark = t->rank == 0 && !*failed ? make_mark(t->job->checkpointing.checkpoint_dir, data, &said) : NULL;
    int rc = trainer_share(t, "train/shared", &said, NULL, INFINITY, err), who = 0;
    if (rc == 0 && t->rank > 0) {
        look(t, dt_text_str(&said), &word);
        snprintf(key, sizeof key, "train/shared/%d", t->rank);
        rc = dt_store_set(t->world->store, key, dt_text_str(&word), word.size, err);
    } else if (rc == 0 && said.size > 0) {
        dt_text_puts(&word, "ok");
        *failed = trainer_hear_all(t, "train/shared", &word, &who, why) != 0;
    }
    if (mark != NULL) {
        (void)unlink(mark);
    }
    free(mark);
    dt_text_clear(&word);
    dt_text_clear(&said);
    return rc;
}

/* ---- the job ---- */

/* Describes this rank in three words, of which none holds a space: VERSION HASH-OF-THE-JOB DATA. */
static void describe_job(const struct trainer *t, struct dt_text *out)
{
    char data[DATA_BYTES];
    hash_data(t, data);
    dt_text_printf(out, "%s %016llx %s", DT_VERSION,
                   (unsigned long long)XXH3_64bits(t->job->text, strlen(t->job->text)), data);
}

/* Any other rank whose description differs from that of rank 0. What differs may be of the host alone. */
static int compare_jobs(struct trainer *t, const char *said, const char *job, struct dt_error *err)
{
    char version[64] = "", hash[17] = "", theirs[DATA_BYTES] = "", ours[DATA_BYTES];
    struct dt_text apart;
    hash_data(t, ours);
    if (sscanf(said, "%63s %16s %32s", version, hash, theirs) != 3) {
        return dt_fail(err, DT_INTERNAL, "the store's " JOB_KEY " says: %.100s", said);
    }
    if (strcmp(version, DT_VERSION) != 0) {
        return dt_fail(err, DT_USAGE, "is train %s, and rank 0 is train %s; start all ranks with one program",
                       DT_VERSION, version);
    }
    dt_text_init(&apart);
    int rc = 0;
    if (job_apart(t->job->text, job, &apart)) {
        rc = dt_fail(err, DT_USAGE, "the job is not that of rank 0: %s; give all ranks the same job",
                     dt_text_str(&apart));
    } else if (strcmp(ours, theirs) != 0 && t->world->node_count <= 1) { /* hosts have words of their own */
        bool train = strncmp(ours, theirs, DATA_BYTES / 2) != 0;
        rc = dt_fail(err, DT_USAGE, "data.%s: holds other data than on rank 0; give all ranks the same files",
                     train ? "train" : "val");
    }
    dt_text_clear(&apart);
    return rc;
}

/* Any other rank: "ok", or the error. */
static int look_at_job(struct trainer *t, const char *said, const char *own, struct dt_text *word, struct dt_error *err)
{
    struct dt_text job;
    struct dt_error why;
    int rc = 0;
    dt_text_init(&job);
    bool same = strcmp(said, own) == 0;
    if (!same) { /* the text is read by those who need it */
        rc = trainer_share(t, JOB_TEXT_KEY, &job, NULL, INFINITY, err);
    }
    if (rc == 0 && !same && compare_jobs(t, said, dt_text_str(&job), &why) != 0) {
        trainer_tell_failure(word, &why);
    } else {
        dt_text_puts(word, "ok");
    }
    dt_text_clear(&job);
    return rc;
}

int trainer_check_jobs(struct trainer *t, struct dt_error *err)
{
    if (t->size == 1 || t->job->text == NULL) { /* of no file, in tests */
        return 0;
    }
    struct dt_text said, own, word, job;
    struct dt_error why;
    char key[64];
    bool refused = false;
    int rc = 0, who = 0;
    dt_text_init(&said);
    dt_text_init(&own);
    dt_text_init(&word);
    dt_text_init(&job);
    describe_job(t, &own);
    dt_text_puts(&said, dt_text_str(&own));
    if (t->rank == 0) {
        dt_text_puts(&job, t->job->text);
        rc = trainer_share(t, JOB_TEXT_KEY, &job, NULL, INFINITY, err);
    }
    rc = rc == 0 ? trainer_share(t, JOB_KEY, &said, NULL, INFINITY, err) : rc;
    if (rc == 0 && t->rank > 0) {
        rc = look_at_job(t, dt_text_str(&said), dt_text_str(&own), &word, err);
        (void)snprintf(key, sizeof key, JOB_KEY "/%d", t->rank);
        rc = rc == 0 ? dt_store_set(t->world->store, key, dt_text_str(&word), word.size, err) : rc;
    } else if (rc == 0) {
        dt_text_puts(&word, "ok");
        refused = trainer_hear_all(t, JOB_KEY, &word, &who, &why) != 0;
        if (refused) {
            trainer_say_for(t, who, &why);
        }
    }
    rc = rc == 0 ? trainer_share(t, JOB_KEY "/verdict", &word, refused ? &why : NULL, INFINITY, err) : rc;
    dt_text_clear(&job);
    dt_text_clear(&word);
    dt_text_clear(&own);
    dt_text_clear(&said);
    return rc;
}
