/* The table of models: add a row for a new file in worker/models. */
#include "worker/model/model.h"

#include <string.h>

static const struct model_ops *const models[] = {&model_gpt2};
enum { MODEL_COUNT = sizeof models / sizeof models[0] };

const struct model_ops *model_find(const char *name)
{
    for (int i = 0; i < MODEL_COUNT; i++) {
        if (strcmp(models[i]->name, name) == 0) {
            return models[i];
        }
    }
    return NULL;
}

const char *model_names(void)
{
    return "gpt2";
}
