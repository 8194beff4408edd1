/* Reads checkpoints: any element of any tensor, whichever rank wrote it. Every block is compared
 * with its checksum before its first use. */
#include "base/file.h"
#include "worker/checkpoints/checkpoint.h"
#include "worker/checkpoints/manifest.h"
#include "worker/job/folder.h"
#include "worker/data/safetensors.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

struct checkpoint {
    char *path;
    struct manifest manifest;
    struct st_file **files;
    const struct st_tensor **data; /* one per slice */
    bool **checked;                /* one per slice and block */
    void (*tell)(void *context);   /* called after each block that was compared; may be null */
    void *context;
};

static int open_file(struct checkpoint *c, int i, struct dt_error *err)
{
    const struct manifest_file *f = &c->manifest.files[i];
    char *path = dt_format("%s/%s", c->path, f->name);
    struct stat st;
    int result = -1;
    if (lstat(path, &st) != 0) {
        (void)dt_fail_errno(err, "%s", path);
    } else if (!S_ISREG(st.st_mode)) {
        (void)dt_fail(err, DT_INVALID, "%s: not a regular file", path);
    } else if (st.st_size != f->size_bytes) {
        (void)dt_fail(err, DT_INVALID, "%s: %lld bytes, expected %" PRId64, path, (long long)st.st_size, f->size_bytes);
    } else {
        result = st_open(&c->files[i], path, err);
    }
    free(path);
    return result;
}

/* Refuses a checkpoint under the name of another step. Taken for that step, it would come in the
 * wrong order among the good ones. */
static int check_name(const struct checkpoint *c, struct dt_error *err)
{
    const char *slash = strrchr(c->path, '/');
    bool leftover = false;
    int64_t named = checkpoint_step_of(slash != NULL ? slash + 1 : c->path, &leftover), step = c->manifest.state.step;
    if (named < 0 || leftover || named == step) {
        return 0;
    }
    return dt_fail(err, DT_INVALID,
                   "%s: holds step %" PRId64 ", and its name says step %" PRId64
                   "; remove it, or give it its name step-%08" PRId64,
                   c->path, step, named, step);
}

/* The files of the manifest: in the folder, or in memory (files not null). */
static int open_files(struct checkpoint *c, const struct checkpoint_bytes *files, struct dt_error *err)
{
    struct manifest *m = &c->manifest;
    c->files = dt_arena_alloc(&m->arena, (size_t)m->file_count * sizeof(void *));
    c->data = dt_arena_alloc(&m->arena, (size_t)m->slice_count * sizeof(void *));
    c->checked = dt_arena_alloc(&m->arena, (size_t)m->slice_count * sizeof(void *));
    for (int i = 0; i < m->file_count; i++) {
        if (files == NULL ? open_file(c, i, err) != 0
                          : st_open_memory(&c->files[i], files[i].at, files[i].size, m->files[i].name, err) != 0) {
            return -1;
        }
    }
    for (int i = 0; i < m->slice_count; i++) {
        const struct manifest_slice *s = &m->slices[i];
        char name[640];
        manifest_slice_name(name, sizeof name, s->purpose, m->tensors[s->tensor].name, s->first);
        c->data[i] = st_find(c->files[s->file], name);
        if (c->data[i] == NULL || c->data[i]->type != DT_F32 || c->data[i]->numel != s->count) {
            return dt_fail(err, DT_INVALID, "%s/%s: %s: missing, or not what the manifest says", c->path,
                           m->files[s->file].name, name);
        }
        c->checked[i] = dt_arena_alloc(&m->arena, (size_t)s->sum_count);
    }
    return 0;
}

int checkpoint_open(struct checkpoint **out, const char *path, struct dt_error *err)
{
    struct checkpoint *c = dt_alloc(sizeof *c);
    c->path = dt_strdup(path);
    size_t length = strlen(c->path);
    while (length > 1 && c->path[length - 1] == '/') {
        c->path[--length] = 0;
    }
    if (manifest_read(&c->manifest, c->path, err) != 0 || check_name(c, err) != 0 || open_files(c, NULL, err) != 0) {
        checkpoint_close(c);
        return -1;
    }
    *out = c;
    return 0;
}

int checkpoint_open_memory(struct checkpoint **out, const char *name, const struct dt_text *manifest,
                           const struct checkpoint_bytes *files, int file_count, struct dt_error *err)
{
    struct checkpoint *c = dt_alloc(sizeof *c);
    c->path = dt_strdup(name);
    int rc = manifest_parse_part(&c->manifest, manifest, err);
    if (rc == 0 && c->manifest.file_count != file_count) {
        rc = dt_fail(err, DT_INVALID, "%d files, expected %d", file_count, c->manifest.file_count);
    }
    if (rc != 0 || open_files(c, files, err) != 0) {
        checkpoint_close(c);
        return dt_wrap(err, "%s", name);
    }
    *out = c;
    return 0;
}

void checkpoint_close(struct checkpoint *c)
{
    if (c == NULL) {
        return;
    }
    for (int i = 0; c->files != NULL && i < c->manifest.file_count; i++) {
        st_close(c->files[i]);
    }
    manifest_clear(&c->manifest);
    free(c->path);
    free(c);
}

char *checkpoint_origin(const char *path)
{
    /* for "." and links, the text before the last slash is another folder */
    char *dir = realpath(path, NULL);
    dir = dir != NULL ? dir : dt_strdup(path);
    dt_file_strip(dir);
    char *origin = dt_format("%s/" ORIGIN_FOLDER, dir);
    free(dir);
    return origin;
}

const char *checkpoint_get_path(const struct checkpoint *c)
{
    return c->path;
}

const struct checkpoint_state *checkpoint_get_state(const struct checkpoint *c)
{
    return &c->manifest.state;
}

/* Verifies the blocks that hold elements [first, first + count) of slice i. */
static int check_blocks(struct checkpoint *c, int i, int64_t first, int64_t count, struct dt_error *err)
{
    const struct manifest_slice *s = &c->manifest.slices[i];
    const int64_t per_block = MANIFEST_BLOCK_BYTES / (int64_t)sizeof(float);
    for (int64_t b = first / per_block; b <= (first + count - 1) / per_block; b++) {
        if (c->checked[i][b]) {
            continue;
        }
        int64_t from = b * per_block, elements = s->count - from < per_block ? s->count - from : per_block;
        uint64_t sum = manifest_sum((const float *)c->data[i]->data + from, (size_t)elements * sizeof(float));
        if (sum != s->sums[b]) {
            return dt_fail(err, DT_INVALID,
                           "%s: %s: checksum %016" PRIx64 ", expected %016" PRIx64 " in %s of %s, elements %" PRId64
                           "..%" PRId64,
                           c->path, c->manifest.files[s->file].name, sum, s->sums[b], s->purpose,
                           c->manifest.tensors[s->tensor].name, s->first + from, s->first + from + elements - 1);
        }
        c->checked[i][b] = true;
        if (c->tell != NULL) {
            c->tell(c->context);
        }
    }
    return 0;
}

/* Gives back the pages of elements [first, first + count) of slice i. The kernel's cache keeps them. */
static void leave(const struct checkpoint *c, int i, int64_t first, int64_t count)
{
    st_leave(c->files[c->manifest.slices[i].file], (const float *)c->data[i]->data + first,
             (size_t)count * sizeof(float));
}

void checkpoint_progress(struct checkpoint *c, void (*tell)(void *context), void *context)
{
    c->tell = tell;
    c->context = context;
}

/* Do slices hold elements [first, first + count), without a gap? */
static bool holds(const struct manifest *m, const char *purpose, int tensor, int64_t first, int64_t count)
{
    int64_t end = first + count;
    for (int i = manifest_slice_at(m, purpose, tensor, first); first < end; i++) {
        if (!manifest_slice_is(m, i, purpose, tensor) || m->slices[i].first > first) {
            return false;
        }
        first = m->slices[i].first + m->slices[i].count;
    }
    return true;
}

bool checkpoint_holds(const struct checkpoint *c, const char *purpose, const char *name, int64_t first, int64_t count)
{
    int tensor = manifest_find(&c->manifest, name);
    return tensor >= 0 && holds(&c->manifest, purpose, tensor, first, count);
}

int checkpoint_read(struct checkpoint *c, const char *purpose, const char *name, int64_t numel, int64_t first,
                    int64_t count, float *out, struct dt_error *err)
{
    const struct manifest *m = &c->manifest;
    int tensor = manifest_find(m, name);
    if (tensor < 0) {
        return dt_fail(err, DT_NOT_FOUND, "%s: has no tensor %s", c->path, name);
    }
    if (m->tensors[tensor].numel != numel || first < 0 || count < 0 || first > numel - count) {
        return dt_fail(err, DT_INVALID, "%s: %s has %" PRId64 " elements, expected %" PRId64, c->path, name,
                       m->tensors[tensor].numel, numel);
    }
    int64_t begin = first < numel ? first : numel - 1;
    int i = manifest_slice_at(m, purpose, tensor, begin);
    if (!manifest_slice_is(m, i, purpose, tensor)) {
        return dt_fail(err, DT_NOT_FOUND, "%s: has no %s of %s", c->path, purpose, name);
    }
    if (!holds(m, purpose, tensor, first, count)) {
        return dt_fail(err, DT_NOT_FOUND, "%s: has only a part of %s of %s", c->path, purpose, name);
    }
    for (; manifest_slice_is(m, i, purpose, tensor) && m->slices[i].first < first + count; i++) {
        const struct manifest_slice *s = &m->slices[i];
        int64_t from = first > s->first ? first : s->first,
                to = first + count < s->first + s->count ? first + count : s->first + s->count;
        if (check_blocks(c, i, from - s->first, to - from, err) != 0) {
            return -1;
        }
        memcpy(out + (from - first), (const float *)c->data[i]->data + (from - s->first),
               (size_t)(to - from) * sizeof(float));
        leave(c, i, from - s->first, to - from);
    }
    return 0;
}

bool checkpoint_has(const struct checkpoint *c, const char *purpose, const char *name, int64_t count)
{
    const struct manifest *m = &c->manifest;
    int tensor = manifest_find(m, name), i = tensor >= 0 ? manifest_slice_at(m, purpose, tensor, 0) : -1;
    return i >= 0 && manifest_slice_is(m, i, purpose, tensor) && m->slices[i].first == 0 && m->slices[i].count == count;
}

int checkpoint_tensor_count(const struct checkpoint *c)
{
    return c->manifest.tensor_count;
}

void checkpoint_tensor(const struct checkpoint *c, int i, const char **name, int *dims, const int64_t **shape)
{
    *name = c->manifest.tensors[i].name;
    *dims = c->manifest.tensors[i].dims;
    *shape = c->manifest.tensors[i].shape;
}

int checkpoint_verify_part(struct checkpoint *c, int part, int parts, struct dt_error *err)
{
    const struct manifest *m = &c->manifest;
    const int64_t per_block = MANIFEST_BLOCK_BYTES / (int64_t)sizeof(float);
    int64_t blocks = 0, at = 0;
    for (int i = 0; i < m->slice_count; i++) {
        blocks += m->slices[i].sum_count;
    }
    int64_t begin = blocks * part / parts, end = blocks * (part + 1) / parts;
    for (int i = 0; i < m->slice_count; at += m->slices[i++].sum_count) {
        const struct manifest_slice *s = &m->slices[i];
        int64_t from = begin > at ? begin - at : 0, to = end - at < s->sum_count ? end - at : s->sum_count;
        if (from < to) {
            int64_t last = to * per_block < s->count ? to * per_block : s->count;
            if (check_blocks(c, i, from * per_block, last - from * per_block, err) != 0) {
                return -1;
            }
            leave(c, i, from * per_block, last - from * per_block);
        }
    }
    return 0;
}

int checkpoint_verify(struct checkpoint *c, struct dt_error *err)
{
    return checkpoint_verify_part(c, 0, 1, err);
}

int checkpoint_hash(struct checkpoint *c, char out[33], struct dt_error *err)
{
    const struct manifest *m = &c->manifest;
    const int64_t per_block = MANIFEST_BLOCK_BYTES / (int64_t)sizeof(float);
    XXH3_state_t *state = XXH3_createState();
    int result = -1;
    (void)XXH3_128bits_reset(state);
    for (int i = 0; i < m->tensor_count; i++) {
        const struct manifest_tensor *t = m->by_name[i];
        int tensor = (int)(t - m->tensors);
        struct dt_text head;
        dt_text_init(&head);
        dt_text_printf(&head, "%s F32", t->name);
        for (int d = 0; d < t->dims; d++) {
            dt_text_printf(&head, " %" PRId64, t->shape[d]);
        }
        (void)XXH3_128bits_update(state, head.data, head.size + 1);
        dt_text_clear(&head);
        for (int s = manifest_slice_at(m, "weight", tensor, 0); manifest_slice_is(m, s, "weight", tensor); s++) {
            for (int64_t at = 0, n; at < m->slices[s].count; at += n) {
                n = m->slices[s].count - at < per_block ? m->slices[s].count - at : per_block;
                if (check_blocks(c, s, at, n, err) != 0) {
                    goto out;
                }
                (void)XXH3_128bits_update(state, (const float *)c->data[s]->data + at, (size_t)n * sizeof(float));
                leave(c, s, at, n);
            }
        }
    }
    XXH128_hash_t hash = XXH3_128bits_digest(state);
    (void)snprintf(out, 33, "%016" PRIx64 "%016" PRIx64, (uint64_t)hash.high64, (uint64_t)hash.low64);
    result = 0;
out:
    (void)XXH3_freeState(state);
    return result;
}
