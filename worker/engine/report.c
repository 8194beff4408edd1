/* One report to all rows of the table. */
#include "worker/engine/report.h"

#include <stdarg.h>
#include <string.h>

void observers_close(struct observers *all)
{
    for (int i = 0; i < all->count; i++) {
        struct observer *o = &all->list[i];
        if (o->ops->close != NULL) {
            o->ops->close(o);
        }
    }
    memset(all, 0, sizeof *all);
}

void observers_report(struct observers *all, const struct report *r, enum moment moment)
{
    for (int i = 0; i < all->count; i++) {
        all->list[i].ops->report(&all->list[i], r, moment);
    }
}

unsigned observers_vote(struct observers *all)
{
    unsigned votes = 0;
    for (int i = 0; i < all->count; i++) {
        struct observer *o = &all->list[i];
        votes |= o->ops->vote != NULL ? o->ops->vote(o) : 0;
    }
    return votes;
}

int observers_rewind(struct observers *all, int64_t step, bool *evaluated, struct dt_error *err)
{
    *evaluated = false;
    for (int i = 0; i < all->count; i++) {
        struct observer *o = &all->list[i];
        bool found = false;
        if (o->ops->rewind != NULL && o->ops->rewind(o, step, &found, err) != 0) {
            return -1;
        }
        *evaluated = *evaluated || found;
    }
    return 0;
}

/* One line of words. It may hold paths and names, so characters that do not show are made visible. */
static void report_words(struct observers *all, enum moment moment, const char *fmt, va_list args)
{
    struct dt_text words, line;
    dt_text_init(&words);
    dt_text_init(&line);
    dt_text_vprintf(&words, fmt, args);
    dt_text_add_visible(&line, dt_text_str(&words), words.size, false);
    observers_report(all, &(struct report){.words = dt_text_str(&line)}, moment);
    dt_text_clear(&line);
    dt_text_clear(&words);
}

void observers_say(struct observers *all, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    report_words(all, MOMENT_SAID, fmt, args);
    va_end(args);
}

void observers_note(struct observers *all, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    report_words(all, MOMENT_NOTED, fmt, args);
    va_end(args);
}

void observers_event(struct observers *all, const char *name, const char *fields)
{
    observers_report(all, &(struct report){.name = name, .fields = fields}, MOMENT_EVENT);
}
