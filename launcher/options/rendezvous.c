/* The back ends of the rendezvous, and what each does with --rdzv_endpoint, --master_addr and
 * --master_port. torchrun's rules, with loopback on one host where nothing else is asked for. */
#include "launcher/options/rendezvous.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#define STATIC_PORT 29500 /* of --master_addr without --master_port */

/* ---- words of an endpoint ---- */

static bool has_endpoint(const struct options *o)
{
    return o->rdzv.endpoint[strspn(o->rdzv.endpoint, " ")] != '\0';
}

static const char *in_brackets(struct options *o, const char *address)
{
    bool bare = strchr(address, ':') != NULL && address[0] != '[';
    return bare ? dt_arena_printf(&o->arena, "[%s]", address) : address;
}

/* --rdzv_endpoint; *host null and *port -1 where it is not given. */
static int read_endpoint(struct options *o, const struct given *g, char **host, int *port, struct dt_error *err)
{
    *host = NULL;
    *port = -1;
    bool bad = has_endpoint(o) && option_parse_endpoint(&o->arena, o->rdzv.endpoint, host, port, err) != 0;
    return bad ? dt_wrap(err, "%s", g->spelled[OPTION_rdzv_endpoint]) : 0;
}

/* --master_addr[:PORT]; *port is left alone without one. */
static int read_address(struct options *o, const struct given *g, char **host, int *port, struct dt_error *err)
{
    bool bad = option_parse_endpoint(&o->arena, in_brackets(o, o->rdzv.master_addr), host, port, err) != 0,
         given = g->value[OPTION_master_addr] != NULL;
    return bad ? dt_wrap(err, "%s", given ? g->spelled[OPTION_master_addr] : "--master_addr") : 0;
}

/* --master_addr that was given and says another host than --rdzv_endpoint. used: which counts,
 * in words. */
static void warn_address(struct options *o, const struct given *g, const char *host, const char *used)
{
    int row = OPTION_master_addr;
    char shown[64];
    if (host != NULL && g->value[row] != NULL &&
        strcasecmp(in_brackets(o, o->rdzv.master_addr), in_brackets(o, host)) != 0) {
        option_warn(o, "%s: %s: not used; %s", g->spelled[row], option_show(o->rdzv.master_addr, shown), used);
    }
}

static const char *endpoint_says(struct options *o, const struct given *g, const char *host)
{
    return dt_arena_printf(&o->arena, "%s says %s", g->spelled[OPTION_rdzv_endpoint], host);
}

/* ---- one host ---- */

static char *random_uuid(struct dt_arena *arena)
{
    unsigned char b[16];
    if (getrandom(b, sizeof b, 0) != (ssize_t)sizeof b) {
        memset(b, 0, sizeof b);
    }
    b[6] = (unsigned char)((b[6] & 0x0f) | 0x40);
    b[8] = (unsigned char)((b[8] & 0x3f) | 0x80);
    return dt_arena_printf(arena, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
                           b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

/* Any free port, at --local_addr or 127.0.0.1. host: of an endpoint that is not used then, or
 * null. */
static int meet_on_loopback(struct options *o, const struct given *g, const char *host)
{
    const char *store = o->rdzv.local_addr != NULL && o->rdzv.local_addr[0] != '\0' ? o->rdzv.local_addr : "127.0.0.1";
    warn_address(o, g, host, dt_arena_printf(&o->arena, "the workers of one host meet at %s", store));
    o->rdzv.master_addr = dt_arena_strdup(&o->arena, store);
    o->rdzv.master_port = 0;
    return 0;
}

/* The run id is made up, unless one is given that counts. */
static int meet_standalone(struct options *o, const struct given *g, bool keep_id)
{
    o->rdzv.standalone = true;
    o->rdzv.row = rendezvous_find("c10d");
    o->rdzv.backend = dt_arena_strdup(&o->arena, o->rdzv.row->name);
    o->rdzv.endpoint = dt_arena_strdup(&o->arena, "localhost:0");
    if (!keep_id || g->value[OPTION_rdzv_id] == NULL) {
        o->rdzv.run_id = random_uuid(&o->arena);
    }
    return meet_on_loopback(o, g, NULL);
}

/* ---- static ---- */

static int needs_port(const struct given *g, const char *written, const char *host, struct dt_error *err)
{
    return dt_fail(err, DT_INVALID, "%s: %sneeds a port with the static backend; example: --rdzv_endpoint=%.100s:29500",
                   g->spelled[OPTION_rdzv_endpoint], written, host);
}

static int needs_known_port(struct options *o, const char *host, struct dt_error *err)
{
    return dt_fail(err, DT_INVALID,
                   "port 0: several hosts need a port that all know; example: --rdzv_endpoint=%.100s:29500",
                   in_brackets(o, host));
}

/* Each host looks for the others on itself then. torchrun does not read MASTER_ADDR either. */
static void warn_no_address(struct options *o, char *const *env)
{
    const char *exported = options_getenv(env, "MASTER_ADDR");
    char shown[64];
    if (exported != NULL && exported[0] != '\0') {
        option_warn(o,
                    "--master_addr: not given, and MASTER_ADDR is not read: each host looks for the others on "
                    "itself; add --master_addr=%s",
                    option_show(exported, shown));
    } else {
        option_warn(o, "--master_addr: not given: each host looks for the others on itself");
    }
}

static int static_meet(struct options *o, const struct given *g, char *const *env, struct dt_error *err)
{
    char *host;
    int port, ignored = -1;
    if (read_endpoint(o, g, &host, &port, err) != 0) {
        return -1;
    }
    if (host != NULL) {
        warn_address(o, g, host, endpoint_says(o, g, host));
        if (port < 0) {
            return needs_port(g, "", in_brackets(o, host), err);
        }
    } else {
        port = g->value[OPTION_master_port] != NULL ? o->rdzv.master_port : STATIC_PORT;
        if (g->value[OPTION_master_addr] == NULL) {
            warn_no_address(o, env);
        }
        if (read_address(o, g, &host, &ignored, err) != 0) {
            return -1;
        }
    }
    o->rdzv.master_addr = host;
    o->rdzv.master_port = port;
    return port == 0 ? needs_known_port(o, host, err) : 0;
}

static int static_meet_alone(struct options *o, const struct given *g, struct dt_error *err)
{
    char *host, shown[64];
    int port, ignored = -1;
    if (read_endpoint(o, g, &host, &port, err) != 0) {
        return -1;
    }
    if (host == NULL && g->value[OPTION_master_port] == NULL) {
        return meet_standalone(o, g, true); /* as torchrun does since 2.15 */
    }
    if (host == NULL) {
        return read_address(o, g, &o->rdzv.master_addr, &ignored, err);
    }
    if (port < 0) {
        return needs_port(g, dt_arena_printf(&o->arena, "%s: ", option_show(o->rdzv.endpoint, shown)), host, err);
    }
    warn_address(o, g, host, endpoint_says(o, g, host));
    o->rdzv.master_addr = host;
    o->rdzv.master_port = port;
    return 0;
}

/* ---- c10d ---- */

static int c10d_meet(struct options *o, const struct given *g, char *const *env, struct dt_error *err)
{
    char *host;
    int port;
    (void)env;
    if (read_endpoint(o, g, &host, &port, err) != 0) {
        return -1;
    }
    if (host == NULL) {
        return dt_fail(
            err, DT_INVALID,
            "--rdzv_endpoint: not given; the hosts of a c10d job meet at one; example: --rdzv_endpoint=host0:29400");
    }
    warn_address(o, g, host, endpoint_says(o, g, host));
    o->rdzv.master_addr = host;
    o->rdzv.master_port = port < 0 ? o->rdzv.row->default_port : port;
    return port == 0 ? needs_known_port(o, host, err) : 0;
}

static int c10d_meet_alone(struct options *o, const struct given *g, struct dt_error *err)
{
    char *host;
    int port;
    return read_endpoint(o, g, &host, &port, err) == 0 ? meet_on_loopback(o, g, host) : -1;
}

/* ---- etcd ---- */

/* Whoever listens on the way reads name and password of user_file. To another host they go in
 * plain text only where somebody says that they may. */
static int check_plain_password(struct options *o, const char *conf, bool said, struct dt_error *err)
{
    const struct options_etcd *e = &o->rdzv.etcd;
    const char *host = e->hosts[0];
    bool away = false;
    for (int i = 0; i < e->endpoint_count && !away; i++) {
        away = strncmp(e->hosts[i], "127.", 4) != 0 && strcmp(e->hosts[i], "::1") != 0 &&
               strcmp(e->hosts[i], "localhost") != 0;
        host = away ? e->hosts[i] : host;
    }
    if (away && !said) {
        return dt_fail(err, DT_INVALID,
                       "%s: user_file: without https name and password go to %.100s in plain text; add protocol=https, "
                       "or protocol=http where the "
                       "network is to be trusted",
                       conf, host);
    }
    option_warn(o, "%s: user_file: name and password go to %.100s in plain text, without https", conf, host);
    return 0;
}

/* --rdzv_endpoint=HOST[:PORT],... and what --rdzv_conf says of etcd. */
static int etcd_meet(struct options *o, const struct given *g, char *const *env, struct dt_error *err)
{
    struct options_etcd *e = &o->rdzv.etcd;
    const char *endpoint = g->spelled[OPTION_rdzv_endpoint], *conf = g->spelled[OPTION_rdzv_conf];
    char *rest = dt_arena_strdup(&o->arena, has_endpoint(o) ? o->rdzv.endpoint : "localhost");
    bool said = e->protocol != NULL;
    (void)env;
    e->protocol = said ? e->protocol : dt_arena_strdup(&o->arena, "http");
    e->prefix = e->prefix != NULL ? e->prefix : dt_arena_strdup(&o->arena, "/dtrun");
    bool tls = strcmp(e->protocol, "https") == 0;
    if (!tls && strcmp(e->protocol, "http") != 0) {
        return dt_fail(err, DT_INVALID, "%s: protocol: %.60s: must be http or https", conf, e->protocol);
    }
    if (!tls && (e->cacert != NULL || e->cert != NULL || e->key != NULL)) {
        return dt_fail(err, DT_INVALID, "%s: cacert, cert and key: need protocol=https", conf);
    }
    if ((e->cert == NULL) != (e->key == NULL)) {
        return dt_fail(err, DT_INVALID, "%s: cert and key: need each other", conf);
    }
    for (char *one; (one = strsep(&rest, ",")) != NULL;) {
        if (e->endpoint_count == (int)(sizeof e->hosts / sizeof e->hosts[0])) {
            return dt_fail(err, DT_INVALID, "%s: at most %d endpoints", endpoint, e->endpoint_count);
        }
        int i = e->endpoint_count++;
        if (option_parse_endpoint(&o->arena, one, &e->hosts[i], &e->ports[i], err) != 0) {
            return dt_wrap(err, "%s", endpoint);
        }
        e->ports[i] = e->ports[i] > 0 ? e->ports[i] : o->rdzv.row->default_port;
    }
    o->rdzv.master_addr = e->hosts[0];
    o->rdzv.master_port = e->ports[0];
    return !tls && e->user_file != NULL ? check_plain_password(o, conf, said, err) : 0;
}

/* No etcd is asked where only one host takes part. */
static int etcd_meet_alone(struct options *o, const struct given *g, struct dt_error *err)
{
    (void)err;
    return meet_on_loopback(o, g, NULL);
}

/* ---- rows ---- */

#define OLD_ETCD "not supported: needs etcd's version 2, which newer ones do not have; use c10d or etcd-v3"

const struct rendezvous rendezvous_rows[] = {
    {.name = "static",
     .by_rank = true,
     .default_port = -1,
     .conf = conf_of_static,
     .meet = static_meet,
     .meet_alone = static_meet_alone},
    {.name = "c10d", .default_port = 29400, .meet = c10d_meet, .meet_alone = c10d_meet_alone},
    {.name = "etcd-v3", .default_port = 2379, .conf = conf_of_etcd, .meet = etcd_meet, .meet_alone = etcd_meet_alone},
    {.name = "etcd", .refused = OLD_ETCD},
    {.name = "etcd-v2", .refused = OLD_ETCD},
};
const int rendezvous_count = (int)(sizeof rendezvous_rows / sizeof *rendezvous_rows);

const struct rendezvous *rendezvous_find(const char *name)
{
    static const struct rendezvous unknown = {.name = "?", .refused = "unknown backend; must be " RENDEZVOUS_LIST};
    for (int i = 0; i < rendezvous_count; i++) {
        if (strcmp(name, rendezvous_rows[i].name) == 0) {
            return &rendezvous_rows[i];
        }
    }
    return &unknown;
}

int option_parse_backend(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    o->rdzv.row = rendezvous_find(text); /* a refused one counts only where hosts are to meet by it */
    return option_parse_text(o, row, text, err);
}

int rendezvous_choose(struct options *o, const struct given *g, char *const *env, struct dt_error *err)
{
    char shown[64];
    if (o->rdzv.standalone) {
        return meet_standalone(o, g, false);
    }
    if (o->rdzv.row->refused != NULL) {
        return dt_fail(err, DT_INVALID, "%s: %s: %s", g->spelled[OPTION_rdzv_backend],
                       option_show(o->rdzv.backend, shown), o->rdzv.row->refused);
    }
    return o->world.nnodes_max > 1 ? o->rdzv.row->meet(o, g, env, err) : o->rdzv.row->meet_alone(o, g, err);
}
