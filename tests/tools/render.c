/* Templates of stories: `render` reads a JSON object a line, {"t": TEMPLATE, "c": VARIABLES}, and answers with one:
 * {"out": TEXT}, or {"error": WORDS}. */
#include "base/text.h"
#include "worker/data/templates/template.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void answer(const cJSON *asked)
{
    static const struct tm day = {.tm_year = 126, .tm_mon = 10, .tm_mday = 26, .tm_wday = 4, .tm_yday = 329};
    const char *text = cJSON_GetObjectItemCaseSensitive(asked, "t")->valuestring;
    struct template *t = NULL;
    struct dt_error err;
    struct dt_text out, line;
    dt_text_init(&out);
    dt_text_init(&line);
    bool good = template_open(&t, "t", text, strlen(text), &err) == 0 &&
                template_render(t, cJSON_GetObjectItemCaseSensitive(asked, "c"), &day, &out, &err) == 0;
    dt_text_puts(&line, good ? "{\"out\": " : "{\"error\": ");
    dt_text_json(&line, good ? dt_text_str(&out) : err.text, good ? out.size : strlen(err.text));
    (void)printf("%s}\n", dt_text_str(&line));
    template_close(t);
    dt_text_clear(&out);
    dt_text_clear(&line);
}

int main(void)
{
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stdin) > 0) {
        cJSON *asked = cJSON_Parse(line);
        answer(asked);
        (void)fflush(stdout);
        cJSON_Delete(asked);
    }
    free(line);
    return 0;
}
