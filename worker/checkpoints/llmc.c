/* The file is mapped, and its tensors are written in its order, so that pages can be given back behind
 * the one that is written. Maps are transposed a few rows at a time: Hugging Face's GPT-2 stores them
 * (in, out). */
#include "worker/checkpoints/llmc.h"

#include "base/file.h"
#include "base/text.h"
#include "worker/checkpoints/checkpoint_export.h"
#include "worker/data/safetensors.h"
#include "worker/model/model.h"
#include "worker/model/models/gpt2.h"

#include <endian.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAGIC = 20240326, VERSION_F32 = 3, VERSION_BF16 = 5 };
enum { ROWS = 64, CHUNK_BYTES = 1 << 20 }; /* of a transposed map, of another tensor: written at a time */

/* ---- the header ---- */

static int32_t word(const void *bytes, int i)
{
    uint32_t x;
    memcpy(&x, (const char *)bytes + 4 * i, sizeof x);
    return (int32_t)le32toh(x);
}

/* Other files of llm.c, and why they are refused. */
static const char *other_file(int32_t magic)
{
    switch (magic) {
    case 20240527:
        return "it holds the optimizer's state of one process, without names or shapes, and is not imported; give "
               "the model_*.bin beside it";
    case 20240520:
    case 20240801:
        return "it holds tokens, which data.train takes as they are";
    case 20240522:
        return "it holds questions for an evaluation";
    case 20240327:
        return "it holds activations for llm.c's own tests";
    case 20240328:
        return "it holds a tokenizer";
    default:
        return NULL;
    }
}

static int check_kind(const void *bytes, struct llmc_header *out, struct dt_error *err)
{
    int32_t magic = word(bytes, 0), version = word(bytes, 1);
    const char *other = other_file(magic);
    if (other != NULL) {
        return dt_fail(err, DT_INVALID, "magic number %" PRId32 ": a file of llm.c, but no model: %s", magic, other);
    }
    if (magic != MAGIC) {
        return dt_fail(err, DT_INVALID, "magic number %" PRId32 ": no model of llm.c, which begins with %d", magic,
                       MAGIC);
    }
    if (version != VERSION_F32 && version != VERSION_BF16) {
        return dt_fail(err, DT_INVALID,
                       "version %" PRId32 " of llm.c's models; known are %d (float32) and %d (bfloat16): write it "
                       "again with a newer llm.c",
                       version, VERSION_F32, VERSION_BF16);
    }
    out->type = version == VERSION_F32 ? DT_F32 : DT_BF16;
    return 0;
}

/* Limits are those of gpt2's keys, so that no product of sizes overflows. */
static int check_sizes(const void *bytes, struct llmc_header *out, struct dt_error *err)
{
    const struct {
        const char *name;
        int64_t most, *to;
    } rows[] = {{"longest sequence", 1 << 22, &out->positions},  {"vocabulary", 1 << 24, &out->vocabulary},
                {"number of layers", 10000, &out->layers},       {"number of heads", 10000, &out->heads},
                {"number of channels", 1 << 20, &out->channels}, {"padded vocabulary", 1 << 25, &out->padded}};
    for (int i = 0; i < 6; i++) {
        int32_t size = word(bytes, 2 + i);
        if (size < 1 || size > rows[i].most) {
            return dt_fail(err, DT_INVALID, "header: %s is %" PRId32 "; must be from 1 to %" PRId64, rows[i].name, size,
                           rows[i].most);
        }
        *rows[i].to = size;
    }
    if (out->padded < out->vocabulary) {
        return dt_fail(err, DT_INVALID, "header: padded vocabulary %" PRId64 " is less than the vocabulary %" PRId64,
                       out->padded, out->vocabulary);
    }
    if (out->channels % out->heads != 0) {
        return dt_fail(err, DT_INVALID, "header: %" PRId64 " channels cannot be split among %" PRId64 " heads",
                       out->channels, out->heads);
    }
    return 0;
}

/* ---- the tensors ---- */

struct part { /* a tensor of the file: `layers` pieces of rows x columns, one behind the other */
    const char *name;
    bool of_layer, transposed;
    int64_t rows, columns; /* columns 0: one dimension */
};
enum { PARTS = 16 };

/* In the order of the file. */
static void parts_of(const struct llmc_header *h, struct part out[PARTS])
{
    int64_t c = h->channels;
    const struct part parts[PARTS] = {
        {"wte.weight", false, false, h->padded, c},   {"wpe.weight", false, false, h->positions, c},
        {"ln_1.weight", true, false, c, 0},           {"ln_1.bias", true, false, c, 0},
        {"attn.c_attn.weight", true, true, 3 * c, c}, {"attn.c_attn.bias", true, false, 3 * c, 0},
        {"attn.c_proj.weight", true, true, c, c},     {"attn.c_proj.bias", true, false, c, 0},
        {"ln_2.weight", true, false, c, 0},           {"ln_2.bias", true, false, c, 0},
        {"mlp.c_fc.weight", true, true, 4 * c, c},    {"mlp.c_fc.bias", true, false, 4 * c, 0},
        {"mlp.c_proj.weight", true, true, c, 4 * c},  {"mlp.c_proj.bias", true, false, c, 0},
        {"ln_f.weight", false, false, c, 0},          {"ln_f.bias", false, false, c, 0}};
    memcpy(out, parts, sizeof parts);
}

static int64_t piece_elements(const struct part *p)
{
    return p->rows * (p->columns > 0 ? p->columns : 1);
}

static int64_t file_elements(const struct llmc_header *h)
{
    struct part parts[PARTS];
    int64_t count = 0;
    parts_of(h, parts);
    for (int i = 0; i < PARTS; i++) {
        count += piece_elements(&parts[i]) * (parts[i].of_layer ? h->layers : 1);
    }
    return count;
}

int llmc_read_header(const void *bytes, size_t size, int64_t file_bytes, struct llmc_header *out, struct dt_error *err)
{
    if (size < LLMC_HEADER_BYTES) {
        return dt_fail(err, DT_INVALID, "cut short: it has %zu bytes, and a header of llm.c %d", size,
                       LLMC_HEADER_BYTES);
    }
    if (check_kind(bytes, out, err) != 0 || check_sizes(bytes, out, err) != 0) {
        return -1;
    }
    int64_t expected = LLMC_HEADER_BYTES + file_elements(out) * (int64_t)dt_dtype_size(out->type);
    if (file_bytes != expected) {
        return dt_fail(err, DT_INVALID, "%s: it has %" PRId64 " bytes, and its header says %" PRId64,
                       file_bytes < expected ? "cut short" : "too long", file_bytes, expected);
    }
    return 0;
}

/* ---- writing ---- */

struct piece { /* a tensor of the folder */
    char *name;
    int64_t shape[2];
    const char *data;
    const struct part *part;
};

struct import {
    struct llmc_header header;
    struct part parts[PARTS];
    struct piece *pieces;
    int count;
    void *block; /* ROWS rows of a transposed map */
    char *map;
    size_t given_back; /* bytes at the beginning of the map; whole pages */
};

/* Lists the tensors, each of a layer apart, in the order of the file. Padding is left out. */
static void list_pieces(struct import *m)
{
    const struct llmc_header *h = &m->header;
    const char *data = m->map + LLMC_HEADER_BYTES;
    int64_t size = (int64_t)dt_dtype_size(h->type);
    m->pieces = dt_alloc((size_t)(PARTS * h->layers) * sizeof *m->pieces);
    parts_of(h, m->parts);
    for (int i = 0; i < PARTS; i++) {
        const struct part *p = &m->parts[i];
        for (int64_t layer = 0; layer < (p->of_layer ? h->layers : 1); layer++) {
            struct piece *x = &m->pieces[m->count++];
            *x = (struct piece){.shape = {i == 0 ? h->vocabulary : p->rows, p->columns}, .data = data, .part = p};
            x->name = p->of_layer ? dt_format("transformer.h.%" PRId64 ".%s", layer, p->name)
                                  : dt_format("transformer.%s", p->name);
            if (p->transposed) {
                x->shape[0] = p->columns;
                x->shape[1] = p->rows;
            }
            data += piece_elements(p) * size;
        }
    }
}

/* to (count, rows) = columns [first, first + count) of x (rows, columns), of elements of `size` bytes. */
static void transpose(char *to, const char *x, const struct part *p, int64_t first, int64_t count, size_t size)
{
    for (int64_t row = 0; row < p->rows; row++) {
        const char *from = x + (size_t)(row * p->columns + first) * size;
        for (int64_t k = 0; k < count; k++) {
            memcpy(to + (size_t)(k * p->rows + row) * size, from + (size_t)k * size, size);
        }
    }
}

/* Gives back the pages before `end`, which are not read again. */
static void give_back(struct import *m, const char *end)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), done = (size_t)(end - m->map) / page * page;
    if (done > m->given_back) {
        (void)madvise(m->map + m->given_back, done - m->given_back, MADV_DONTNEED);
        m->given_back = done;
    }
}

static int write_plain(struct import *m, const struct piece *x, struct st_writer *w, struct dt_error *err)
{
    size_t left = (size_t)(x->shape[0] * (x->part->columns > 0 ? x->part->columns : 1)) * dt_dtype_size(m->header.type);
    const char *from = x->data;
    for (size_t n; left > 0; left -= n, from += n) {
        n = left < CHUNK_BYTES ? left : CHUNK_BYTES;
        if (st_writer_data(w, from, n, err) != 0) {
            return -1;
        }
        give_back(m, from + n);
    }
    return 0;
}

static int write_transposed(struct import *m, const struct piece *x, struct st_writer *w, struct dt_error *err)
{
    const struct part *p = x->part;
    size_t size = dt_dtype_size(m->header.type);
    for (int64_t first = 0; first < p->columns; first += ROWS) {
        int64_t count = p->columns - first < ROWS ? p->columns - first : ROWS;
        transpose(m->block, x->data, p, first, count, size);
        if (st_writer_data(w, m->block, (size_t)(count * p->rows) * size, err) != 0) {
            return -1;
        }
    }
    give_back(m, x->data + (size_t)piece_elements(p) * size);
    return 0;
}

static int write_weights(struct import *m, const char *path, struct dt_error *err)
{
    struct st_entry *entries = dt_alloc((size_t)m->count * sizeof *entries);
    struct st_writer *w = NULL;
    for (int i = 0; i < m->count; i++) {
        const struct piece *x = &m->pieces[i];
        entries[i] = (struct st_entry){x->name, m->header.type, x->part->columns > 0 ? 2 : 1, x->shape};
    }
    int rc = st_writer_open(&w, path, entries, m->count, NULL, err);
    free(entries);
    for (int i = 0; i < m->count && rc == 0; i++) {
        const struct piece *x = &m->pieces[i];
        rc = x->part->transposed ? write_transposed(m, x, w, err) : write_plain(m, x, w, err);
        if (rc != 0) {
            st_writer_abort(w);
        }
    }
    return rc == 0 ? st_writer_close(w, err) : rc;
}

static int write_config(const struct llmc_header *h, const char *folder, struct dt_error *err)
{
    struct gpt2 sizes;
    struct dt_text text;
    model_defaults(&model_gpt2, &sizes);
    sizes.n_positions = h->positions;
    sizes.vocab_size = h->vocabulary;
    sizes.n_layer = h->layers;
    sizes.n_head = h->heads;
    sizes.n_embd = h->channels;
    dt_text_init(&text);
    model_write_config(&model_gpt2, &sizes, &text);
    int rc = export_write_config(folder, dt_text_str(&text), h->type, err);
    dt_text_clear(&text);
    return rc;
}

static int import(struct import *m, const char *folder, struct dt_error *err)
{
    char *path = dt_format("%s/model.safetensors", folder);
    m->block = dt_alloc((size_t)(ROWS * 4 * m->header.channels) * dt_dtype_size(m->header.type));
    int rc = dt_file_mkdirs(folder, err);
    rc = rc == 0 ? write_weights(m, path, err) : rc;
    rc = rc == 0 ? write_config(&m->header, folder, err) : rc;
    free(m->block);
    free(path);
    return rc;
}

/* ---- the file ---- */

/* Maps a whole file. */
static int map_file(const char *path, void **out, size_t *size, struct dt_error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc = 0;
    *out = NULL;
    if (fd < 0 || fstat(fd, &st) != 0) {
        rc = dt_fail_errno(err, "%s", path);
    } else if (!S_ISREG(st.st_mode)) {
        rc = dt_fail(err, DT_INVALID, "%s: is no file; give a model_*.bin of llm.c", path);
    } else if (st.st_size == 0) {
        rc = dt_fail(err, DT_INVALID, "%s: is empty", path);
    } else {
        *size = (size_t)st.st_size;
        *out = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, fd, 0);
        rc = *out != MAP_FAILED ? 0 : dt_fail_errno(err, "%s", path);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return rc;
}

int llmc_import(const char *path, const char *folder, struct dt_error *err)
{
    void *map;
    size_t size = 0;
    if (map_file(path, &map, &size, err) != 0) {
        return -1;
    }
    struct import m = {.map = map};
    int rc = llmc_read_header(map, size, (int64_t)size, &m.header, err);
    if (rc == 0) {
        list_pieces(&m);
        rc = import(&m, folder, err);
    } else {
        rc = dt_wrap(err, "%s", path);
    }
    for (int i = 0; i < m.count; i++) {
        free(m.pieces[i].name);
    }
    free(m.pieces);
    (void)munmap(map, size);
    return rc;
}
