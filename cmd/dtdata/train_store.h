/* Large arrays that may be larger than the memory that the program is to use. They are plain memory
 * until the whole process comes near its limit. From then on they are mapped from files without a
 * name, at the same addresses, and the process gives their pages back to the system whenever it
 * comes near the limit again. So an algorithm gives the same result with any limit. */
#ifndef DT_CMD_DTDATA_TRAIN_STORE_H
#define DT_CMD_DTDATA_TRAIN_STORE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct store;

/* dir: the folder of the files. limit_bytes: resident memory of the whole process; below what the
 * program itself needs, the arrays get 2 MiB. */
struct store *store_open(const char *dir, int64_t limit_bytes);
/* Frees all arrays, too. Null is allowed. */
void store_close(struct store *s);
/* Zeroed memory, which may be larger than the limit. DT_NO_MEMORY, or DT_FULL if the disk is full. */
int store_alloc(struct store *s, void **out, size_t size_bytes, struct dt_error *err);
/* Makes an array larger; it may move. The new part is zero. */
int store_grow(struct store *s, void **at, size_t size_bytes, struct dt_error *err);
void store_free(struct store *s, void *at); /* null is allowed */
/* Keeps the process within its limit. To be called after every few hundred accesses. */
int store_breathe(struct store *s, struct dt_error *err);
/* True from the moment on at which the arrays are in files. */
bool store_in_files(const struct store *s);
/* How often store_breathe has asked for the resident memory, which costs more than a few hundred accesses: rarely
 * while the limit is far. */
int64_t store_looks(const struct store *s);
/* Resident memory of this process; 0: unknown. */
int64_t store_resident(void);

#endif
