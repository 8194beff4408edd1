/* Chat templates: a text is refused with words, or rendered within bounds; what is rendered is UTF-8, twice the
 * same. */
#include "driver.h"

#include "worker/data/templates/template.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

static const char variables_text[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \" H\\u00e9 \", \"n\": 3, \"f\": 2.5, \"l\": [1, \"a\", null]},"
    " {\"role\": \"assistant\", \"content\": \"Yo\"}], \"bos_token\": \"<s>\", \"add_generation_prompt\": true}";

static int render(const struct template *t, struct dt_text *out)
{
    static const struct tm day = {.tm_year = 126, .tm_mon = 10, .tm_mday = 26, .tm_wday = 4, .tm_yday = 329};
    struct dt_error err = {0};
    cJSON *variables = cJSON_Parse(variables_text);
    dt_text_init(out);
    int rc = template_render(t, variables, &day, out, &err);
    cJSON_Delete(variables);
    if (rc != 0 && (err.status != DT_INVALID || out->size != 0)) {
        abort();
    }
    return rc;
}

int dt_fuzz(const uint8_t *data, size_t size)
{
    struct template *t = NULL;
    struct dt_error err = {0};
    if (template_open(&t, "t", (const char *)data, size, &err) != 0) {
        if (err.status != DT_INVALID || err.text[0] == 0) {
            abort();
        }
        return 0;
    }
    struct dt_text a, b;
    if (render(t, &a) != render(t, &b) || a.size != b.size || memcmp(dt_text_str(&a), dt_text_str(&b), a.size) != 0) {
        abort();
    }
    for (size_t i = 0, n; i < a.size; i += n) {
        n = dt_text_character(a.data + i, a.size - i);
        if (n == 0) {
            abort();
        }
    }
    dt_text_clear(&a);
    dt_text_clear(&b);
    template_close(t);
    return 0;
}
