/* Token shards of other programs, for shards.c. */
#ifndef DT_WORKER_DATA_SHARDS_FOREIGN_H
#define DT_WORKER_DATA_SHARDS_FOREIGN_H

#include "worker/data/shards.h"

/* the first bytes of Megatron's index, with the 0 that ends the string */
#define SHARD_INDEX_MAGIC "MMIDIDX\0"

/* True if FILE.idx, the index of a Megatron data set, lies beside FILE.bin. */
bool shard_has_index(const char *path);
/* Takes type and number of ids from the index of a mapped file. Refuses an index whose numbers do not
 * fit its own size, or the size of the file. */
int shard_read_index(struct shard *s, struct dt_error *err);
/* Takes the number of ids of a mapped file without header from its size. */
int shard_read_raw(struct shard *s, struct dt_error *err);
/* Maps a regular file that is not empty, to be read. The caller unmaps it. */
int shard_map(const char *path, void **map, size_t *bytes, struct dt_error *err);

#endif
