/* Lines and their form; what is worth a line, the checks decide. */
#include "cmd/doctor/report.h"

#include <stdio.h>
#include <string.h>

static const char *name_of(enum doctor_level level)
{
    switch (level) {
    case DOCTOR_OK:
        return "ok";
    case DOCTOR_INFO:
        return "info";
    case DOCTOR_WARN:
        return "warn";
    case DOCTOR_FAIL:
        return "fail";
    case DOCTOR_LEVEL_COUNT:
        break;
    }
    return "unknown";
}

void doctor_report_init(struct doctor_report *r, bool json)
{
    *r = (struct doctor_report){.json = json, .group = "", .check = ""};
    dt_text_init(&r->out);
}

void doctor_report_clear(struct doctor_report *r)
{
    dt_text_clear(&r->out);
}

static void say_json(struct doctor_report *r, enum doctor_level level, const char *finding, const char *advice)
{
    const char *const pairs[][2] = {
        {"group", r->group}, {"check", r->check}, {"level", name_of(level)}, {"finding", finding}, {"advice", advice}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        dt_text_printf(&r->out, "%s\"%s\": ", i == 0 ? "{" : ", ", pairs[i][0]);
        dt_text_json(&r->out, pairs[i][1], strlen(pairs[i][1]));
    }
    dt_text_puts(&r->out, "}\n");
}

void doctor_say(struct doctor_report *r, enum doctor_level level, const char *advice, const char *fmt, ...)
{
    struct dt_text finding, line;
    va_list args;
    dt_text_init(&finding);
    dt_text_init(&line);
    va_start(args, fmt);
    dt_text_vprintf(&finding, fmt, args);
    va_end(args);
    dt_text_make_harmless(finding.data, false); /* texts of other hosts go to a terminal */
    advice = advice != NULL ? advice : "";
    dt_text_printf(&line, "%s: %s%s%s", r->check, dt_text_str(&finding), advice[0] != '\0' ? "; " : "", advice);
    if (level == DOCTOR_FAIL && r->counts[DOCTOR_FAIL] == 0) {
        (void)snprintf(r->first_fail, sizeof r->first_fail, "%s", dt_text_str(&line));
    }
    r->counts[level]++;
    if (r->json) {
        say_json(r, level, dt_text_str(&finding), advice);
    } else {
        if (r->heading == NULL || strcmp(r->heading, r->group) != 0) {
            dt_text_printf(&r->out, "\n%s\n", r->group);
            r->heading = r->group;
        }
        dt_text_printf(&r->out, "  %-4s  ", name_of(level));
        dt_text_wrap(&r->out, dt_text_str(&line), 8);
    }
    dt_text_clear(&finding);
    dt_text_clear(&line);
}

void doctor_report_end(struct doctor_report *r)
{
    if (!r->json) {
        dt_text_printf(&r->out, "\n%d ok, %d warn, %d fail\n", r->counts[DOCTOR_OK], r->counts[DOCTOR_WARN],
                       r->counts[DOCTOR_FAIL]);
    }
}
