/* Libraries that are loaded on demand, and their functions. */
#ifndef DT_BASE_LIBRARY_H
#define DT_BASE_LIBRARY_H

#include <stddef.h>

struct dt_symbol {
    const char *name;
    void *place; /* points to a pointer to the function */
};

/* Loads the first of `names` that exists. It stays loaded until dlclose. Null: none exists. */
void *dt_library_open(const char *const *names, size_t count);
/* Sets all pointers, to null where the library lacks the symbol. Returns the first name that it
 * lacks, or null. */
const char *dt_library_find(void *library, const struct dt_symbol *symbols, size_t count);

#endif
