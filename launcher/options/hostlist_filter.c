/* NAME[:SLOT,SLOT]@NAME..., as DeepSpeed's launcher reads it: which hosts of a file, and which
 * of their slots, take part. */
#include "launcher/options/hostlist.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pick { /* of one host */
    bool named, whole;
    int *slots; /* each once, in the order of the text */
    int count;
};

static int wrong(struct dt_error *err, const char *spec, size_t size, const char *what)
{
    char shown[44];
    return dt_fail(err, DT_INVALID, "%s: %s", dt_text_excerpt(spec, size, shown, sizeof shown), what);
}

static int find(const struct hostlist *l, const char *name, size_t size)
{
    for (size_t i = 0; i < l->count; i++) {
        if (strlen(l->hosts[i].name) == size && memcmp(l->hosts[i].name, name, size) == 0) {
            return (int)i;
        }
    }
    return -1;
}

static void add_slot(struct pick *p, int slot)
{
    for (int i = 0; i < p->count; i++) {
        if (p->slots[i] == slot) {
            return;
        }
    }
    p->slots = dt_realloc(p->slots, ((size_t)p->count + 1) * sizeof *p->slots);
    p->slots[p->count++] = slot;
}

/* "0,2" of a host into its pick. */
static int read_slots(const struct hostlist_host *h, struct pick *p, const char *spec, size_t spec_size,
                      const char *text, struct dt_error *err)
{
    if (h->slots == 0) {
        return wrong(err, spec, spec_size, "the hostfile says no slots=N of this host, so they have no numbers");
    }
    for (const char *end = spec + spec_size;; text++) {
        int slot = 0, digits = 0;
        for (; text < end && *text >= '0' && *text <= '9' && digits < 7; digits++) {
            slot = 10 * slot + (*text++ - '0');
        }
        if (digits == 0 || (text < end && *text != ',')) {
            return wrong(err, spec, spec_size, "slots must be numbers separated by commas; example: worker-1:0,2");
        }
        if (slot >= h->slots) {
            char what[96];
            (void)snprintf(what, sizeof what, "no slot %d specified on this host, which has %d (from 0)", slot,
                           h->slots);
            return wrong(err, spec, spec_size, what);
        }
        add_slot(p, slot);
        if (text == end) {
            return 0;
        }
    }
}

/* One NAME[:SLOTS]. A name may hold colons (an IPv6 address), so the whole counts first. */
static int read_spec(const struct hostlist *l, struct pick *picks, const char *spec, size_t size, struct dt_error *err)
{
    const char *colon = memrchr(spec, ':', size);
    int i = find(l, spec, size);
    bool whole = i >= 0;
    if (!whole && colon != NULL) {
        i = find(l, spec, (size_t)(colon - spec));
    }
    if (i < 0) {
        return wrong(err, spec, size,
                     size == 0 ? "a name is missing; example: worker-0@worker-1:0,2"
                               : "hostname not found in hostfile");
    }
    picks[i].named = true;
    picks[i].whole = picks[i].whole || whole;
    return whole ? 0 : read_slots(&l->hosts[i], &picks[i], spec, size, colon + 1, err);
}

static bool has_slot(const struct pick *p, int slot)
{
    for (int i = 0; i < p->count; i++) {
        if (p->slots[i] == slot) {
            return true;
        }
    }
    return false;
}

/* Slots that are left of a host, or -1: it takes no part. chosen stays null where all are left. */
static int left_of(const struct hostlist_host *h, struct pick *p, bool exclude, int **chosen)
{
    *chosen = NULL;
    if (!exclude) {
        if (p->whole) {
            return h->slots;
        }
        *chosen = p->slots;
        p->slots = NULL;
        return p->named ? p->count : -1;
    }
    if (!p->named) {
        return h->slots;
    }
    if (p->whole || p->count == h->slots) {
        return -1;
    }
    int left = 0;
    *chosen = dt_alloc((size_t)h->slots * sizeof **chosen);
    for (int slot = 0; slot < h->slots; slot++) {
        if (!has_slot(p, slot)) {
            (*chosen)[left++] = slot;
        }
    }
    return left;
}

static void apply(struct hostlist *l, struct pick *picks, bool exclude)
{
    size_t kept = 0;
    for (size_t i = 0; i < l->count; i++) {
        int *chosen, left = left_of(&l->hosts[i], &picks[i], exclude, &chosen);
        if (left < 0) {
            free(l->hosts[i].name);
            continue;
        }
        l->hosts[kept++] = (struct hostlist_host){.name = l->hosts[i].name, .slots = left, .chosen = chosen};
    }
    l->count = kept;
}

int hostlist_filter(struct hostlist *l, const char *text, bool exclude, struct dt_error *err)
{
    struct pick *picks = dt_alloc((l->count + 1) * sizeof *picks);
    size_t count = l->count;
    int result = 0;
    for (const char *p = text; result == 0; p++) {
        size_t size = strcspn(p, "@");
        result = read_spec(l, picks, p, size, err);
        p += size;
        if (*p == '\0') {
            break;
        }
    }
    if (result == 0) {
        apply(l, picks, exclude);
        result = l->count == 0 ? dt_fail(err, DT_INVALID, "no host is left") : 0;
    }
    for (size_t i = 0; i < count; i++) {
        free(picks[i].slots);
    }
    free(picks);
    return result;
}
