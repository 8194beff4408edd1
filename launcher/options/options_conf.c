/* --rdzv_conf: torchrun's list of settings for the rendezvous. Those that mean something here
 * become the value of our own option for it, unless that is given; scripts pass others, which
 * are taken as they are. */
#include "launcher/options/options_table.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

struct keep_alive { /* c10d's: a host is dead after interval * attempts, 5 s * 3 by default; 0:
                     * not given */
    double interval_s, attempts;
};

/* 1 or 0 for torchrun's words of yes and no, -1 for another. */
static int truth_of(const char *word)
{
    static const char *const words[][2] = {{"0", "1"}, {"false", "true"}, {"f", "t"}, {"no", "yes"}, {"n", "y"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        for (int value = 0; value < 2; value++) {
            if (strcasecmp(word, words[i][value]) == 0) {
                return value;
            }
        }
    }
    return -1;
}

/* Keys whose meaning depends on others, or that only one value of exists here. */
static int read_conf_key(struct options *o, const char *key, const char *value, struct keep_alive *alive,
                         struct dt_error *err)
{
    double number = 0, *into = strcmp(key, "keep_alive_interval") == 0      ? &alive->interval_s
                               : strcmp(key, "keep_alive_max_attempt") == 0 ? &alive->attempts
                                                                            : NULL;
    char shown[64];
    bool is_number = dt_parse_double(value, &number) && number > 0 && number <= 864000;
    if (into != NULL && !is_number) {
        return dt_fail(err, DT_INVALID, "%s: %s: must be a number above 0, at most 864000", key,
                       option_show(value, shown));
    }
    if (into != NULL) {
        *into = number;
    }
    if (strcmp(key, "store_type") == 0 && strcmp(value, "tcp") != 0) {
        return dt_fail(err, DT_INVALID,
                       "store_type: %s: hosts meet over TCP only; leave it out and give --rdzv_endpoint=HOST:PORT",
                       option_show(value, shown));
    }
    /* c10d, and so --standalone, ignores `timeout`, and scripts pass anything there. */
    bool is_static = o->rdzv_backend != NULL && strcmp(o->rdzv_backend, "static") == 0 && !o->standalone;
    if (strcmp(key, "timeout") == 0 && is_static && !is_number) {
        return dt_fail(err, DT_INVALID, "%s: %s: must be seconds above 0, at most 864000", key,
                       option_show(value, shown));
    }
    if (strcmp(key, "timeout") == 0 && is_static && o->sources[OPTION_join_timeout] == OPTIONS_FROM_DEFAULT) {
        o->join_timeout_s = number;
    }
    if (strcmp(key, "is_host") == 0 && (o->is_host = truth_of(value)) < 0) {
        return dt_fail(err, DT_INVALID, "%s: %s: must be true or false", key, option_show(value, shown));
    }
    return 0;
}

/* Other keys are accepted; one that is nearly a known one was meant to have an effect. */
static void warn_of_typo(struct options *o, const struct option_row *row, const char *key)
{
    static const char *const known[] = {"join_timeout",
                                        "last_call_timeout",
                                        "keep_alive_interval",
                                        "keep_alive_max_attempt",
                                        "is_host",
                                        "timeout",
                                        "store_type",
                                        "protocol",
                                        "cacert",
                                        "cert",
                                        "key",
                                        "user_file",
                                        "etcd_prefix",
                                        "close_timeout",
                                        "heartbeat_timeout",
                                        "read_timeout",
                                        "use_libuv",
                                        "rank"}; /* the last five are torchrun's alone */
    const char *near = dt_text_nearest(key, known, sizeof known / sizeof *known);
    if (near != NULL && strcmp(near, key) != 0) {
        char shown[64];
        option_warn(o, "--%s: %s: unknown, without effect; did you mean %s?", row->name, option_show(key, shown), near);
    }
}

/* Keys and values as torchrun splits them. */
int option_parse_conf(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    struct keep_alive alive = {0, 0};
    static const struct {
        const char *key;
        enum option option; /* our own option for it wins when given */
        size_t offset;
    } known[] = {{"join_timeout", OPTION_join_timeout, offsetof(struct options, join_timeout_s)},
                 {"last_call_timeout", OPTION_last_call, offsetof(struct options, last_call_s)}};
    static const struct {
        const char *key;
        size_t offset;
    } words[] = {{"protocol", offsetof(struct options, etcd.protocol)},
                 {"cacert", offsetof(struct options, etcd.cacert)},
                 {"cert", offsetof(struct options, etcd.cert)},
                 {"key", offsetof(struct options, etcd.key)},
                 {"user_file", offsetof(struct options, etcd.user_file)},
                 {"etcd_prefix", offsetof(struct options, etcd.prefix)}};
    o->rdzv_conf = dt_arena_strdup(&o->arena, text);
    o->is_host = -1;
    char *copy = dt_arena_strdup(&o->arena, text);
    char *rest = copy;
    for (char *piece; copy[0] != '\0' && (piece = strsep(&rest, ",")) != NULL;) {
        char *value = strchr(piece, '=');
        if (value != NULL) {
            *value++ = '\0';
            value += strspn(value, " ");
            for (char *end = value + strlen(value); end > value && end[-1] == ' '; end--) {
                end[-1] = '\0';
            }
        }
        piece += strspn(piece, " ");
        for (char *end = piece + strlen(piece); end > piece && end[-1] == ' '; end--) {
            end[-1] = '\0';
        }
        if (piece[0] == '\0' || value == NULL || value[0] == '\0') {
            char shown[64];
            return dt_fail(err, DT_INVALID, "%s: must be KEY=VALUE,KEY=VALUE; example: --%s=join_timeout=300",
                           option_show(text, shown), row->name);
        }
        if (read_conf_key(o, piece, value, &alive, err) != 0) {
            return -1;
        }
        warn_of_typo(o, row, piece);
        for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
            if (strcmp(piece, words[i].key) == 0) {
                *(char **)(void *)((char *)o + words[i].offset) = dt_arena_strdup(&o->arena, value);
            }
        }
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
            double seconds;
            if (strcmp(piece, known[i].key) == 0) {
                if (!dt_parse_double(value, &seconds) || seconds <= 0 || seconds > 864000) {
                    char shown[64];
                    return dt_fail(err, DT_INVALID, "%s: %s: must be seconds above 0, at most 864000", piece,
                                   option_show(value, shown));
                }
                if (o->sources[known[i].option] == OPTIONS_FROM_DEFAULT) {
                    *(double *)(void *)((char *)o + known[i].offset) = seconds;
                }
            }
        }
    }
    bool given = alive.interval_s > 0 || alive.attempts > 0;
    if (given && o->sources[OPTION_dead_after] == OPTIONS_FROM_DEFAULT) {
        o->dead_after_s = (alive.interval_s > 0 ? alive.interval_s : 5) * (alive.attempts > 0 ? alive.attempts : 3);
    }
    return 0;
}
