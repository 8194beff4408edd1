#include "launcher/output/cause.h"

#include "launcher/output/report.h"

#include <stdio.h>

void cause_add_what(const struct cause *c, struct dt_text *out)
{
    char name[32], words[CAUSE_WORDS_BYTES + 80] = "";
    if (c->words[0] != '\0') {
        (void)dt_blame_words(&c->blame, c->words, c->rank, words, sizeof words);
    }
    if (c->whole) {
        dt_text_puts(out, words);
        return;
    }
    if (c->stopped_by_us && words[0] != '\0') { /* and took its time to end */
        dt_text_puts(out, "failed");
    } else if (c->exit_code < 0) {
        dt_text_printf(out, "killed by signal %d (%s)", -c->exit_code,
                       report_signal_name(-c->exit_code, name, sizeof name));
    } else {
        dt_text_printf(out, "exit code %d", c->exit_code);
    }
    dt_text_printf(out, "%s%s", words[0] != '\0' ? ": " : "", words);
}

void cause_add_line(const struct cause *c, struct dt_text *out)
{
    if (c->rank < 0) {
        dt_text_puts(out, c->words);
        return;
    }
    dt_text_printf(out, "%s%s%srank %d (local %d, pid %ld): ", c->host[0] != '\0' ? "host " : "", c->host,
                   c->host[0] != '\0' ? " " : "", c->rank, c->local_rank, (long)c->pid);
    cause_add_what(c, out);
}

bool cause_is_heard(const struct cause *c)
{
    return c->blame.told != DT_TOLD_NOT;
}

bool cause_alike(const struct cause *a, const struct cause *b)
{
    return a->exit_code == b->exit_code && a->digest == b->digest;
}
