/* Parsers of option values: each takes the text of one value, checks it whole, and fills in one
 * member. The messages begin with the value; options.c puts before it where the value came from.
 * Also what `gpu`, `cpu` and `auto` mean on this machine. */
#include "launcher/options/options_table.h"

#include "base/cgroup.h"
#include "base/file.h"
#include "base/gpu/gpu_visible.h"
#include "base/gpu/nvml.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MEMBER(type) ((type *)(void *)((char *)o + row->offset))

const char *option_show(const char *text, char *out)
{
    size_t n = 0;
    for (; n < 57 && text[n] != '\0'; n++) {
        out[n] = text[n];
    }
    if (n == 0) {
        return strcpy(out, "(empty)");
    }
    out[n] = '\0';
    dt_text_make_harmless(out, false);
    if (text[n] != '\0') {
        strcat(out, "...");
    }
    return out;
}

void option_warn(struct options *o, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    dt_text_puts(&o->warnings, "dtrun: ");
    dt_text_vprintf(&o->warnings, fmt, args);
    dt_text_puts(&o->warnings, "\n");
    va_end(args);
}

/* Fails with "VALUE: must be WHAT". */
static int must_be(struct dt_error *err, const char *text, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int must_be(struct dt_error *err, const char *text, const char *fmt, ...)
{
    char what[256];
    char value[64];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return dt_fail(err, DT_INVALID, "%s: must be %s", option_show(text, value), what);
}

/* Python's int(): blanks around are fine. False also outside lo..hi. */
static bool read_int(const char *text, long long lo, long long hi, int *out)
{
    char buffer[32];
    text += strspn(text, " \t\n");
    size_t n = strlen(text);
    while (n > 0 && isspace((unsigned char)text[n - 1])) {
        n--;
    }
    if (n == 0 || n >= sizeof buffer) {
        return false;
    }
    memcpy(buffer, text, n);
    buffer[n] = '\0';
    long long value;
    if (!dt_parse_int64(buffer[0] == '+' && isdigit((unsigned char)buffer[1]) ? buffer + 1 : buffer, &value) ||
        value < lo || value > hi) {
        return false;
    }
    *out = (int)value;
    return true;
}

int option_parse_text(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    (void)err;
    *MEMBER(char *) = dt_arena_strdup(&o->arena, text);
    return 0;
}

int option_parse_flag(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    int value;
    if (!read_int(text, -2147483647, 2147483647, &value)) {
        return must_be(err, text, "a number, 0 or 1");
    }
    *MEMBER(bool) = value != 0;
    return 0;
}

int option_parse_int(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    if (!read_int(text, (long long)row->lo, (long long)row->hi, MEMBER(int))) {
        double example = strcmp(row->shown, "PORT") == 0 ? 29500 : row->lo > 0 ? row->lo : 1;
        return must_be(err, text, "a whole number from %.0f to %.0f; example: --%s=%.0f", row->lo, row->hi, row->name,
                       example);
    }
    return 0;
}

int option_parse_number(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    double value;
    if (!dt_parse_double(text, &value) || value < row->lo || value > row->hi) {
        return must_be(err, text, "a number from %.10g to %.10g; example: --%s=10", row->lo, row->hi, row->name);
    }
    *MEMBER(double) = value;
    return 0;
}

int option_parse_seconds(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    static const struct {
        const char *unit;
        double factor;
    } units[] = {{"ms", 1e-3}, {"s", 1}, {"min", 60}, {"m", 60}, {"h", 3600}, {"d", 86400}};
    char number[64];
    double factor = 1;
    size_t n = strlen(text);
    if (n < sizeof number) {
        for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
            size_t k = strlen(units[i].unit);
            if (n > k && strcmp(text + n - k, units[i].unit) == 0 && isdigit((unsigned char)text[n - k - 1])) {
                factor = units[i].factor;
                n -= k;
                break;
            }
        }
        memcpy(number, text, n);
        number[n] = '\0';
        double value;
        if (dt_parse_double(number, &value) && value * factor >= row->lo && value * factor <= row->hi) {
            *MEMBER(double) = value * factor;
            return 0;
        }
    }
    return must_be(err, text, "seconds %s 0, at most %.0f; examples: --%s=30, 500ms, 5m",
                   row->lo > 0 ? "above" : "from", row->hi, row->name);
}

/* Number of the word among "a|b|c", or -1. */
static int which_word(const char *words, const char *text)
{
    size_t n = strlen(text);
    for (int i = 0;; i++) {
        size_t k = strcspn(words, "|");
        if (k == n && memcmp(words, text, n) == 0) {
            return i;
        }
        if (words[k] == '\0') {
            return -1;
        }
        words += k + 1;
    }
}

/* start_method has words of its own; plug-ins are Python names, of which only the default can
 * exist. */
int option_parse_ignored(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    (void)o;
    if (strchr(row->shown, '|') != NULL) {
        return which_word(row->shown, text) >= 0 ? 0 : must_be(err, text, "one of %s", row->shown);
    }
    return strcmp(text, row->fallback) == 0
               ? 0
               : must_be(err, text, "%s: Python plug-ins cannot run in dtrun", row->fallback);
}

/* A rank of the whole job, all or none. */
int option_parse_stdin(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    int rank;
    if (strcmp(text, "all") == 0 || strcmp(text, "none") == 0) {
        o->stdin_rank = text[0] == 'a' ? OPTIONS_STDIN_ALL : OPTIONS_STDIN_NONE;
    } else if (read_int(text, 0, OPTIONS_MAX_NODES * (long long)OPTIONS_MAX_LOCAL - 1, &rank)) {
        o->stdin_rank = rank;
    } else {
        return must_be(err, text, "a rank of the whole job, all or none; example: --%s=3", row->name);
    }
    return 0;
}

int option_parse_word(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    if (which_word(row->shown, text) < 0) {
        return must_be(err, text, "one of %s", row->shown);
    }
    return row->offset == 0 ? 0 : option_parse_text(o, row, text, err);
}

int option_parse_second_word(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    int i = which_word(row->shown, text);
    if (i < 0) {
        return must_be(err, text, "one of %s", row->shown);
    }
    *MEMBER(bool) = i == 1;
    return 0;
}

int option_parse_nnodes(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    (void)row;
    char buffer[64];
    if (strlen(text) < sizeof buffer) {
        (void)strcpy(buffer, text);
        char *colon = strchr(buffer, ':');
        if (colon != NULL) {
            *colon = '\0';
        }
        int lo;
        int hi;
        if (read_int(buffer, 1, OPTIONS_MAX_NODES, &lo) &&
            read_int(colon != NULL ? colon + 1 : buffer, lo, OPTIONS_MAX_NODES, &hi)) {
            o->nnodes_min = lo;
            o->nnodes_max = hi;
            return 0;
        }
    }
    return must_be(err, text, "N or MIN:MAX with 1 <= MIN <= MAX <= %d; example: --nnodes=2:4", OPTIONS_MAX_NODES);
}

int option_parse_nproc(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    /* The environment is asked later: options.c calls again through `nproc_text`; here only the
     * word is checked. */
    if (strcmp(text, "gpu") != 0 && strcmp(text, "cpu") != 0 && strcmp(text, "auto") != 0) {
        if (strcmp(text, "xpu") == 0) {
            return dt_fail(err, DT_INVALID, "xpu: not supported; use a number, gpu, cpu or auto");
        }
        if (!read_int(text, (long long)row->lo, (long long)row->hi, &o->nproc)) {
            return must_be(err, text, "a number from 1 to %d, or gpu, cpu, auto; example: --nproc_per_node=4",
                           OPTIONS_MAX_LOCAL);
        }
    }
    o->nproc_text = dt_arena_strdup(&o->arena, text);
    return 0;
}

/* "3" for all ranks, or "0:1,1:3": unlisted ranks get none. Unlike torchrun's pattern, any rank
 * may be named. */
int option_parse_mask(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    uint8_t *mask = (uint8_t *)o + row->offset;
    if (text[0] >= '0' && text[0] <= '3' && text[1] == '\0') {
        memset(mask, text[0] - '0', OPTIONS_MAX_LOCAL);
        return 0;
    }
    memset(mask, 0, OPTIONS_MAX_LOCAL);
    const char *p = text;
    for (;;) {
        char *end;
        errno = 0;
        long rank = isdigit((unsigned char)*p) ? strtol(p, &end, 10) : -1;
        if (rank < 0 || rank >= OPTIONS_MAX_LOCAL || errno != 0 || end[0] != ':' || end[1] < '0' || end[1] > '3') {
            break;
        }
        mask[rank] = (uint8_t)(end[1] - '0');
        if (end[2] == '\0') {
            return 0;
        }
        if (end[2] != ',') {
            break;
        }
        p = end + 3;
    }
    return must_be(
        err, text,
        "0, 1, 2 or 3 (1: stdout, 2: stderr), or local ranks (0 to %d) with masks; examples: --%s=3, --%s=0:1,1:3",
        OPTIONS_MAX_LOCAL - 1, row->name, row->name);
}

/* The numbers 0 to `most` between commas into `list` (in the arena); their count, or -1. */
static int read_ranks(struct options *o, const char *text, int most, int **list)
{
    int count = 0;
    *list = dt_arena_alloc(&o->arena, (strlen(text) / 2 + 1) * sizeof **list);
    for (const char *p = text; *p != '\0';) {
        char piece[32];
        size_t n = strcspn(p, ",");
        (void)snprintf(piece, sizeof piece, "%.*s", n < sizeof piece ? (int)n : 0, p);
        if (!read_int(piece, 0, most, &(*list)[count++]) || (p[n] == ',' && p[n + 1] == '\0')) {
            return -1;
        }
        p += n + (p[n] == ',');
    }
    return count;
}

int option_parse_filter(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    int *ranks;
    int count = read_ranks(o, text, OPTIONS_MAX_LOCAL - 1, &ranks);
    if (count < 0) {
        return must_be(err, text, "local ranks from 0 to %d, separated by commas; example: --%s=0,2",
                       OPTIONS_MAX_LOCAL - 1, row->name);
    }
    o->filtered = count > 0;
    memset(o->shown, !o->filtered, sizeof o->shown);
    for (int i = 0; i < count; i++) {
        o->shown[ranks[i]] = true;
    }
    return 0;
}

int option_parse_ranks(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    o->rank_count = read_ranks(o, text, INT_MAX - 1, &o->ranks);
    return o->rank_count >= 0 ? 0
                              : must_be(err, text, "global ranks, separated by commas; example: --%s=0,8", row->name);
}

/* It stands in prefixes of lines, in files and in messages to other hosts. */
int option_parse_role(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    size_t n = strlen(text);
    if (n >= OPTIONS_ROLE_BYTES || !dt_text_is_harmless(text, n, false)) {
        return must_be(err, text, "at most %d bytes of UTF-8, without control characters; example: --%s=trainer",
                       OPTIONS_ROLE_BYTES - 1, row->name);
    }
    o->role = dt_arena_strdup(&o->arena, text);
    return 0;
}

/* It names folders, and is compared between hosts. */
int option_parse_run_id(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    size_t n = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
    if (n == 0 || text[0] == '.' || text[n] != '\0' || n > 128) {
        return must_be(err, text, "at most 128 letters, digits, '.', '_' and '-', no '.' first; example: --%s=run-7",
                       row->name);
    }
    o->run_id = dt_arena_strdup(&o->arena, text);
    return 0;
}

/* Pieces between single commas; ",," is a comma. Empty pieces are left out. */
int option_parse_list(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    (void)err;
    size_t size = strlen(text);
    char **list = dt_arena_alloc(&o->arena, (size + 2) * sizeof *list);
    struct dt_text piece;
    dt_text_init(&piece);
    size_t count = 0;
    for (const char *p = text;; p++) {
        if (*p == ',' && p[1] == ',') {
            dt_text_add(&piece, p++, 1);
        } else if (*p == ',' || *p == '\0') {
            if (piece.size > 0) {
                list[count++] = dt_arena_strdup(&o->arena, dt_text_str(&piece));
            }
            dt_text_reset(&piece);
        } else {
            dt_text_add(&piece, p, 1);
        }
        if (*p == '\0') {
            break;
        }
    }
    dt_text_clear(&piece);
    *MEMBER(char **) = count > 0 ? list : NULL;
    return 0;
}

/* Number of "SIGTERM" or "TERM", 0 when unknown. */
static int signal_number(const char *name)
{
    static const struct {
        const char *name;
        int number;
    } others[] = {{"RTMIN", 0}, {"RTMAX", 1}, {"POLL", SIGPOLL}, {"CLD", SIGCHLD}};
    if (strncmp(name, "SIG", 3) == 0) {
        name += 3;
    }
    for (int i = 1; i < 32; i++) {
        const char *known = sigabbrev_np(i);
        if (known != NULL && strcmp(name, known) == 0) {
            return i;
        }
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (strcmp(name, others[i].name) == 0) {
            return i == 0 ? SIGRTMIN : i == 1 ? SIGRTMAX : others[i].number;
        }
    }
    return 0;
}

int option_parse_signals(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    (void)row;
    memset(o->signals, 0, sizeof o->signals);
    o->signals_text = dt_arena_strdup(&o->arena, text);
    const char *p = text;
    while (*p != '\0') {
        char name[32];
        p += strspn(p, " ,");
        size_t n = strcspn(p, " ,");
        if (n == 0) {
            break;
        }
        (void)snprintf(name, sizeof name, "%.*s", n > 30 ? 30 : (int)n, p);
        int number = signal_number(name);
        if (number == 0 || number == SIGKILL || number == SIGSTOP || number == SIGCHLD) {
            char value[64];
            return dt_fail(err, DT_INVALID, "%s: %s; example: --signals_to_handle=SIGTERM,SIGUSR1",
                           option_show(name, value), number == 0 ? "no such signal" : "this signal cannot be handled");
        }
        o->signals[number] = true;
        p += n;
    }
    return 0;
}

int option_parse_users(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    o->store_user_count = 0;
    for (const char *p = text; *p != '\0'; p += *p == ',') {
        char name[256];
        int size = (int)strcspn(p, ",");
        long long id = -1;
        (void)snprintf(name, sizeof name, "%.*s", size, p);
        if (o->store_user_count == OPTIONS_MAX_CODES || size == 0 || size >= (int)sizeof name) {
            return must_be(err, text, "at most %d users, separated by commas; example: --%s=nobody,1001",
                           OPTIONS_MAX_CODES, row->name);
        }
        const struct passwd *known = dt_parse_int64(name, &id) ? NULL : getpwnam(name);
        id = known != NULL ? (long long)known->pw_uid : id;
        if (id < 0 || id >= UINT_MAX) { /* that number is no user */
            return must_be(err, name, "a user of this host, by name or number; example: --%s=nobody,1001", row->name);
        }
        o->store_users[o->store_user_count++] = (unsigned)id;
        p += size;
    }
    return 0;
}

int option_parse_codes(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    o->permanent_code_count = 0;
    const char *p = text;
    while (*p != '\0') {
        char piece[16];
        size_t n = strcspn(p, ",");
        (void)snprintf(piece, sizeof piece, "%.*s", n > 15 ? 15 : (int)n, p);
        int code;
        if (n > 15 || o->permanent_code_count == OPTIONS_MAX_CODES || !read_int(piece, 1, 255, &code)) {
            return must_be(err, text, "at most %d codes from 1 to 255, separated by commas; example: --%s=93,99",
                           OPTIONS_MAX_CODES, row->name);
        }
        o->permanent_codes[o->permanent_code_count++] = code;
        p += n + (p[n] == ',');
    }
    return 0;
}

int option_parse_ports(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    if (strcmp(text, "any") == 0 || strcmp(text, "0") == 0) {
        o->port_lo = o->port_hi = 0;
        return 0;
    }
    char buffer[32];
    if (strlen(text) < sizeof buffer) {
        (void)strcpy(buffer, text);
        char *dash = strchr(buffer, '-');
        int lo;
        int hi;
        if (dash != NULL) {
            *dash = '\0';
            if (read_int(buffer, 1, 65535, &lo) && read_int(dash + 1, lo, 65535, &hi)) {
                o->port_lo = lo;
                o->port_hi = hi;
                return 0;
            }
        }
    }
    return must_be(err, text, "LO-HI with 1 <= LO <= HI <= 65535, or any; example: --%s=20000-20100", row->name);
}

int option_parse_metrics(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    int port = -1;
    if (text[0] != '\0' && strspn(text, "0123456789") == strlen(text)) {
        o->metrics_host = dt_arena_strdup(&o->arena, "127.0.0.1");
        return read_int(text, 0, 65535, &o->metrics_port)
                   ? 0
                   : must_be(err, text, "a port from 0 to 65535; example: --%s=9400", row->name);
    }
    if (text[0] == ':') { /* of all addresses for some, of this host alone for others */
        return must_be(err, text, "PORT, for this host alone, or HOST:PORT; example: --%s=0.0.0.0:9400 for everybody",
                       row->name);
    }
    if (option_parse_endpoint(&o->arena, text, &o->metrics_host, &port, err) != 0) {
        return -1;
    }
    o->metrics_port = port;
    return port >= 0 ? 0 : must_be(err, text, "PORT or HOST:PORT; example: --%s=9400", row->name);
}

int option_parse_endpoint(struct dt_arena *arena, const char *text, char **host, int *port, struct dt_error *err)
{
    char value[64];
    (void)option_show(text, value);
    text += strspn(text, " \t");
    char *copy = dt_arena_strdup(arena, text);
    for (size_t n = strlen(copy); n > 0 && isspace((unsigned char)copy[n - 1]); n--) {
        copy[n - 1] = '\0';
    }
    size_t size = strlen(copy);
    const char *scheme = strstr(copy, "://");
    if (scheme != NULL) {
        return dt_fail(err, DT_INVALID, "%s: must be HOST:PORT; leave out %.*s", value,
                       scheme - copy < 20 ? (int)(scheme - copy) + 3 : 20, copy);
    }
    char *after = copy; /* where a colon may start the port */
    bool brackets = copy[0] == '[';
    if (brackets) {
        after = strchr(copy, ']');
        if (after == NULL || (after[1] != ':' && after[1] != '\0')) {
            return dt_fail(err, DT_INVALID, "%s: must be HOST:PORT; brackets go around the address alone: [::1]:29500",
                           value);
        }
    }
    char *colon = strrchr(after, ':');
    if (!brackets && colon != NULL && strchr(copy, ':') != colon) {
        return dt_fail(err, DT_INVALID, "%s: an IPv6 address needs brackets; example: [::1]:29500", value);
    }
    int number = -1;
    if (colon != NULL) {
        *colon = '\0';
        if (strlen(colon + 1) > 5 || !isdigit((unsigned char)colon[1]) || !read_int(colon + 1, 0, 65535, &number)) {
            return dt_fail(err, DT_INVALID, "%s: the port must be a number from 0 to 65535; example: localhost:29500",
                           value);
        }
    }
    if (brackets) {
        *after = '\0';
        copy++;
    }
    for (const char *p = copy; *p != '\0'; p++) {
        bool scope = *p == '%' && brackets && p > copy; /* [fe80::1%eth0] */
        if (!isalnum((unsigned char)*p) && strchr("_.:-", *p) == NULL && !scope) {
            return dt_fail(err, DT_INVALID, "%s: a host name has letters, digits and _ . : - only", value);
        }
    }
    if (copy[0] == '\0' || size > 255) {
        return dt_fail(err, DT_INVALID, "%s: must be HOST:PORT; example: localhost:29500", value);
    }
    *host = copy;
    *port = number;
    return 0;
}

enum {
    driver_ms = 20000
}; /* the first to ask a driver without persistence mode waits for
    * seconds */

int option_count_gpu_nodes(const char *folder)
{
    DIR *d = opendir(folder);
    int count = 0;
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        const char *number = e->d_name + 6;
        if (strncmp(e->d_name, "nvidia", 6) == 0 && number[0] != '\0' && number[strspn(number, "0123456789")] == '\0') {
            count++;
        }
    }
    if (d != NULL) {
        (void)closedir(d);
    }
    return count;
}

/* GPUs that the driver says may be used; -1: it says nothing, or not in time. A driver that
 * hangs holds a child of ours, not us. */
static int count_by_driver(void)
{
    int ends[2], count = -1;
    struct dt_error err;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return -1;
    }
    pid_t child = fork();
    if (child == 0) {
        struct dt_nvml *driver;
        if (dt_nvml_open(&driver, &err) == 0) { /* where there is no such library, that is known
                                                 * at once */
            count = dt_nvml_usable(driver);
        }
        _exit(write(ends[1], &count, sizeof count) != (ssize_t)sizeof count);
    }
    (void)close(ends[1]);
    struct pollfd answer = {.fd = ends[0], .events = POLLIN};
    if (child > 0 &&
        (poll(&answer, 1, driver_ms) != 1 || read(ends[0], &count, sizeof count) != (ssize_t)sizeof count)) {
        count = -1;
        (void)kill(child, SIGKILL);
    }
    (void)close(ends[0]);
    if (child > 0 && answer.revents != 0) { /* whoever hangs in the kernel is not waited for */
        (void)waitpid(child, NULL, 0);
    }
    return count;
}

int options_gpu_count(char *const *env)
{
    const char *visible = options_getenv(env, "CUDA_VISIBLE_DEVICES");
    if (visible != NULL) {
        struct dt_gpu_visible seen;
        dt_gpu_visible(visible, NULL, -1, &seen);
        return seen.count;
    }
    int count = count_by_driver();
    return count >= 0 ? count : option_count_gpu_nodes("/dev");
}

int options_check_gpus(struct options *o, int workers, char *const *env, struct dt_error *err)
{
    const char *hip = options_getenv(env, "HIP_VISIBLE_DEVICES");
    const char *variable =
        o->virtual_local_rank && hip != NULL && hip[0] != '\0' ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES";
    const char *visible = options_getenv(env, variable);
    int count = 0;
    if (visible == NULL || visible[0] == '\0') {
        return 0;
    }
    if (o->virtual_local_rank) { /* each worker is given an entry, whatever it says */
        for (const char *p = visible; *p != '\0'; p += strcspn(p, ","), p += *p == ',') {
            count++;
        }
        return workers <= count
                   ? 0
                   : dt_fail(
                         err, DT_INVALID,
                         "--virtual_local_rank: %d workers asked, %d GPU%s visible (%s=%.200s); lower --nproc_per_node",
                         workers, count, count == 1 ? "" : "s", variable, visible);
    }
    count = options_gpu_count(env);
    if (isdigit((unsigned char)o->nproc_text[0]) && count > 0 && workers > count && !o->bundled) {
        option_warn(
            o,
            "--nproc_per_node: %d workers asked, %d GPU%s visible (%s=%.200s); lower it if each worker needs its own",
            workers, count, count == 1 ? "" : "s", variable, visible);
    }
    return 0;
}

int options_cpu_count(void)
{
    unsigned long mask[1024]; /* 65536 CPUs: the C library's own set has room for 1024 */
    long bytes = syscall(SYS_sched_getaffinity, 0, sizeof mask, mask);
    int count = 0;
    for (long i = 0; i < bytes / (long)sizeof mask[0]; i++) {
        count += __builtin_popcountl(mask[i]);
    }
    double quota = fmin(ceil(dt_cgroup_cpus()), OPTIONS_MAX_LOCAL);
    if (quota > 0 && (count == 0 || quota < count)) {
        count = (int)quota;
    }
    return count < 1 ? 1 : count > OPTIONS_MAX_LOCAL ? OPTIONS_MAX_LOCAL : count;
}
