/* The address is the one that --local_addr names; else, where the endpoint is held, the
 * endpoint's own; else that of the interface on the way there. */
#include "launcher/hosts/place.h"

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "launcher/output/console.h"
#include "launcher/options/options_table.h"

#include <arpa/inet.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define JOB_BYTES ((size_t)16 << 20) /* a job file is smaller */
#define UNNAMED_BYTES 300            /* of what a job without a name runs */
/* of train's arguments shown where hosts differ; all of them are compared */
#define ARGUMENTS_BYTES 1200

static const double name_s = 1; /* for the endpoint's name at the start; then it is looked up
                                 * beside everything else */

bool hosts_is_loopback(const char *address)
{
    return address[0] == '\0' || strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
}

/* ---- what must be alike ---- */

/* Each ends with a NUL. A line of words for people, as far as it goes, and the hash of all. */
static void add_arguments(const struct dt_text *arguments, struct dt_text *out)
{
    char shown[ARGUMENTS_BYTES + 1];
    size_t size = arguments->size > ARGUMENTS_BYTES ? ARGUMENTS_BYTES : arguments->size;
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)arguments->data[i];
        shown[i] = (char)(c < 32 || c == 127 ? ' ' : c);
    }
    shown[size] = '\0';
    dt_text_printf(out, "arguments %s%s(hash %016llx)\n", shown, arguments->size > size ? "... " : "",
                   (unsigned long long)XXH3_64bits(arguments->data, arguments->size));
}

/* Of train: what its job file says, wherever it lies, and the other arguments. */
static void add_job(const struct options *o, struct dt_text *out)
{
    struct dt_text arguments, file;
    struct dt_error ignored;
    dt_text_init(&arguments);
    dt_text_init(&file);
    for (int i = 0; i < o->arg_count; i++) {
        size_t n = strlen(o->args[i]);
        if (file.size == 0 && n > 5 && strcmp(o->args[i] + n - 5, ".json") == 0 &&
            dt_file_read(o->args[i], JOB_BYTES, &file, &ignored) == 0) {
            unsigned char hash[crypto_generichash_BYTES_MIN];
            char hex[2 * sizeof hash + 1];
            (void)crypto_generichash(hash, sizeof hash, (const unsigned char *)file.data, file.size, NULL, 0);
            dt_text_printf(out, "job file %.16s\n", sodium_bin2hex(hex, sizeof hex, hash, sizeof hash));
        } else {
            dt_text_add(&arguments, o->args[i], n + 1);
        }
    }
    add_arguments(&arguments, out);
    dt_text_clear(&arguments);
    dt_text_clear(&file);
}

/* At an etcd all jobs meet that were not given a name: what one of them is told by is the
 * program, its arguments, the folder and the user. */
static void add_unnamed(const struct options *o, struct dt_text *out)
{
    char folder[4096] = "?";
    struct dt_text job;
    dt_text_init(&job);
    dt_text_puts(&job, o->program);
    for (int i = 0; i < o->arg_count; i++) {
        options_quote(&job, o->args[i]);
    }
    dt_text_printf(&job, " in %s, user %u", getcwd(folder, sizeof folder) != NULL ? folder : "?", (unsigned)geteuid());
    uint64_t hash = XXH3_64bits(job.data, job.size);
    for (size_t i = 0; i < job.size; i++) {
        job.data[i] = (char)((unsigned char)job.data[i] < 32 || job.data[i] == 127 ? ' ' : job.data[i]);
    }
    dt_text_printf(out, MEMBER_UNNAMED "%.*s (hash %08x)\n", UNNAMED_BYTES, dt_text_str(&job), (unsigned)hash);
    dt_text_clear(&job);
}

/* Hosts may run programs of different kinds, as torchrun lets them (a parameter server and its
 * trainers); ranks of `train` train the same. --dead_after as it is used, time scale and
 * --rdzv_conf included: a host that reckons with another one lets its workers live when the
 * others begin without it. */
void hosts_digest(const struct options *o, char *out, size_t out_bytes)
{
    struct dt_text job;
    dt_text_init(&job);
    if (o->bundled && strcmp(o->program, "train") == 0) {
        add_job(o, &job);
    }
    if (o->etcd.endpoint_count > 0 && strcmp(options_source(o, OPTION_rdzv_id), "default") == 0) {
        add_unnamed(o, &job);
    }
    (void)snprintf(
        out, out_bytes,
        "version %s\n--nnodes %d:%d\n--max_restarts %d\n--dead_after %.9g\n--rdzv_backend %s\nprogram %.200s\n%s",
        DT_VERSION, o->nnodes_min, o->nnodes_max, o->max_restarts, o->dead_after_s, o->rdzv_backend,
        o->bundled ? o->program : "of the user", dt_text_str(&job));
    size_t used = strlen(out);
    if (o->check_code > 0) { /* two such hosts must not begin a job together either */
        char own[33];
        dt_text_random(own);
        (void)snprintf(out + used, out_bytes - used, "%s%d %s\n", MEMBER_FAILED_CHECK, o->check_code, own);
    }
    dt_text_make_harmless(out, true); /* as it is sent, so that equal ones are equal */
    dt_text_clear(&job);
}

/* ---- the endpoint ---- */

enum endpoint_choice hosts_endpoint_choice(const struct options *o)
{
    if (o->etcd.endpoint_count > 0) {
        return ENDPOINT_JOIN;
    }
    if (strcmp(o->rdzv_backend, "static") == 0) {
        return o->node_rank == 0 ? ENDPOINT_HOST : ENDPOINT_JOIN;
    }
    return o->is_host < 0 ? ENDPOINT_AUTO : o->is_host > 0 ? ENDPOINT_HOST : ENDPOINT_JOIN;
}

/* self->address; "" when only the first link will tell. */
static int publish(const struct hosts_place *p, const struct options *o, struct peer_info *self, struct dt_error *err)
{
    struct lookup_list local;
    const char *warning = NULL;
    if (o->local_addr != NULL && o->local_addr[0] != '\0') {
        if (lookup_now(o->local_addr, self->port, &local, err) != 0) {
            return dt_wrap(err, "--local_addr");
        }
        (void)lookup_host((struct sockaddr *)&local.addresses[0], self->address, sizeof self->address);
        return 0;
    }
    if (p->hosts) {
        if (endpoint_published(&p->endpoint, self->address, sizeof self->address, &warning, err) != 0) {
            return -1;
        }
        bool plain = hosts_is_loopback(o->master_addr) || strncmp(o->master_addr, "localhost", 9) == 0;
        if (warning != NULL && !plain && o->check_code == 0) {
            char here[LOOKUP_NAME_BYTES] = "nothing"; /* the list may be empty */
            if (p->endpoint.count > 0) {
                (void)lookup_host((struct sockaddr *)&p->endpoint.addresses[0], here, sizeof here);
            }
            console_say("dtrun: warning: %s is %s on this host; others are told the address at which they come\n",
                        o->master_addr, here);
        } else if (warning != NULL && o->check_code == 0 &&
                   !(strcmp(options_source(o, OPTION_rdzv_endpoint), "default") == 0 &&
                     strcmp(options_source(o, OPTION_master_addr), "default") == 0)) { /* said: not given */
            console_say("dtrun: %s\n", warning);
        }
        return 0;
    }
    for (int i = 0; i < p->endpoint.count; i++) {
        struct dt_error ignored;
        if (endpoint_route((struct sockaddr *)&p->endpoint.addresses[i], self->address, sizeof self->address,
                           &ignored) == 0) {
            if (o->etcd.endpoint_count == 0 || !hosts_is_loopback(self->address)) {
                return 0;
            }
            break;
        }
    }
    if (o->etcd.endpoint_count > 0) { /* an etcd, or a gateway to it, on this host: others come
                                       * by another way */
        return endpoint_published(&(struct lookup_list){0}, self->address, sizeof self->address, NULL, err);
    }
    self->address[0] = '\0'; /* the first link will tell */
    return 0;
}

/* On one machine only one of two hosts with node rank 0 gets the endpoint's port. */
static int explain_taken(const struct options *o, struct dt_error *err)
{
    char owner[128];
    bool by_rank = strcmp(o->rdzv_backend, "static") == 0 && o->node_rank == 0;
    if (!by_rank || !endpoint_port_owner(o->master_port, owner, sizeof owner) ||
        strstr(owner, "(dtrun-agent)") == NULL) {
        return -1;
    }
    bool given = strcmp(options_source(o, OPTION_node_rank), "default") != 0;
    return dt_fail(err, err->status,
                   "--node_rank: port %d is held by another agent of dtrun, pid %d, so node rank 0%s is there twice; "
                   "give each host its own rank "
                   "(0 to %d), or another job another --master_port",
                   o->master_port, atoi(owner + strlen("pid ")), given ? "" : " (the default)", o->nnodes_max - 1);
}

/* Node rank 0 leads, and the others look for it at an address that this host does not have. It
 * may still be right: an address can be translated. */
static void warn_elsewhere(const struct options *o)
{
    const char *source = options_source(o, OPTION_node_rank);
    if (strcmp(source, "default") == 0) {
        console_say("dtrun: warning: --node_rank is not given, so this host takes itself for node rank 0, but %s is no "
                    "address of it; give each host its "
                    "own rank (0 to %d)\n",
                    o->master_addr, o->nnodes_max - 1);
    } else {
        console_say("dtrun: warning: %s: is 0 right here? The others come to %s, which is no address of this host; "
                    "going on, as it may be "
                    "a translated one\n",
                    source, o->master_addr);
    }
}

int hosts_place_open(struct hosts_place *p, const struct options *o, struct peer_info *self, char *trouble,
                     size_t trouble_bytes, struct dt_error *err)
{
    struct endpoint decided = {.fd = -1, .why = "an etcd"};
    enum endpoint_choice choice = hosts_endpoint_choice(o);
    /* a name server may know it later */
    if (lookup_within(o->master_addr, o->master_port, name_s, NULL, &p->endpoint, err) != 0) {
        p->endpoint.count = 0;
        (void)snprintf(trouble, trouble_bytes, "%s", err->text);
        if (choice == ENDPOINT_HOST) {
            console_say("dtrun: warning: endpoint %s; listening at port %d all the same\n", err->text, o->master_port);
        }
        choice = choice == ENDPOINT_HOST ? ENDPOINT_HOST : ENDPOINT_JOIN;
    }
    if (o->etcd.endpoint_count == 0 && endpoint_decide(&decided, choice, &p->endpoint, o->master_port, err) != 0) {
        return explain_taken(o, err);
    }
    if (decided.hosts && !decided.ours && p->endpoint.count > 0 && strcmp(o->rdzv_backend, "static") == 0) {
        warn_elsewhere(o);
    }
    dt_log(DT_LOG_INFO, "nodes", "endpoint %s port %d: %s: %s", o->master_addr, o->master_port,
           decided.hosts ? "held here" : "elsewhere", decided.why);
    unsigned char number[sizeof(struct in6_addr)];
    char address[INET6_ADDRSTRLEN];
    /* fe80::1%eth0 is a number, too */
    (void)snprintf(address, sizeof address, "%.*s", (int)strcspn(o->master_addr, "%"), o->master_addr);
    bool named = inet_pton(AF_INET, address, number) != 1 && inet_pton(AF_INET6, address, number) != 1;
    p->hosts = decided.hosts;
    p->translated = p->hosts && !decided.ours && p->endpoint.count > 0;
    p->by_name = p->hosts && named && (o->local_addr == NULL || o->local_addr[0] == '\0');
    if (!decided.hosts && choice == ENDPOINT_HOST) {
        console_say("dtrun: endpoint %s: %s; waiting for it\n", o->master_addr, decided.why);
    }
    int fd = decided.fd;
    self->port = decided.port;
    /* node rank 0 may begin after us on this machine */
    const struct dt_ports range = dt_ports_but(o->port_lo, o->port_hi, o->master_port);
    if (!decided.hosts && endpoint_listen(0, &range, &fd, &self->port, err) != 0) {
        return -1;
    }
    if (publish(p, o, self, err) != 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}
