/* --rdzv_conf: torchrun's list of settings for the rendezvous. A key that means something here
 * becomes the value of our own option for it, unless that is given. Scripts pass other keys, and
 * keys of other back ends; those have no effect. */
#include "launcher/options/rendezvous.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define MOST_S 864000.0
#define ALIVE_S 5.0      /* c10d: keep_alive_interval that is not given */
#define ALIVE_ATTEMPTS 3 /* and keep_alive_max_attempt: a host is dead after their product */

struct conf {
    struct options *o;
    double interval_s, attempts; /* keep_alive; 0: not given */
};

/* ---- values ---- */

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

/* unit: "seconds" or "a number", for the message. */
static int read_number(const struct conf_key *key, const char *value, const char *unit, double *out,
                       struct dt_error *err)
{
    char shown[64];
    if (!dt_parse_double(value, out) || *out <= 0 || *out > MOST_S) {
        return dt_fail(err, DT_INVALID, "%s: %s: must be %s above 0, at most %.0f", key->name,
                       option_show(value, shown), unit, MOST_S);
    }
    return 0;
}

static int take_seconds(struct conf *c, const struct conf_key *key, const char *value, struct dt_error *err)
{
    double seconds;
    if (read_number(key, value, "seconds", &seconds, err) != 0) {
        return -1;
    }
    if (c->o->sources[key->option] == OPTIONS_FROM_DEFAULT) {
        *(double *)(void *)((char *)c->o + key->offset) = seconds;
    }
    return 0;
}

static int take_alive(struct conf *c, const struct conf_key *key, const char *value, struct dt_error *err)
{
    return read_number(key, value, "a number", (double *)(void *)((char *)c + key->offset), err);
}

static int take_is_host(struct conf *c, const struct conf_key *key, const char *value, struct dt_error *err)
{
    char shown[64];
    c->o->rdzv.is_host = truth_of(value);
    return c->o->rdzv.is_host < 0
               ? dt_fail(err, DT_INVALID, "%s: %s: must be true or false", key->name, option_show(value, shown))
               : 0;
}

static int take_store_type(struct conf *c, const struct conf_key *key, const char *value, struct dt_error *err)
{
    char shown[64];
    (void)c;
    return strcmp(value, "tcp") != 0
               ? dt_fail(err, DT_INVALID,
                         "%s: %s: hosts meet over TCP only; leave it out and give --rdzv_endpoint=HOST:PORT", key->name,
                         option_show(value, shown))
               : 0;
}

static int take_word(struct conf *c, const struct conf_key *key, const char *value, struct dt_error *err)
{
    (void)err;
    *(char **)(void *)((char *)c->o + key->offset) = dt_arena_strdup(&c->o->arena, value);
    return 0;
}

/* ---- keys ---- */

#define AT(member) offsetof(struct options, member)

static const struct conf_key conf_of_all[] = {
    {"join_timeout", take_seconds, AT(rdzv.join_timeout_s), OPTION_join_timeout},
    {"last_call_timeout", take_seconds, AT(rdzv.last_call_s), OPTION_last_call},
    {"keep_alive_interval", take_alive, offsetof(struct conf, interval_s), OPTION_COUNT},
    {"keep_alive_max_attempt", take_alive, offsetof(struct conf, attempts), OPTION_COUNT},
    {"is_host", take_is_host, 0, OPTION_COUNT},
    {"store_type", take_store_type, 0, OPTION_COUNT},
    /* torchrun's alone */
    {"close_timeout", NULL, 0, OPTION_COUNT},
    {"heartbeat_timeout", NULL, 0, OPTION_COUNT},
    {"read_timeout", NULL, 0, OPTION_COUNT},
    {"use_libuv", NULL, 0, OPTION_COUNT},
    {"rank", NULL, 0, OPTION_COUNT},
    {NULL, NULL, 0, OPTION_COUNT}};

/* c10d ignores `timeout`, and scripts pass anything there. */
const struct conf_key conf_of_static[] = {{"timeout", take_seconds, AT(rdzv.join_timeout_s), OPTION_join_timeout},
                                          {NULL, NULL, 0, OPTION_COUNT}};

const struct conf_key conf_of_etcd[] = {{"protocol", take_word, AT(rdzv.etcd.protocol), OPTION_COUNT},
                                        {"cacert", take_word, AT(rdzv.etcd.cacert), OPTION_COUNT},
                                        {"cert", take_word, AT(rdzv.etcd.cert), OPTION_COUNT},
                                        {"key", take_word, AT(rdzv.etcd.key), OPTION_COUNT},
                                        {"user_file", take_word, AT(rdzv.etcd.user_file), OPTION_COUNT},
                                        {"etcd_prefix", take_word, AT(rdzv.etcd.prefix), OPTION_COUNT},
                                        {NULL, NULL, 0, OPTION_COUNT}};

static const struct conf_key *find_in(const struct conf_key *keys, const char *name)
{
    for (; keys != NULL && keys->name != NULL; keys++) {
        if (strcmp(keys->name, name) == 0) {
            return keys;
        }
    }
    return NULL;
}

/* A key that is nearly a known one was meant to have an effect. */
static void warn_of_typo(struct options *o, const struct option_row *row, const char *key)
{
    enum { MOST = 64 };
    const char *known[MOST];
    size_t count = 0;
    for (int i = -1; i < rendezvous_count; i++) {
        const struct conf_key *k = i < 0 ? conf_of_all : rendezvous_rows[i].conf;
        for (; k != NULL && k->name != NULL && count < MOST; k++) {
            known[count++] = k->name;
        }
    }
    const char *near = dt_text_nearest(key, known, count);
    if (near != NULL && strcmp(near, key) != 0) {
        char shown[64];
        option_warn(o, "--%s: %s: unknown, without effect; did you mean %s?", row->name, option_show(key, shown), near);
    }
}

/* ---- the list ---- */

static char *trim(char *text)
{
    text += strspn(text, " ");
    for (char *end = text + strlen(text); end > text && end[-1] == ' '; end--) {
        end[-1] = '\0';
    }
    return text;
}

/* Keys and values as torchrun splits them. */
int option_parse_conf(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    struct conf c = {.o = o};
    const struct rendezvous *r = o->rdzv.standalone ? rendezvous_find("c10d") : o->rdzv.row;
    o->rdzv.conf = dt_arena_strdup(&o->arena, text);
    o->rdzv.is_host = -1;
    char *copy = dt_arena_strdup(&o->arena, text);
    char *rest = copy;
    for (char *piece; copy[0] != '\0' && (piece = strsep(&rest, ",")) != NULL;) {
        char *value = strchr(piece, '=');
        if (value != NULL) {
            *value = '\0';
            value = trim(value + 1);
        }
        piece = trim(piece);
        if (piece[0] == '\0' || value == NULL || value[0] == '\0') {
            char shown[64];
            return dt_fail(err, DT_INVALID, "%s: must be KEY=VALUE,KEY=VALUE; example: --%s=join_timeout=300",
                           option_show(text, shown), row->name);
        }
        const struct conf_key *key = find_in(conf_of_all, piece);
        key = key != NULL ? key : find_in(r->conf, piece);
        if (key != NULL && key->take != NULL && key->take(&c, key, value, err) != 0) {
            return -1;
        }
        if (key == NULL) {
            warn_of_typo(o, row, piece);
        }
    }
    bool given = c.interval_s > 0 || c.attempts > 0;
    if (given && o->sources[OPTION_dead_after] == OPTIONS_FROM_DEFAULT) {
        o->rdzv.dead_after_s =
            (c.interval_s > 0 ? c.interval_s : ALIVE_S) * (c.attempts > 0 ? c.attempts : ALIVE_ATTEMPTS);
    }
    return 0;
}
