/* Writes checkpoints, and finds the newest complete one. The order of system calls matters: slices
 * and their folder are synced before the manifest, the manifest before the rename, and the rename
 * before older checkpoints are removed. */
#include "worker/checkpoints/checkpoint.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "worker/checkpoints/course.h"
#include "worker/checkpoints/manifest.h"
#include "worker/data/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* the run id comes from the environment: up to 128 KiB before its escapes */
#define OWNER_MAX_BYTES (4 << 20)

#define TAKEN "-taken-by-"
#define GONE ".tmp-gone-" /* in the name of a folder that is being removed */
#define LOCK_S 60.0       /* claim and commit take far less */
#define SEEN_S 5.0        /* a file server may show a file late that another host has written */
/* If a rank of an older round keeps the lock for so long, its host is frozen. */
#define FROZEN_S 3.0

static char *temporary_path(const char *dir, const struct checkpoint_state *state)
{
    /* with the launch in its name, since round 1 of an earlier launch may still write its slices */
    bool named = state->launch != NULL && state->launch[0] != '\0';
    return dt_format("%s/step-%08" PRId64 ".tmp-%d%s%s", dir, state->step, state->round, named ? "-" : "",
                     named ? state->launch : "");
}

char *checkpoint_path(const char *dir, int64_t step)
{
    return dt_format("%s/step-%08" PRId64, dir, step);
}

_Static_assert((size_t)CHECKPOINT_PIECE * sizeof(float) % MANIFEST_BLOCK_BYTES == 0, "a piece ends with a block");

/* Writes one slice piece by piece (from host memory as one piece). sums: the checksums of its
 * blocks. */
static int write_slice(struct st_writer *writer, const struct checkpoint_slice *s, uint64_t *sums, struct dt_error *err)
{
    int64_t most = s->reader != NULL ? CHECKPOINT_PIECE : s->count;
    for (int64_t done = 0, n; done < s->count; done += n) {
        const float *piece = s->data;
        n = s->count - done < most ? s->count - done : most;
        if ((s->reader != NULL && s->reader->read(s->reader->context, s->data, done, n, &piece, err) != 0) ||
            st_writer_data(writer, piece, (size_t)n * sizeof *piece, err) != 0) {
            return -1;
        }
        size_t left = (size_t)n * sizeof *piece;
        for (const char *p = (const char *)piece; left > 0;) {
            size_t size = left < MANIFEST_BLOCK_BYTES ? left : MANIFEST_BLOCK_BYTES;
            *sums++ = manifest_sum(p, size);
            p += size;
            left -= size;
        }
    }
    return 0;
}

/* Writes the slices as the file `path`, or into fd from where it stands (otherwise -1). */
static int write_all(const char *path, int fd, const struct checkpoint_slice *slices, int slice_count, uint64_t **sums,
                     struct dt_error *err)
{
    struct st_entry *entries = dt_alloc((size_t)(slice_count + 1) * sizeof *entries);
    struct dt_arena arena;
    dt_arena_init(&arena);
    struct st_writer *writer = NULL;
    int64_t blocks = 0, at = 0;
    for (int i = 0; i < slice_count; i++) {
        blocks += manifest_block_count(slices[i].count);
    }
    *sums = dt_alloc((size_t)(blocks + 1) * sizeof **sums);
    for (int i = 0; i < slice_count; i++) {
        char *name = dt_arena_alloc(&arena, strlen(slices[i].name) + 64);
        manifest_slice_name(name, strlen(slices[i].name) + 64, slices[i].purpose, slices[i].name, slices[i].first);
        entries[i] = (struct st_entry){.name = name, .type = DT_F32, .dims = 1, .shape = &slices[i].count};
    }
    int rc = st_writer_open_fd(&writer, fd, path, entries, slice_count, NULL, err);
    bool open = rc == 0;
    for (int i = 0; i < slice_count && rc == 0; i++) {
        rc = write_slice(writer, &slices[i], *sums + at, err);
        at += manifest_block_count(slices[i].count);
    }
    if (rc == 0) {
        rc = st_writer_close(writer, err);
    } else if (open) {
        st_writer_abort(writer);
    }
    dt_arena_clear(&arena);
    free(entries);
    return rc;
}

int checkpoint_write_slices(const char *dir, const struct checkpoint_state *state, int rank, int ranks,
                            const struct checkpoint_slice *slices, int slice_count, struct dt_text *out_entry,
                            struct dt_error *err)
{
    char file_name[MANIFEST_FILE_NAME_BYTES];
    manifest_file_name(file_name, rank, ranks);
    char *folder = temporary_path(dir, state), *path = dt_format("%s/%s", folder, file_name);
    uint64_t *sums = NULL;
    struct stat st;
    int rc = dt_file_mkdirs(folder, err) == 0 ? write_all(path, -1, slices, slice_count, &sums, err) : -1;
    if (rc == 0 && stat(path, &st) != 0) {
        rc = dt_fail_errno(err, "%s", path);
    }
    if (rc == 0) {
        manifest_entry(out_entry, file_name, st.st_size, slices, slice_count, sums);
    } else {
        (void)dt_wrap(err, "checkpoint of step %" PRId64, state->step);
    }
    free(sums);
    free(path);
    free(folder);
    return rc;
}

int checkpoint_write_fd(int fd, int rank, int ranks, const struct checkpoint_slice *slices, int slice_count,
                        struct dt_text *out_entry, int64_t *size_bytes, struct dt_error *err)
{
    char file_name[MANIFEST_FILE_NAME_BYTES];
    manifest_file_name(file_name, rank, ranks);
    uint64_t *sums = NULL;
    off_t begin = lseek(fd, 0, SEEK_CUR);
    int rc = write_all(file_name, fd, slices, slice_count, &sums, err);
    if (rc == 0) {
        *size_bytes = lseek(fd, 0, SEEK_CUR) - begin;
        manifest_entry(out_entry, file_name, *size_bytes, slices, slice_count, sums);
    }
    free(sums);
    return rc;
}

/* Takes the lock on DIR/owner.lock, which serialises claim and commit. DIR/owner.json holds run,
 * launch and round of the owner, which alone may commit here. */
static int lock_owner(const char *dir, double wait_s, struct dt_error *err)
{
    char *path = dt_format("%s/owner.lock", dir);
    int fd = dt_file_open_lock(path, err);
    if (fd >= 0) {
        double until_s = dt_now_s() + wait_s;
        while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            if (errno != EWOULDBLOCK && errno != EINTR) {
                break; /* the file system has no locks, so owner.json alone decides */
            }
            if (dt_now_s() > until_s) {
                (void)dt_fail(err, DT_TIMEOUT, "%s: locked by another process for %g s", path, wait_s);
                (void)close(fd);
                fd = -1;
                break;
            }
            dt_sleep_s(0.01);
        }
    }
    free(path);
    return fd;
}

static void owner_text(struct dt_text *out, const char *run_id, const char *launch, int round)
{
    dt_text_puts(out, "{\"run_id\":");
    dt_text_json(out, run_id != NULL ? run_id : "", strlen(run_id != NULL ? run_id : ""));
    if (launch != NULL && launch[0] != '\0') {
        dt_text_puts(out, ",\"launch\":");
        dt_text_json(out, launch, strlen(launch));
    }
    dt_text_printf(out, ",\"round\":%d}\n", round);
}

/* The round that owns DIR, if the owner belongs to this launch. -1: there is no owner, or another
 * launch, whose rounds cannot be compared with ours. */
static int owner_round(const char *dir, const char *run_id, const char *launch)
{
    char *path = dt_format("%s/owner.json", dir);
    struct dt_text owner, prefix;
    dt_text_init(&owner);
    dt_text_init(&prefix);
    owner_text(&prefix, run_id, launch, 0);
    size_t same = prefix.size - strlen("0}\n");
    bool ours = dt_file_read_own(path, OWNER_MAX_BYTES, &owner, NULL) == 0 && owner.size > same &&
                memcmp(owner.data, prefix.data, same) == 0;
    int round = ours ? atoi(owner.data + same) : -1;
    dt_text_clear(&prefix);
    dt_text_clear(&owner);
    free(path);
    return round;
}

static int take_from_frozen(const char *dir, struct dt_error *err);
static void rename_old_tries(const char *dir, int round);

int checkpoint_claim(const char *dir, const char *run_id, const char *launch, int round, struct dt_error *err)
{
    if (dt_file_mkdirs(dir, err) != 0) {
        return -1;
    }
    int before = owner_round(dir, run_id, launch);
    bool older = before >= 0 && before < round;
    int lock = lock_owner(dir, older ? FROZEN_S : LOCK_S, err);
    if (lock < 0 && older && err->status == DT_TIMEOUT) {
        lock = take_from_frozen(dir, err);
    }
    if (lock < 0) {
        return -1;
    }
    before = owner_round(dir, run_id, launch);
    char *path = dt_format("%s/owner.json", dir);
    struct dt_text text;
    dt_text_init(&text);
    owner_text(&text, run_id, launch, round);
    int result = 0;
    if (before > round) { /* a late worker of an older round must not become the owner again */
        result = dt_fail(err, DT_STOPPED, "%s: round %d has begun; this is round %d", dir, before, round);
    }
    if (result == 0) {
        static const char *const names[] = {"owner.json", "course.json", "latest", NULL};
        dt_file_remove_cut(dir, names); /* every process that writes these files holds the lock */
        rename_old_tries(dir, round);
        result = dt_file_write(path, text.data, text.size, err);
    }
    dt_text_clear(&text);
    free(path);
    (void)close(lock);
    return result;
}

/* 0 if this round may commit. Every round may commit to a folder without an owner. */
static int check_owner(const char *dir, const struct checkpoint_state *state, struct dt_error *err)
{
    char *path = dt_format("%s/owner.json", dir);
    struct dt_text owner, mine;
    dt_text_init(&owner);
    dt_text_init(&mine);
    owner_text(&mine, state->run_id, state->launch, state->round);
    int result = 0;
    if (dt_file_read_own(path, OWNER_MAX_BYTES, &owner, NULL) == 0 && strcmp(owner.data, mine.data) != 0) {
        while (owner.size > 0 && owner.data[owner.size - 1] == '\n') {
            owner.data[--owner.size] = 0;
        }
        result = dt_fail(err, DT_STOPPED, "%s: now belongs to %s; the checkpoint of round %d is refused", dir,
                         owner.data, state->round);
    }
    dt_text_clear(&mine);
    dt_text_clear(&owner);
    free(path);
    return result;
}

int64_t checkpoint_step_of(const char *name, bool *leftover)
{
    if (strncmp(name, "step-", 5) != 0 || strspn(name + 5, "0123456789") < 1) {
        return -1;
    }
    char *end, own[32];
    errno = 0;
    long long step = strtoll(name + 5, &end, 10);
    if (errno != 0 || step < 0 || (*end != 0 && strncmp(end, ".tmp-", 5) != 0)) {
        return -1;
    }
    int size = snprintf(own, sizeof own, "step-%08lld", step);
    if (end - name != size || memcmp(name, own, (size_t)size) != 0) {
        return -1;
    }
    *leftover = *end != 0;
    return step;
}

struct listing {
    struct dt_arena arena;
    struct listed {
        int64_t step;
        const char *name;
    } * items;
    size_t count, capacity;
};

static int newest_first(const void *a, const void *b)
{
    const struct listed *x = a, *y = b;
    return (x->step < y->step) - (x->step > y->step);
}

/* Lists the folders step-N (or, with `leftovers`, step-N.tmp-R) of DIR, the newest first. A missing
 * DIR counts as empty. */
static int list_steps(const char *dir, bool leftovers, struct listing *out, struct dt_error *err)
{
    *out = (struct listing){0};
    dt_arena_init(&out->arena);
    DIR *d = opendir(dir);
    if (d == NULL) {
        return errno == ENOENT ? 0 : dt_fail_errno(err, "%s", dir);
    }
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        bool leftover;
        int64_t step = checkpoint_step_of(e->d_name, &leftover);
        if (step < 0 || leftover != leftovers) {
            continue;
        }
        if (out->count == out->capacity) {
            out->capacity = out->capacity * 2 + 64;
            out->items = dt_realloc(out->items, out->capacity * sizeof *out->items);
        }
        out->items[out->count++] = (struct listed){step, dt_arena_strdup(&out->arena, e->d_name)};
    }
    (void)closedir(d);
    if (out->count > 0) {
        qsort(out->items, out->count, sizeof *out->items, newest_first);
    }
    return 0;
}

static void listing_clear(struct listing *l)
{
    free(l->items);
    dt_arena_clear(&l->arena);
}

/* False for files of another number of ranks, which an earlier, interrupted save of this step has
 * left. */
static bool is_of_this_try(const void *context, const char *name)
{
    int ranks = *(const int *)context, rank, of, used = 0;
    return sscanf(name, "slices-%5d-of-%5d.safetensors%n", &rank, &of, &used) == 2 && name[used] == '\0' &&
           of == ranks && rank >= 0 && rank < ranks;
}

/* Size of a regular file; -1: there is none. It opens the file, which makes a network file system
 * refresh its cached attributes. */
static int64_t size_of(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool there = (fd >= 0 ? fstat(fd, &st) : lstat(path, &st)) == 0 && S_ISREG(st.st_mode);
    if (fd >= 0) {
        (void)close(fd);
    }
    return there ? st.st_size : -1;
}

/* Fails unless every rank's file is there with its full size. Every rank has said so, but an
 * incomplete folder must never become a checkpoint, nor push out an older one. */
static int check_slices(const char *folder, const char *const *entries, int ranks, struct dt_error *err)
{
    double until_s = dt_now_s() + SEEN_S;
    for (int r = 0; r < ranks; r++) {
        char name[MANIFEST_FILE_NAME_BYTES];
        int64_t expected = 0, size;
        if (manifest_entry_check(entries[r], r, ranks, &expected, err) != 0) {
            return -1;
        }
        manifest_file_name(name, r, ranks);
        char *path = dt_format("%s/%s", folder, name);
        while ((size = size_of(path)) != expected && dt_now_s() < until_s) {
            dt_sleep_s(0.05);
        }
        if (size < 0) {
            (void)dt_fail(err, DT_IO,
                          "%s: is not there, though rank %d wrote it; it must be in a folder that all hosts share",
                          path, r);
        } else if (size != expected) {
            (void)dt_fail(err, DT_IO,
                          "%s: has %" PRId64 " bytes, and rank %d wrote %" PRId64 "; look at the disk or file server",
                          path, size, r, expected);
        }
        free(path);
        if (size != expected) {
            return -1;
        }
    }
    return 0;
}

/* Takes the owner's lock from a rank of an older round, whose host is frozen, by making a new lock
 * file. Returns the descriptor. */
static int take_from_frozen(const char *dir, struct dt_error *err)
{
    char *path = dt_format("%s/owner.lock", dir);
    int lock = unlink(path) == 0 || errno == ENOENT ? lock_owner(dir, LOCK_S, err) : dt_fail_errno(err, "%s", path);
    free(path);
    return lock;
}

/* Renames the unfinished folders of earlier rounds. A rank of such a round may be frozen between
 * its check of the owner and its rename, after we or a file server have taken its lock. Its rename
 * then fails whenever it comes. */
static void rename_old_tries(const char *dir, int round)
{
    struct listing tries;
    if (list_steps(dir, true, &tries, NULL) != 0) {
        return;
    }
    for (size_t i = 0; i < tries.count; i++) {
        char *from = dt_format("%s/%s", dir, tries.items[i].name), *to = dt_format("%s" TAKEN "%d", from, round);
        bool takes = strstr(tries.items[i].name, TAKEN) == NULL && strstr(tries.items[i].name, GONE) == NULL;
        if (takes && rename(from, to) != 0 && errno != ENOENT) {
            dt_log(DT_LOG_WARN, "checkpoint", "%s: %s", to, strerror(errno));
        }
        free(to);
        free(from);
    }
    listing_clear(&tries);
}

bool checkpoint_looks_whole(const char *path)
{
    char *manifest = dt_format("%s/manifest.json", path);
    bool there = dt_file_exists(manifest);
    free(manifest);
    return there;
}

/* Removes DIR/NAME, unless a newer round has begun, which may read it. A failure is only a warning.
 * A checkpoint first gets a temporary name, so that the next save recognises and finishes an
 * interrupted removal. */
static void remove_one(const char *dir, const char *name, bool leftover, const struct checkpoint_state *state)
{
    struct dt_error err;
    char *path = dt_format("%s/%s", dir, name),
         *gone = leftover ? dt_strdup(path) : dt_format("%s" GONE "%d", path, state->round);
    bool ours = check_owner(dir, state, NULL) == 0;
    int rc = ours && !leftover && rename(path, gone) != 0 ? dt_fail_errno(&err, "%s: cannot remove", path) : 0;
    if (rc == 0 && ours) {
        rc = dt_file_remove_tree(gone, &err);
    }
    if (rc != 0) {
        dt_log(DT_LOG_WARN, "checkpoint", "%s", err.text);
    }
    free(gone);
    free(path);
}

/* Removes the leftovers of earlier saves and removals, then complete checkpoints beyond the newest
 * last_n, counted from the one just written. Later steps belong to another course of training, and
 * folders without a manifest are not ours: neither are counted or removed. */
static void prune(const char *dir, const struct checkpoint_state *state, const struct checkpoint_keep *keep)
{
    struct dt_error err;
    for (int leftovers = 1; leftovers >= 0; leftovers--) {
        struct listing steps;
        if (list_steps(dir, leftovers, &steps, &err) != 0) {
            dt_log(DT_LOG_WARN, "checkpoint", "%s", err.text);
        }
        int complete = 0;
        for (size_t i = 0; i < steps.count; i++) {
            int64_t step = steps.items[i].step;
            char *path = dt_format("%s/%s", dir, steps.items[i].name);
            bool whole = !leftovers && checkpoint_looks_whole(path);
            complete += whole && step <= state->step;
            bool stays = step == keep->named_step || (keep->best != NULL && best_has(keep->best, step));
            if (leftovers || (whole && keep->last_n > 0 && complete > keep->last_n && !stays)) {
                remove_one(dir, steps.items[i].name, leftovers, state);
            }
            free(path);
        }
        listing_clear(&steps);
    }
}

/* Gives the finished folder its name. An older checkpoint of the same step is exchanged with it in
 * one call: *swapped. Anything else of that name may be the user's, so it is set aside. */
static int put_in_place(const char *from, const char *to, bool *swapped, struct dt_error *err)
{
    *swapped = false;
    if (dt_file_exists(to) && !checkpoint_looks_whole(to)) {
        if (course_set_aside(to, err) != 0) {
            return -1;
        }
        dt_log(DT_LOG_WARN, "checkpoint",
               "%s: what had this name held no manifest.json and is no checkpoint; it is set aside (.old-N)", to);
    }
    if (rename(from, to) == 0) {
        return 0;
    }
    if (errno != ENOTEMPTY && errno != EEXIST) {
        return dt_fail_errno(err, "%s", to);
    }
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0) {
        *swapped = true; /* the old checkpoint now has the temporary name, and prune removes it */
        return 0;
    }
    if (dt_file_remove_tree(to, err) != 0) {
        return -1;
    }
    return rename(from, to) == 0 ? 0 : dt_fail_errno(err, "%s", to);
}

/* Undoes put_in_place after a failed sync. Nobody knows whether the new name would survive a power
 * loss, so the checkpoint must not be listed. */
static void undo_put_in_place(const char *from, const char *to, bool swapped)
{
    if ((swapped ? renameat2(AT_FDCWD, to, AT_FDCWD, from, RENAME_EXCHANGE) : rename(to, from)) != 0) {
        dt_log(DT_LOG_WARN, "checkpoint", "%s: %s; it stays, and may be lost with the power", to, strerror(errno));
    }
}

int checkpoint_commit(const char *dir, const struct checkpoint_state *state, const char *const *entries, int ranks,
                      const struct checkpoint_keep *keep, struct dt_error *err)
{
    char *from = temporary_path(dir, state), *to = checkpoint_path(dir, state->step);
    char *manifest = dt_format("%s/manifest.json", from), *latest = dt_format("%s/latest", dir);
    char name[64];
    (void)snprintf(name, sizeof name, "step-%08" PRId64 "\n", state->step);
    struct dt_text text;
    dt_text_init(&text);
    bool swapped;
    int result = -1, lock = lock_owner(dir, LOCK_S, err);
    bool whole = lock >= 0 && check_owner(dir, state, err) == 0 &&
                 dt_file_remove_others(from, is_of_this_try, &ranks, err) == 0 &&
                 check_slices(from, entries, ranks, err) == 0;
    if (whole) {
        manifest_text(&text, state, entries, ranks);
    }
    if (whole && dt_file_write(manifest, text.data, text.size, err) == 0 &&
        put_in_place(from, to, &swapped, err) == 0) {
        result = dt_file_sync_dir(dir, err);
        if (result != 0 && check_owner(dir, state, NULL) == 0) {
            undo_put_in_place(from, to, swapped);
        }
    }
    /* no later start depends on what follows: `latest` is for people, and removals save disk
     * space */
    if (result == 0) {
        struct dt_error why;
        if (dt_file_write(latest, name, strlen(name), &why) != 0) {
            dt_log(DT_LOG_WARN, "checkpoint", "%s", why.text);
        }
        prune(dir, state, keep);
    } else {
        (void)dt_wrap(err, "checkpoint of step %" PRId64, state->step);
    }
    if (lock >= 0) {
        (void)close(lock);
    }
    dt_text_clear(&text);
    free(latest);
    free(manifest);
    free(to);
    free(from);
    return result;
}

void checkpoint_discard(const char *dir, const struct checkpoint_state *state)
{
    char *path = temporary_path(dir, state);
    (void)dt_file_remove_tree(path, NULL);
    free(path);
}

int checkpoint_steps(const char *dir, int64_t **steps, int *count, struct dt_error *err)
{
    struct listing l;
    if (list_steps(dir, false, &l, err) != 0) {
        return -1;
    }
    *steps = dt_alloc((l.count + 1) * sizeof **steps);
    *count = (int)l.count;
    for (size_t i = 0; i < l.count; i++) {
        (*steps)[i] = l.items[i].step;
    }
    listing_clear(&l);
    return 0;
}

int checkpoint_find(const char *dir, char **path, struct dt_text *notes, struct dt_error *err)
{
    struct listing steps;
    if (list_steps(dir, false, &steps, err) != 0) {
        return -1;
    }
    int result = -1;
    for (size_t i = 0; i < steps.count && result != 0; i++) {
        char *candidate = dt_format("%s/%s", dir, steps.items[i].name);
        struct checkpoint *c = NULL;
        struct dt_error why;
        if (checkpoint_open(&c, candidate, &why) == 0 && checkpoint_verify(c, &why) == 0) {
            if (notes != NULL && notes->size > 0) {
                dt_text_printf(notes, "; taken is %s", candidate);
            }
            *path = candidate;
            candidate = NULL;
            result = 0;
        } else if (notes != NULL) {
            dt_text_printf(notes, "%s%s", notes->size > 0 ? "; " : "", why.text);
        }
        checkpoint_close(c);
        free(candidate);
    }
    listing_clear(&steps);
    return result == 0 ? 0 : dt_fail(err, DT_NOT_FOUND, "%s: no complete checkpoint", dir);
}
