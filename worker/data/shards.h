/* Token shards as llm.c has them: 256 int32 of header, then the ids; beside FILE.bin lies
 * FILE.bin.json with what the header does not say (tokenizer, vocabulary, hash). Reading by
 * mapping; writing so that either all shards of a run appear or none. */
#ifndef DT_WORKER_DATA_SHARDS_H
#define DT_WORKER_DATA_SHARDS_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SHARD_HEADER_BYTES = 1024, SHARD_MAGIC_U16 = 20240520, SHARD_MAGIC_U32 = 20240801, SHARD_TOKENIZER_BYTES = 64 };

struct shard_info {
    char tokenizer[SHARD_TOKENIZER_BYTES]; /* "bytes"; "" when unknown */
    int64_t vocabulary;                    /* of the tokenizer; 0: unknown */
    int64_t max_id;                        /* largest id in the file; -1: unknown */
    int64_t source_count;                  /* files that begin in this shard */
    uint64_t hash;                         /* XXH3 of the ids as they lie in the file */
    bool has_hash;
};

struct shard {
    char *path;
    int width; /* bytes per id: 2 or 4 */
    int64_t token_count;
    const void *tokens; /* in the mapping */
    void *map;
    size_t map_bytes;
    bool has_info; /* there is a FILE.bin.json */
    struct shard_info info;
};

/* True when the file begins with one of the magic numbers. */
bool shard_recognise(const char *path);
/* Maps a shard and reads the JSON beside it. Refused: another magic or version, a size that is
 * not that of the header, no tokens, a JSON that is malformed or speaks of another number of
 * tokens. */
int shard_open(struct shard *s, const char *path, struct dt_error *err);
void shard_close(struct shard *s);
/* Id number i. */
static inline uint32_t shard_id(const struct shard *s, int64_t i)
{
    return s->width == 2 ? ((const uint16_t *)s->tokens)[i] : ((const uint32_t *)s->tokens)[i];
}
/* Reads all ids once: the largest, and the hash. */
void shard_measure(const struct shard *s, int64_t *max_id, uint64_t *hash);

struct shard_writer;
/* Begins PREFIX-00000.bin, ... in `dir` (made when missing), uint16 ids, at most shard_tokens
 * per file (1 to 2^31 - 1). Until shard_writer_commit the files have other names. Refuses to add
 * to shards that are there, unless `overwrite`. */
int shard_writer_open(struct shard_writer **out, const char *dir, const char *prefix, const char *tokenizer,
                      int64_t vocabulary, int64_t shard_tokens, bool overwrite, struct dt_error *err);
/* Says that the ids that follow come from this file. */
void shard_writer_source(struct shard_writer *w, const char *name);
/* Appends ids; each must be below the vocabulary. */
int shard_writer_add(struct shard_writer *w, const uint16_t *ids, size_t count, struct dt_error *err);
/* Completes all files on disk, still under their other names. */
int shard_writer_finish(struct shard_writer *w, struct dt_error *err);
/* After finish: gives the files their names and removes shards of an earlier run beyond them. On
 * an error none of this run's shards is left, and those of the earlier run are as they were. */
int shard_writer_commit(struct shard_writer *w, struct dt_error *err);
int64_t shard_writer_tokens(const struct shard_writer *w);
int shard_writer_shards(const struct shard_writer *w);
/* Frees; removes what was not committed. Null is harmless. */
void shard_writer_close(struct shard_writer *w);

#endif
