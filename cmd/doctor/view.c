/* Ranks and hosts, and how their values stand side by side. */
#include "cmd/doctor/checks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN 4 /* hosts or ranks that are named one by one */

/* The host of a group, made when it is new. */
static struct doctor_host *host_of(struct doctor_view *v, int group, int rank)
{
    for (int h = 0; h < v->host_count; h++) {
        if (v->hosts[h].group == group) {
            return &v->hosts[h];
        }
    }
    v->hosts = dt_realloc(v->hosts, (size_t)(v->host_count + 1) * sizeof *v->hosts);
    struct doctor_host *made = &v->hosts[v->host_count++];
    *made = (struct doctor_host){.group = group, .first = rank};
    facts_init(&made->found);
    if (facts_get(&v->ranks[rank].facts, "host", made->name, 48) == NULL) {
        (void)snprintf(made->name, sizeof made->name, "host %d", group);
    }
    return made;
}

void doctor_view_init(struct doctor_view *v, struct doctor_rank *ranks, int rank_count, bool alone)
{
    *v = (struct doctor_view){.alone = alone, .ranks = ranks, .rank_count = rank_count};
    facts_init(&v->sums);
    for (int r = 0; r < rank_count; r++) {
        if (ranks[r].here) {
            ranks[r].group = (int)facts_number(&ranks[r].facts, "group", 0);
            host_of(v, ranks[r].group, r)->ranks++;
        }
    }
    for (int h = 0; h < v->host_count; h++) {
        bool more = false;
        for (int k = 0; k < v->host_count; k++) { /* names were not changed yet from h on */
            size_t n = strcspn(v->hosts[k].name, "#");
            more = more ||
                   (k != h && strlen(v->hosts[h].name) == n && strncmp(v->hosts[k].name, v->hosts[h].name, n) == 0);
        }
        size_t n = strlen(v->hosts[h].name);
        if (more) {
            (void)snprintf(v->hosts[h].name + n, sizeof v->hosts[h].name - n, "#%d", v->hosts[h].group);
        }
    }
}

void doctor_view_clear(struct doctor_view *v)
{
    for (int r = 0; r < v->rank_count; r++) {
        facts_clear(&v->ranks[r].facts);
    }
    for (int h = 0; h < v->host_count; h++) {
        facts_clear(&v->hosts[h].found);
    }
    facts_clear(&v->sums);
    free(v->ranks);
    free(v->hosts);
    *v = (struct doctor_view){0};
}

void doctor_view_describe(const struct doctor_view *v, struct dt_text *out)
{
    dt_text_printf(out, "%d rank%s on %d host%s:", v->rank_count, v->rank_count == 1 ? "" : "s", v->host_count,
                   v->host_count == 1 ? "" : "s");
    for (int h = 0; h < v->host_count && h < 2 * SHOWN; h++) {
        const struct doctor_host *host = &v->hosts[h];
        dt_text_printf(out, "%s %s (rank%s", h > 0 ? "," : "", host->name, host->ranks == 1 ? "" : "s");
        for (int r = 0, said = 0; r < v->rank_count && said <= 2 * SHOWN; r++) {
            if (v->ranks[r].here && v->ranks[r].group == host->group && ++said <= 2 * SHOWN) {
                dt_text_printf(out, "%s %d", said > 1 ? "," : "", r);
            }
        }
        dt_text_puts(out, host->ranks > 2 * SHOWN ? ", ...)" : ")");
    }
    if (v->host_count > 2 * SHOWN) {
        dt_text_printf(out, " and %d more", v->host_count - 2 * SHOWN);
    }
}

const struct facts *view_host(const struct doctor_view *v, int host)
{
    return &v->ranks[v->hosts[host].first].facts;
}

int view_values(const struct doctor_view *v, const char *name, struct dt_text *out)
{
    enum { BYTES = 512 };
    char first[BYTES], value[BYTES];
    int different = 0, said = 0;
    struct dt_text beside;
    dt_text_init(&beside);
    for (int h = 0; h < v->host_count; h++) {
        bool there = facts_get(view_host(v, h), name, value, sizeof value) != NULL, seen = false;
        for (int k = 0; there && k < h && !seen; k++) {
            seen = facts_get(view_host(v, k), name, first, sizeof first) != NULL && strcmp(first, value) == 0;
        }
        different += there && !seen;
        if (said++ < SHOWN) {
            dt_text_printf(&beside, "%s%s: %s", h > 0 ? "; " : "", v->hosts[h].name, there ? value : "not known");
        }
    }
    if (different <= 1) {
        for (int h = 0; h < v->host_count; h++) {
            if (facts_get(view_host(v, h), name, value, sizeof value) != NULL) {
                dt_text_puts(out, value);
                break;
            }
        }
        if (different == 0) {
            dt_text_puts(out, "not known");
        }
    } else {
        dt_text_puts(out, dt_text_str(&beside));
        if (v->host_count > SHOWN) {
            dt_text_printf(out, "; and %d more hosts", v->host_count - SHOWN);
        }
    }
    dt_text_clear(&beside);
    return different;
}

double view_least(const struct doctor_view *v, const char *name, int *host)
{
    double least = -1;
    for (int h = 0; h < v->host_count; h++) {
        double value = facts_number(view_host(v, h), name, -1);
        if (value >= 0 && (least < 0 || value < least)) {
            least = value;
            if (host != NULL) {
                *host = h;
            }
        }
    }
    return least;
}
