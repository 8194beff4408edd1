/* Libraries that are loaded when they are needed, and their functions. */
#ifndef DT_BASE_LIBRARY_H
#define DT_BASE_LIBRARY_H

#include <stddef.h>

struct dt_symbol {
    const char *name;
    void *place; /* of a pointer to the function */
};

/* The first of `names` that the loader has, for good or until dlclose; null when none is here. */
void *dt_library_open(const char *const *names, size_t count);
/* Sets the places of all symbols, null where the library lacks one. The name of the first one
 * that it lacks, or null. */
const char *dt_library_find(void *library, const struct dt_symbol *symbols, size_t count);

#endif
