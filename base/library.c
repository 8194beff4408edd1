/* Finds libraries and functions through the dynamic loader. */
#include "base/library.h"

#include <dlfcn.h>
#include <string.h>

void *dt_library_open(const char *const *names, size_t count)
{
    void *library = NULL;
    for (size_t i = 0; i < count && library == NULL; i++) {
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    }
    return library;
}

const char *dt_library_find(void *library, const struct dt_symbol *symbols, size_t count)
{
    const char *missing = NULL;
    for (size_t i = 0; i < count; i++) {
        void *found = dlsym(library, symbols[i].name);
        memcpy(symbols[i].place, &found, sizeof found);
        missing = missing == NULL && found == NULL ? symbols[i].name : missing;
    }
    return missing;
}
