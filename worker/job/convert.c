#include "worker/job/convert.h"

#include "worker/job/job_fields.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

/* The keys of a section that were given and are good, as members of an object. */
static void print_section(struct job *job, const struct dt_config *c, const struct job_section *s, int indent,
                          struct dt_text *out)
{
    struct job_part parts[2];
    int count = job_parts(job, s, parts);
    for (int i = 0; i < count; i++) {
        for (const struct dt_field *f = parts[i].fields; f->key != NULL; f++) {
            char path[128];
            (void)snprintf(path, sizeof path, "%s%s%s", s->name, *s->name != 0 ? "." : "", f->key);
            if (dt_config_taken(c, path)) {
                dt_text_printf(out, "%s%*s\"%s\": ", out->size > 0 ? ",\n" : "", indent, "", f->key);
                dt_config_format(f, parts[i].in, out);
            }
        }
    }
}

/* Keys of DeepSpeed that a job takes beside its own, as the batch that they mean depends on the number of ranks. */
static void print_batch(const struct dt_config *c, struct dt_text *out)
{
    static const char *const keys[] = {"elasticity", "train_batch_size"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const cJSON *value = dt_config_taken(c, keys[i]) ? dt_config_value(c, keys[i]) : NULL;
        char *text = cJSON_IsNumber(value) || cJSON_IsObject(value) ? cJSON_PrintUnformatted(value) : NULL;
        if (text != NULL) {
            dt_text_printf(out, "%s  \"%s\": %s", out->size > 0 ? ",\n" : "", keys[i], text);
        }
        cJSON_free(text);
    }
}

static void print_given(struct job *job, const struct dt_config *c, struct dt_text *out)
{
    struct dt_text all, members;
    dt_text_init(&all);
    dt_text_init(&members);
    for (const struct job_section *s = job_sections; s->name != NULL; s++) {
        dt_text_reset(&members);
        print_section(job, c, s, *s->name != 0 ? 4 : 2, &members);
        if (members.size > 0 && *s->name == 0) {
            dt_text_puts(&all, members.data);
        } else if (members.size > 0) {
            dt_text_printf(&all, "%s  \"%s\": {\n%s\n  }", all.size > 0 ? ",\n" : "", s->name, members.data);
        }
    }
    print_batch(c, &all);
    dt_text_printf(out, "{\n%s\n}\n", dt_text_str(&all));
    dt_text_clear(&all);
    dt_text_clear(&members);
}

int job_convert(const struct job_arguments *args, struct dt_text *out, struct dt_text *notes, struct dt_error *err)
{
    struct job_arguments converts = *args;
    struct dt_text inert;
    converts.converts = true;
    dt_text_init(&inert);
    (void)job_look(&converts, print_given, out, &inert, notes, err);
    for (const char *p = dt_text_str(&inert); *p != 0; p += *p == '\n') {
        size_t size = strcspn(p, "\n");
        dt_text_printf(notes, "%.*s: no effect\n", (int)size, p);
        p += size;
    }
    dt_text_clear(&inert);
    return out->size > 0 ? 0 : -1;
}
