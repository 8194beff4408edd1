/* Checks of the section `transforms` that span its keys or look at lists. */
#include "worker/job/job_fields.h"

#include <stdio.h>

void job_check_transforms(const struct job_transforms *t, struct dt_config *c)
{
    const struct {
        const char *key;
        const struct dt_numbers *numbers;
        int least, most;
    } lists[] = {{"resize", &t->resize, 0, 2},
                 {"center_crop", &t->center_crop, 0, 2},
                 {"random_crop", &t->random_crop, 0, 2},
                 {"random_resized_crop", &t->random_resized_crop, 0, 2},
                 {"scale", &t->scale, 2, 2},
                 {"ratio", &t->ratio, 2, 2}};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        const struct dt_numbers *n = lists[i].numbers;
        char key[64];
        (void)snprintf(key, sizeof key, "transforms.%s", lists[i].key);
        if (n->count > lists[i].most) {
            dt_config_problem(c, key, "has %d numbers; give one, or height and width", n->count);
        } else if (n->count < lists[i].least || (lists[i].least == 2 && n->of[0] > n->of[1])) {
            dt_config_problem(c, key, "give two numbers, the lesser one first");
        }
    }
    if (t->random_crop.count > 0 && t->random_resized_crop.count > 0) {
        dt_config_problem(c, "transforms.random_crop", "transforms.random_resized_crop does the same (%s); remove one",
                          dt_config_source(c, "transforms.random_resized_crop"));
    }
}
