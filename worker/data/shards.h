/* Token shards in llm.c's format: a header of 256 int32, then the ids. FILE.bin.json beside
 * FILE.bin has what the header lacks (tokenizer, vocabulary, hash). They are read by mapping. The
 * writer makes either all shards of a run appear, or none. */
#ifndef DT_WORKER_DATA_SHARDS_H
#define DT_WORKER_DATA_SHARDS_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SHARD_HEADER_BYTES = 1024, SHARD_MAGIC_U16 = 20240520, SHARD_MAGIC_U32 = 20240801, SHARD_TOKENIZER_BYTES = 64 };

struct shard_info {
    char tokenizer[SHARD_TOKENIZER_BYTES]; /* "bytes"; "": unknown */
    int64_t vocabulary;                    /* size of the tokenizer's vocabulary; 0: unknown */
    int64_t max_id;                        /* largest id in the file; -1: unknown */
    int64_t source_count;                  /* number of source files that begin in this shard */
    uint64_t hash;                         /* XXH3 of the ids in their form in the file */
    bool has_hash;
};

struct shard {
    char *path;
    int width; /* bytes per id: 2 or 4 */
    int64_t token_count;
    const void *tokens; /* in the mapping */
    void *map;
    size_t map_bytes;
    bool has_info; /* FILE.bin.json exists */
    struct shard_info info;
};

/* True if the file begins with one of the magic numbers. */
bool shard_recognise(const char *path);
/* Maps a shard and reads the JSON beside it. Refuses another magic or version, a size that does not
 * match the header, a shard without tokens, and a JSON that is malformed or has another number of
 * tokens. */
int shard_open(struct shard *s, const char *path, struct dt_error *err);
void shard_close(struct shard *s);
/* Id number i. */
static inline uint32_t shard_id(const struct shard *s, int64_t i)
{
    return s->width == 2 ? ((const uint16_t *)s->tokens)[i] : ((const uint32_t *)s->tokens)[i];
}
/* Reads all ids once: returns the largest, and the hash. */
void shard_measure(const struct shard *s, int64_t *max_id, uint64_t *hash);

struct shard_writer;
/* Begins PREFIX-00000.bin, ... in `dir`, which it makes if missing: uint16 ids, at most
 * shard_tokens per file (1 to 2^31 - 1). The files have temporary names until shard_writer_commit.
 * Refuses if there are shards already, unless `overwrite` is set. */
int shard_writer_open(struct shard_writer **out, const char *dir, const char *prefix, const char *tokenizer,
                      int64_t vocabulary, int64_t shard_tokens, bool overwrite, struct dt_error *err);
/* Names the file that the following ids come from. */
void shard_writer_source(struct shard_writer *w, const char *name);
/* Appends ids, each of which must be below the vocabulary. */
int shard_writer_add(struct shard_writer *w, const uint16_t *ids, size_t count, struct dt_error *err);
/* Completes all files on disk, still under temporary names. */
int shard_writer_finish(struct shard_writer *w, struct dt_error *err);
/* After finish: gives the files their names, and removes further shards of an earlier run. After an
 * error the earlier run's shards are unchanged, and none of this run's is left. */
int shard_writer_commit(struct shard_writer *w, struct dt_error *err);
int64_t shard_writer_tokens(const struct shard_writer *w);
int shard_writer_shards(const struct shard_writer *w);
/* Frees the writer and removes what was not committed. Null is allowed. */
void shard_writer_close(struct shard_writer *w);

#endif
