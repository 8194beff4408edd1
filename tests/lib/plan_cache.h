/* Plan files in a test's own folder (folder.h), and what is said of them. */
#ifndef DT_TESTS_LIB_PLAN_CACHE_H
#define DT_TESTS_LIB_PLAN_CACHE_H

#include <stdbool.h>
#include <stddef.h>

struct dt_text;

/* From now on plan files lie in folder/NAME, which is a new one if `fresh`. */
void plan_cache_use(const char *name, bool fresh);
/* The path of the only plan file of that kind ("matmul", "attention") there; fails the test
 * where there is none. */
void plan_cache_find(const char *kind, char *path, size_t size);
/* In place of what `out` has; fails the test where it can't be read. */
void plan_cache_read(const char *path, struct dt_text *out);
/* Puts a file there that is not to be used: `good` with a byte changed, or cut short, or
 * `instead` with its checksum behind it. */
enum plan_cache_damage { PLAN_CACHE_CHANGED, PLAN_CACHE_CUT, PLAN_CACHE_INSTEAD };
void plan_cache_damage(const char *path, const struct dt_text *good, enum plan_cache_damage kind, const char *instead);
/* What is logged between the two, warnings and worse, goes to `said`. */
int plan_cache_log_begin(void);
void plan_cache_log_end(int fd, struct dt_text *said);

#endif
