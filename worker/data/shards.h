/* Token shards, read by mapping. Ours are in llm.c's format: a header of 256 int32, then the ids.
 * Shards of others are read as they are (shards_foreign.c): Megatron's FILE.bin with its index
 * FILE.idx, and nanoGPT's ids without a header. FILE.bin.json beside FILE.bin has what the file lacks
 * (tokenizer, vocabulary, hash). The writer makes either all shards of a run appear, or none. */
#ifndef DT_WORKER_DATA_SHARDS_H
#define DT_WORKER_DATA_SHARDS_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SHARD_HEADER_BYTES = 1024, SHARD_MAGIC_U16 = 20240520, SHARD_MAGIC_U32 = 20240801, SHARD_TOKENIZER_BYTES = 64 };

struct shard_info {
    char tokenizer[SHARD_TOKENIZER_BYTES]; /* "bytes"; "": unknown */
    int64_t tokens;                        /* number of ids in the file; -1: unknown */
    int64_t document_end;                  /* the id that ends each document; -1: unknown */
    bool wide;                             /* "dtype" is "uint32": ids without a header have 4 bytes */
    int64_t vocabulary;                    /* size of the tokenizer's vocabulary; 0: unknown */
    int64_t max_id;                        /* largest id in the file; -1: unknown */
    int64_t source_count;                  /* number of source files that begin in this shard */
    uint64_t hash;                         /* XXH3 of the ids in their form in the file */
    bool has_hash;
    uint64_t tokenizer_hash; /* tokenizer_hash() of the tokenizer */
    bool has_tokenizer_hash;
    char *tokenizer_path; /* where tokenizer.json was when the shard was made; null: unknown */
};

enum shard_format { SHARD_LLMC, SHARD_MEGATRON, SHARD_NANOGPT };

struct shard {
    char *path;
    int width;      /* bytes per id: 1, 2, 4 or 8 */
    bool is_signed; /* negative ids are damage; they read as UINT32_MAX */
    int64_t token_count;
    const void *tokens; /* in the mapping */
    void *map;
    size_t map_bytes;
    bool has_info; /* FILE.bin.json exists */
    struct shard_info info;
};

/* True if the file begins with one of llm.c's magic numbers, or has an index of Megatron's. */
bool shard_recognise(const char *path);
/* Maps a shard of llm.c's or Megatron's format and reads the JSON beside it. Refuses another magic or
 * version, a size that does not match the header or the index, a shard without tokens, and a JSON
 * that is malformed or has another number of tokens. */
int shard_open(struct shard *s, const char *path, struct dt_error *err);
/* The same for ids without a header, which no content can tell from other data: uint16, or uint32 if
 * the JSON beside the file says so ("dtype": "uint32"). */
int shard_open_raw(struct shard *s, const char *path, struct dt_error *err);
void shard_close(struct shard *s);
/* Id number i. An id that no uint32 can hold reads as UINT32_MAX, which is beyond any vocabulary. */
static inline uint32_t shard_id(const struct shard *s, int64_t i)
{
    switch (s->width) {
    case 1:
        return s->is_signed ? (uint32_t)((const int8_t *)s->tokens)[i] : ((const uint8_t *)s->tokens)[i];
    case 2:
        return s->is_signed ? (uint32_t)((const int16_t *)s->tokens)[i] : ((const uint16_t *)s->tokens)[i];
    case 4: /* a negative id becomes one above INT32_MAX */
        return ((const uint32_t *)s->tokens)[i];
    default: {
        uint64_t id = ((const uint64_t *)s->tokens)[i];
        return id < UINT32_MAX ? (uint32_t)id : UINT32_MAX;
    }
    }
}
/* Ids i to i + count. */
void shard_ids(const struct shard *s, int64_t i, int64_t count, uint32_t *out);
/* Reads all ids once: returns the largest, and the hash. */
void shard_measure(const struct shard *s, int64_t *max_id, uint64_t *hash);

/* DT_INVALID if the shards of `info` were not made with the tokenizer of that hash. A shard that does
 * not know the hash of its tokenizer passes. `where`: the shards in the message; `tokenizer`: its path. */
int shard_check_tokenizer(const struct shard_info *info, const char *where, const char *tokenizer, uint64_t hash,
                          struct dt_error *err);

/* What all shards of a run have in common. */
struct shard_form {
    const char *tokenizer;      /* its name */
    const char *tokenizer_path; /* null: it is no file */
    uint64_t tokenizer_hash;    /* of that file */
    int64_t document_end;
    int64_t vocabulary;   /* up to 65536: uint16 ids; more: uint32 */
    int64_t shard_tokens; /* most ids in a shard, 1 to 2^31 - 1 */
};

struct shard_writer;
/* Begins PREFIX-00000.bin, ... in `dir`, which it makes if missing. Until shard_writer_commit the files
 * lie in its folder `.unfinished`. Refuses if there are shards already, unless `overwrite` is set. The
 * writer copies `form`. */
int shard_writer_open(struct shard_writer **out, const char *dir, const char *prefix, const struct shard_form *form,
                      bool overwrite, struct dt_error *err);
/* Takes over the first `count` shards that an earlier run has completed in `.unfinished`, which it reads and
 * checks; the ids that follow go behind them. Call it before any id is added. DT_INVALID if one is damaged or
 * missing. */
int shard_writer_resume(struct shard_writer *w, int count, struct dt_error *err);
/* Names the file that the following ids come from. */
void shard_writer_source(struct shard_writer *w, const char *name);
/* Appends ids, each of which must be below the vocabulary. A shard is complete on disk when it is full. */
int shard_writer_add(struct shard_writer *w, const int32_t *ids, size_t count, struct dt_error *err);
/* The number of ids until the shard is full. */
int64_t shard_writer_room(const struct shard_writer *w);
/* The number of shards that are complete on disk. */
int shard_writer_complete(const struct shard_writer *w);
/* Completes all files on disk, still in `.unfinished`. */
int shard_writer_finish(struct shard_writer *w, struct dt_error *err);
/* After finish: gives the files their names, and removes further shards of an earlier run. After an
 * error the earlier run's shards are unchanged, and none of this run's is left. */
int shard_writer_commit(struct shard_writer *w, struct dt_error *err);
/* The writer's files, for one who gives several sets their names together (worker/data/shards_set.h). */
struct shard_set *shard_writer_set(struct shard_writer *w);
int64_t shard_writer_tokens(const struct shard_writer *w);
int shard_writer_shards(const struct shard_writer *w);
/* Frees the writer and removes what was not committed; with `keep` all but complete shards. Null is
 * allowed. */
void shard_writer_close(struct shard_writer *w, bool keep);

#endif
