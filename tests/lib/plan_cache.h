/* Plan files in a test's own folder (folder.h), and the log lines about them. */
#ifndef DT_TESTS_LIB_PLAN_CACHE_H
#define DT_TESTS_LIB_PLAN_CACHE_H

#include <stdbool.h>
#include <stddef.h>

struct dt_text;

/* From now on plan files lie in folder/NAME, which is new if `fresh` is set. */
void plan_cache_use(const char *name, bool fresh);
/* Finds the path of the only plan file of that kind ("matmul", "attention"). Fails the test if
 * there is none. */
void plan_cache_find(const char *kind, char *path, size_t size);
/* Replaces the content of `out` by the file. Fails the test if the file cannot be read. */
void plan_cache_read(const char *path, struct dt_text *out);
/* Writes an unusable file: `good` with a byte changed, or truncated, or `instead` with its
 * checksum. */
enum plan_cache_damage { PLAN_CACHE_CHANGED, PLAN_CACHE_CUT, PLAN_CACHE_INSTEAD };
void plan_cache_damage(const char *path, const struct dt_text *good, enum plan_cache_damage kind, const char *instead);
/* Log lines between the two calls, warnings and worse, go to `said`. */
int plan_cache_log_begin(void);
void plan_cache_log_end(int fd, struct dt_text *said);

#endif
