/* The command line and the variables from hostile bytes: words end at a newline, those before an
 * empty line are the environment. */
#include "driver.h"

#include "launcher/options/options.h"

#include <stdlib.h>
#include <string.h>

int dt_fuzz(const uint8_t *data, size_t size)
{
    char *words[64] = {0};
    char *env[64] = {0};
    int argc = 1;
    int env_count = 0;
    char *copy = malloc(size + 1);
    if (copy == NULL) {
        return 0;
    }
    if (size > 0) {
        memcpy(copy, data, size);
    }
    copy[size] = '\0';
    words[0] = copy + size;
    bool variables = true;
    for (char *p = copy, *word; (word = strsep(&p, "\n")) != NULL;) {
        if (variables && *word == '\0') {
            variables = false;
        } else if (variables && env_count < 63) {
            env[env_count++] = word;
        } else if (!variables && argc < 63) {
            words[argc++] = word;
        }
    }
    struct options *o = malloc(sizeof *o);
    struct dt_error err;
    if (o != NULL && options_read(o, argc, words, env, &err) == 0) {
        if (o->action == OPTIONS_RUN || o->action == OPTIONS_DRY_RUN) {
            struct dt_text text;
            dt_text_init(&text);
            options_describe(o, (char *[]){NULL}, &text);
            dt_text_clear(&text);
            if (o->program.name == NULL || o->world.nproc < 1 || o->world.nproc > OPTIONS_MAX_LOCAL ||
                o->rdzv.run_id == NULL || o->rdzv.master_addr == NULL) {
                abort();
            }
        }
        options_clear(o);
    }
    free(o);
    free(copy);
    return 0;
}
