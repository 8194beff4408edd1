#include "launcher/options/bundled.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct bundled rows[] = {
    {.name = "train", .trains = true, .max_restarts = 3},
    {.name = "bench"},
    {.name = "doctor", .is_told = true},
};

char *bundled_file(struct dt_arena *arena, const char *name)
{
    char *dir = dt_file_program_dir();
    char *found = NULL;
    for (size_t i = 0; dir != NULL && found == NULL && i < 2; i++) {
        char *candidate = i == 0 ? dt_arena_printf(arena, "%s/%s", dir, name)
                                 : dt_arena_printf(arena, "%s/../libexec/dtrun/%s", dir, name);
        found = dt_file_is_program(candidate) ? candidate : NULL;
    }
    free(dir);
    return found;
}

static bool is_same_file(const char *own, const char *program)
{
    struct stat a, b;
    return own != NULL && stat(own, &a) == 0 && stat(program, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

const struct bundled *bundled_find(struct dt_arena *arena, const char *program)
{
    const char *slash = strrchr(program, '/'), *base = slash != NULL ? slash + 1 : program;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(base, rows[i].name) == 0) {
            return slash == NULL || is_same_file(bundled_file(arena, base), program) ? &rows[i] : NULL;
        }
    }
    return NULL;
}
