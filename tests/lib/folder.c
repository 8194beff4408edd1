#include "tests/lib/folder.h"

#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "/dtrun-test-XXXXXX"

char folder[64];

int folder_setup(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    if (tmp == NULL || strlen(tmp) + sizeof NAME > sizeof folder) {
        tmp = "/tmp";
    }
    (void)snprintf(folder, sizeof folder, "%s" NAME, tmp);
    if (mkdtemp(folder) == NULL) {
        perror(folder);
        return -1;
    }
    return 0;
}

int folder_teardown(void **state)
{
    (void)state;
    struct dt_error err;
    if (dt_file_remove_tree(folder, &err) != 0) {
        (void)fprintf(stderr, "%s\n", err.text);
        return -1;
    }
    return 0;
}
