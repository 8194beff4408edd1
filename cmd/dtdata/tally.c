/* See the header. */
#include "cmd/dtdata/tally.h"

#include "base/text.h"
#include "cmd/dtdata/records.h"

#include <stdio.h>

void tally_add(struct tally *t, enum tally_kind kind, long long count, const char *where)
{
    struct corpus_left_out *x = &t->of[kind];
    if (x->count == 0 && count > 0) {
        (void)snprintf(x->first, sizeof x->first, "%s", where);
    }
    x->count += count;
}

void tally_join(struct tally *t, const struct tally *later)
{
    for (int kind = 0; kind < TALLY_KINDS; kind++) {
        tally_add(t, (enum tally_kind)kind, later->of[kind].count, later->of[kind].first);
    }
}

static void say(enum tally_kind kind, const struct corpus_left_out *x, const struct record_form *form)
{
    const char *who = record_option(form, RECORD_PROGRAM);
    const char *s = x->count == 1 ? "" : "s";
    switch (kind) {
    case TALLY_MARKS:
        dt_text_say(stderr, "%s: left out %lld byte order mark%s; the first begins %s", who, x->count, s, x->first);
        return;
    case TALLY_NO_TEXT:
        dt_text_say(stderr,
                    "%s: left out %lld record%s with \\u0000 or half of a surrogate pair in the text; the first is %s",
                    who, x->count, s, x->first);
        return;
    case TALLY_REPLACED:
        dt_text_say(stderr, "%s: replaced %lld part%s that %s not UTF-8 by U+FFFD; the first is %s", who, x->count, s,
                    x->count == 1 ? "is" : "are", x->first);
        return;
    case TALLY_BROKEN:
        dt_text_say(stderr, "%s: skipped %lld broken record%s; the first: %s", who, x->count, s, x->first);
        return;
    case TALLY_EMPTY:
        dt_text_say(stderr, "%s: skipped %lld document%s without text; the first is %s", who, x->count, s, x->first);
        return;
    case TALLY_TRUNCATED:
        dt_text_say(stderr, "%s: cut %lld row%s to %s, or else to what tokenizer.json says; the first is %s", who,
                    x->count, s, record_option(form, RECORD_LENGTH), x->first);
        return;
    case TALLY_KINDS:
        return;
    }
}

void tally_say(const struct tally *t, const struct record_form *form)
{
    for (int kind = 0; kind < TALLY_KINDS; kind++) {
        if (t->of[kind].count > 0) {
            say((enum tally_kind)kind, &t->of[kind], form);
        }
    }
}
