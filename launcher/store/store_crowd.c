/* Chooses the connections to close when there are more than allowed. A connection counts only after
 * its first bytes: an agent's link is no store client, and a client that the store does not serve
 * must not push out another. */
#include "base/clock.h"
#include "base/log.h"
#include "launcher/store/store_private.h"

#include <stdlib.h>
#include <string.h>

enum {
    crowd_line_s = 60,
    silent_least = 16 /* so many silent connections are kept even while all places are taken */
};

struct holder { /* of one connection: its owner */
    struct store_guest guest;
    int pid;
    size_t age; /* 0: the newest */
    struct store_client *client;
};

static void say(struct store_server *s, const char *whose)
{
    double now_s = dt_now_s();
    s->dropped++;
    s->crowd_unsaid++;
    if (s->crowd_s == 0 || now_s - s->crowd_s >= crowd_line_s) {
        dt_log(DT_LOG_WARN, "store", "more than %zu connections: %d closed, newest first of %s",
               s->options.client_count, s->crowd_unsaid, whose);
        s->crowd_s = now_s;
        s->crowd_unsaid = 0;
    }
}

void store_crowd_came(struct store_server *s, struct store_client *newest)
{
    size_t most = s->options.client_count, left = most > s->active.count ? most - s->active.count : 0;
    size_t least = most / 64 < silent_least ? most / 64 + 1 : silent_least;
    if (s->fresh.count > (left > least ? left : least)) {
        store_client_drop(newest->next, NULL);
        say(s, "those that say nothing");
    }
}

static int compare_guests(const struct store_guest *a, const struct store_guest *b)
{
    int order = memcmp(a->address, b->address, sizeof a->address);
    return order != 0 ? order : (a->user > b->user) - (a->user < b->user);
}

static int compare_holders(const void *a, const void *b)
{
    const struct holder *x = a, *y = b;
    int order = compare_guests(&x->guest, &y->guest);
    order = order != 0 ? order : (x->pid > y->pid) - (x->pid < y->pid);
    return order != 0 ? order : (x->age > y->age) - (x->age < y->age);
}

/* The longest run in list[0 .. count) of one guest, or of one pid. */
static struct holder *longest_run(struct holder *list, size_t count, bool by_pid, size_t *size)
{
    struct holder *best = list;
    *size = 0;
    for (size_t from = 0, to; from < count; from = to) {
        for (to = from + 1; to < count && (by_pid ? list[to].pid == list[from].pid
                                                  : compare_guests(&list[to].guest, &list[from].guest) == 0);
             to++) {
        }
        if (to - from > *size) {
            best = list + from;
            *size = to - from;
        }
    }
    return best;
}

/* A client's pid is only its own claim. A false pid cannot take places from another host or user,
 * because the guest is compared first. */
void store_crowd_greeted(struct store_server *s, struct store_client *newest)
{
    char whose[320], name[256];
    size_t count = 0, of_guest = 0, of_pid = 0;
    if (s->active.count <= s->options.client_count || s->active.count < 2) {
        return;
    }
    struct holder *list = dt_alloc(s->active.count * sizeof *list);
    for (struct store_client *c = s->active.first; c != NULL; c = c->next) {
        if (c != newest) {
            list[count] = (struct holder){.guest = c->guest, .pid = c->pid, .age = count, .client = c};
            count++;
        }
    }
    qsort(list, count, sizeof *list, compare_holders);
    struct holder *guest = longest_run(list, count, false, &of_guest),
                  *most = longest_run(guest, of_guest, true, &of_pid);
    (void)store_client_name(most->client, name, sizeof name);
    (void)snprintf(whose, sizeof whose, "whoever has most: %zu like that from %s, pid %d", of_pid, name, most->pid);
    store_client_drop(most->client, NULL);
    say(s, whose);
    free(list);
}
