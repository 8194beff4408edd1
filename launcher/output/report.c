/* Failure reports: reads what workers left, decides who was first, and writes the text.
 * Everything that comes from a worker is untrusted: bounded in size, control characters made
 * harmless, never a reason to fail. */
#include "launcher/output/report.h"

#include "base/clock.h"
#include "base/file.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_FILE_BYTES (1u << 20)
#define MAX_SHOWN_BYTES 65536 /* of a call stack in the block */

void report_failure_init(struct report_failure *f)
{
    memset(f, 0, sizeof *f);
    f->follows = -1;
    f->step = -1;
}

void report_failure_clear(struct report_failure *f)
{
    free(f->error_file);
    free(f->message);
    free(f->callstack);
    free(f->raw);
    report_failure_init(f);
}

/* Appends at most max_bytes of text: newline becomes newline and indent (or a blank without
 * indent), tabs stay, each other character that is not visible becomes '?'. */
static void add_safe(struct dt_text *out, const char *text, size_t max_bytes, const char *indent)
{
    size_t n = strlen(text), size;
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r' || text[n - 1] == ' ')) {
        n--;
    }
    bool cut = n > max_bytes;
    n = cut ? max_bytes : n;
    for (size_t i = 0; i < n; i += size) {
        size = text[i] == '\t' ? 1 : dt_text_visible(text + i, n - i);
        if (size > 0) {
            dt_text_add(out, text + i, size);
            continue;
        }
        if (text[i] == '\n') {
            dt_text_puts(out, indent != NULL ? "\n" : " ");
            dt_text_puts(out, indent != NULL ? indent : "");
        } else if (text[i] != '\r') {
            dt_text_puts(out, "?");
        }
        size = 1;
        while ((unsigned char)text[i] >= 0xc2 && i + size < n && (text[i + size] & 0xc0) == 0x80) {
            size++; /* the rest of that character */
        }
    }
    if (cut) {
        dt_text_puts(out, " ...");
    }
}

static double number_of(const cJSON *item)
{
    double value = 0;
    if (cJSON_IsNumber(item)) {
        value = item->valuedouble;
    } else if (cJSON_IsString(item) && !dt_parse_double(item->valuestring, &value)) {
        value = 0;
    }
    return isfinite(value) && value > 0 ? value : 0;
}

static char *copy_string(const cJSON *item)
{
    return cJSON_IsString(item) && item->valuestring[0] != '\0' ? dt_strdup(item->valuestring) : NULL;
}

/* NaN, Infinity or -Infinity, as Python's json writes them: its bytes; 0: none of them. */
static size_t no_number(const char *at, size_t left)
{
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strlen(words[i]) <= left && memcmp(at, words[i], strlen(words[i])) == 0) {
            return strlen(words[i]);
        }
    }
    return 0;
}

/* The text, with null for each of these where it is no JSON otherwise; or null. */
static cJSON *parse(struct dt_text *text)
{
    cJSON *root = cJSON_ParseWithLength(dt_text_str(text), text->size);
    struct dt_text other;
    bool quoted = false;
    dt_text_init(&other);
    for (size_t i = 0, size; root == NULL && i < text->size; i += size) {
        const char *at = text->data + i;
        size = quoted ? 0 : no_number(at, text->size - i);
        if (size > 0) {
            dt_text_puts(&other, "null");
            continue;
        }
        size = quoted && *at == '\\' && i + 1 < text->size ? 2 : 1;
        quoted = quoted != (*at == '"');
        dt_text_add(&other, at, size);
    }
    if (root == NULL && (root = cJSON_ParseWithLength(dt_text_str(&other), other.size)) != NULL) {
        struct dt_text first = *text;
        *text = other;
        other = first;
    }
    dt_text_clear(&other);
    return root;
}

#define NOTICED_S 0.05 /* an end is noticed within this time */

static double time_of(const struct stat *st)
{
    return (double)st->st_mtim.tv_sec + (double)st->st_mtim.tv_nsec * 1e-9;
}

/* The file's time is by this machine's clock, to the fraction of a second, as that of a file
 * made now beside it shows: a file server may have another clock, or whole seconds. */
static bool keeps_our_time(const char *path, const struct stat *file)
{
    struct stat st = {0};
    char *probe = dt_format("%s-XXXXXX", path);
    double begin_s = dt_wall_s();
    int fd = mkostemp(probe, O_CLOEXEC);
    bool ours = fd >= 0 && fstat(fd, &st) == 0 && time_of(&st) > begin_s - NOTICED_S && time_of(&st) <= dt_wall_s();
    if (fd >= 0) {
        (void)close(fd);
        (void)unlink(probe);
    }
    free(probe);
    return ours && file->st_mtim.tv_nsec != 0;
}

void report_read_error_file(struct report_failure *f, const char *path)
{
    struct stat st;
    if (path == NULL || path[0] == '\0' || stat(path, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size == 0) {
        return;
    }
    struct dt_text text;
    struct dt_error err;
    dt_text_init(&text);
    f->error_file = dt_strdup(path);
    f->written_s = keeps_our_time(path, &st) ? time_of(&st) : 0;
    if (dt_file_read(path, MAX_FILE_BYTES, &text, &err) != 0) {
        f->message = dt_format("the error file could not be read: %s", err.text);
        dt_text_clear(&text);
        return;
    }
    cJSON *root = parse(&text);
    const cJSON *message = cJSON_GetObjectItemCaseSensitive(root, "message");
    if (cJSON_IsObject(message)) {
        const cJSON *extra = cJSON_GetObjectItemCaseSensitive(message, "extraInfo");
        f->message = copy_string(cJSON_GetObjectItemCaseSensitive(message, "message"));
        f->callstack = copy_string(cJSON_GetObjectItemCaseSensitive(extra, "py_callstack"));
        f->file_time_s = number_of(cJSON_GetObjectItemCaseSensitive(extra, "timestamp"));
        f->raw = dt_strdup(dt_text_str(&text));
    } else if (cJSON_IsString(message)) {
        f->message = copy_string(message);
        f->file_time_s = number_of(cJSON_GetObjectItemCaseSensitive(root, "timestamp"));
        f->raw = dt_strdup(dt_text_str(&text));
    } else {
        f->message = dt_format("%.4096s", dt_text_str(&text)); /* no error file of PyTorch's:
                                                                * shown as it is */
    }
    cJSON_Delete(root);
    dt_text_clear(&text);
}

/* When it happened, in whole seconds: the worker's own word where it can be true. */
static double happened_s(const struct report_failure *f)
{
    double noticed_s = floor(f->wall_s);
    return f->file_time_s > 0 && f->file_time_s <= noticed_s + 1 ? floor(f->file_time_s) : noticed_s;
}

/* The worker wrote its file in the second that it names, so when it did is known to the
 * fraction. */
static bool is_dated(const struct report_failure *f)
{
    return f->file_time_s > 0 && floor(f->written_s) == happened_s(f) && f->written_s < f->wall_s;
}

/* Within one second. An end is noticed a moment after it came about, and whoever lost a peer may
 * have written by then. */
static bool is_sooner(const struct report_failure *a, const struct report_failure *b)
{
    bool a_dated = is_dated(a), b_dated = is_dated(b);
    double a_s = a_dated ? a->written_s : a->wall_s, b_s = b_dated ? b->written_s : b->wall_s;
    a_s += a_dated && !b_dated ? NOTICED_S : 0;
    b_s += b_dated && !a_dated ? NOTICED_S : 0;
    return a_s < b_s;
}

/* A worker that we stopped is the first cause only when its own file says that it had failed
 * before everybody else: it was still shutting down when a peer's death was seen. */
int report_root(const struct report_failure *f, int count)
{
    int best = -1;
    for (int i = 0; i < count; i++) {
        bool same = best >= 0 && happened_s(&f[i]) == happened_s(&f[best]);
        if (!f[i].stopped_by_us &&
            (best < 0 || happened_s(&f[i]) < happened_s(&f[best]) || (same && is_sooner(&f[i], &f[best])))) {
            best = i;
        }
    }
    for (int i = 0; i < count; i++) {
        bool same = best >= 0 && happened_s(&f[i]) == happened_s(&f[best]);
        bool earlier =
            best >= 0 && f[i].stopped_by_us && f[i].file_time_s > 0 &&
            (happened_s(&f[i]) < happened_s(&f[best]) || (same && is_dated(&f[i]) && is_sooner(&f[i], &f[best])));
        if (earlier || (best < 0 && i == 0)) {
            best = i;
        }
    }
    return best;
}

const char *report_signal_name(int number, char *buffer, size_t size)
{
    const char *known = number > 0 && number < 32 ? sigabbrev_np(number) : NULL;
    if (known != NULL) {
        (void)snprintf(buffer, size, "SIG%s", known);
    } else if (number >= SIGRTMIN && number <= SIGRTMAX) {
        (void)snprintf(buffer, size, number == SIGRTMIN ? "SIGRTMIN" : "SIGRTMIN+%d", number - SIGRTMIN);
    } else {
        (void)snprintf(buffer, size, "signal %d", number);
    }
    return buffer;
}

void report_to_cause(const struct report_failure *f, enum cause_kind kind, struct cause *out)
{
    struct dt_text safe;
    bool noted = f->note[0] != '\0';
    *out = (struct cause){.kind = kind,
                          .rank = f->rank,
                          .local_rank = f->local_rank,
                          .pid = f->pid,
                          .exit_code = f->exit_code,
                          .stopped_by_us = f->stopped_by_us,
                          .step = f->step,
                          .blame = f->blame,
                          .digest = f->digest,
                          .whole = noted && f->exit_code <= 0};
    dt_text_init(&safe);
    add_safe(&safe, f->host, sizeof f->host, NULL);
    (void)snprintf(out->host, sizeof out->host, "%s", dt_text_str(&safe));
    dt_text_reset(&safe);
    if (noted || f->message != NULL) {
        add_safe(&safe, noted ? f->note : f->message, noted ? sizeof f->note : 300, NULL);
    }
    (void)snprintf(out->words, sizeof out->words, "%s", dt_text_str(&safe));
    if (!noted && f->message != NULL) {
        out->digest = dt_digest(f->message);
    }
    dt_text_clear(&safe);
}

void report_cause(const struct report_failure *f, int count, int root, struct dt_text *out)
{
    struct cause cause;
    report_to_cause(&f[root], CAUSE_FAILED, &cause);
    dt_text_puts(out, "dtrun: ");
    cause_add_line(&cause, out);
    int stopped = 0;
    int failed = 0;
    for (int i = 0; i < count; i++) {
        stopped += i != root && f[i].stopped_by_us;
        failed += i != root && !f[i].stopped_by_us;
    }
    if (failed > 0) {
        dt_text_printf(out, "; %d other rank%s failed, too", failed, failed == 1 ? "" : "s");
    }
    if (stopped > 0) {
        dt_text_printf(out, "; %d other rank%s stopped because of it", stopped, stopped == 1 ? "" : "s");
    }
}

/* One failure as torchrun shows it; said: its note stands in the cause line already. */
static void add_block(const struct report_failure *f, int index, bool said, struct dt_text *out)
{
    char when[32];
    char name[32];
    time_t seconds = (time_t)(f->file_time_s > 0 ? happened_s(f) : f->wall_s);
    struct tm parts;
    if (localtime_r(&seconds, &parts) == NULL || strftime(when, sizeof when, "%Y-%m-%d_%H:%M:%S", &parts) == 0) {
        (void)snprintf(when, sizeof when, "<N/A>");
    }
    dt_text_printf(out, "[%d]:\n  time      : %s\n  host      : ", index, when);
    add_safe(out, f->host, sizeof f->host, NULL);
    dt_text_printf(out, "\n  rank      : %d (local_rank: %d)\n  exitcode  : %d (pid: %ld)", f->rank, f->local_rank,
                   f->exit_code, (long)f->pid);
    if (f->exit_code < 0) {
        dt_text_printf(out, "  (%s)", report_signal_name(-f->exit_code, name, sizeof name));
    }
    dt_text_printf(out, "\n  error_file: %s\n  traceback : ", f->error_file != NULL ? f->error_file : "<N/A>");
    if (f->callstack != NULL || f->message != NULL) {
        add_safe(out, f->callstack != NULL ? f->callstack : f->message, MAX_SHOWN_BYTES, "  ");
    } else if (f->note[0] != '\0' && said) {
        dt_text_puts(out, "none left; the first line says what happened");
    } else if (f->note[0] != '\0') {
        char words[DT_WORDS_BYTES];
        add_safe(out, dt_blame_words(&f->blame, f->note, f->rank, words, sizeof words), sizeof words, "  ");
    } else if (f->exit_code < 0) {
        dt_text_printf(out, "Signal %d (%s) received by PID %ld", -f->exit_code,
                       report_signal_name(-f->exit_code, name, sizeof name), (long)f->pid);
    } else {
        dt_text_puts(out,
                     "none left; see the worker's own output, or https://pytorch.org/docs/stable/elastic/errors.html");
    }
    dt_text_puts(out, "\n");
}

static size_t longest_line(const char *text)
{
    size_t longest = 0;
    while (*text != '\0') {
        size_t n = strcspn(text, "\n");
        longest = n > longest ? n : longest;
        text += n + (text[n] == '\n');
    }
    return longest;
}

static void add_rule(struct dt_text *out, char c, size_t width)
{
    for (size_t i = 0; i < width; i++) {
        dt_text_add(out, &c, 1);
    }
    dt_text_puts(out, "\n");
}

void report_write(const struct report_failure *f, int count, int root, const struct report_context *c,
                  struct dt_text *out)
{
    if (count == 0 || root < 0) {
        return;
    }
    struct dt_text others;
    struct dt_text first;
    struct dt_text title;
    dt_text_init(&others);
    dt_text_init(&first);
    dt_text_init(&title);
    report_cause(f, count, root, out);
    if (c->restarts_max > 0) {
        dt_text_printf(out, "; no restart left (%d of %d used)", c->restarts_used, c->restarts_max);
    } else if (c->no_restart != NULL) {
        dt_text_printf(out, "; no restart after %d (%s)", f[root].exit_code, c->no_restart);
    }
    dt_text_puts(out, "\n");
    if (c->tail != NULL && c->tail[0] != '\0') {
        dt_text_printf(out, "last lines of rank %d:\n%s%s", f[root].rank, c->tail,
                       c->tail[strlen(c->tail) - 1] == '\n' ? "" : "\n");
    }
    for (int i = 0; i < count; i++) {
        add_block(&f[i], i, i == root || (f[i].digest != 0 && f[i].digest == f[root].digest),
                  i == root ? &first : &others);
    }
    add_safe(&title, c->title, 4096, NULL);
    dt_text_puts(&title, " FAILED");
    if (others.size == 0) {
        dt_text_puts(&others, "  <NO_OTHER_FAILURES>\n");
    }
    size_t width = longest_line(dt_text_str(&first));
    width = longest_line(dt_text_str(&others)) > width ? longest_line(dt_text_str(&others)) : width;
    width = title.size > width ? title.size : width;
    width = width > 60 ? 60 : width;
    add_rule(out, '=', width);
    dt_text_printf(out, "%s\n", dt_text_str(&title));
    add_rule(out, '-', width);
    dt_text_printf(out, "Failures:\n%s", dt_text_str(&others));
    add_rule(out, '-', width);
    dt_text_printf(out, "Root Cause (first observed failure):\n%s", dt_text_str(&first));
    add_rule(out, '=', width);
    if (c->log_dir != NULL) {
        dt_text_printf(out, "dtrun: logs are in %s\n", c->log_dir);
    }
    if (c->continue_command != NULL) {
        dt_text_printf(out, "dtrun: to continue: %s\n", c->continue_command);
    }
    dt_text_clear(&title);
    dt_text_clear(&first);
    dt_text_clear(&others);
}

int report_write_parent(const char *parent_path, const struct report_failure *f, struct dt_error *err)
{
    if (parent_path == NULL || parent_path[0] == '\0') {
        return 0;
    }
    cJSON *root = f->raw != NULL ? cJSON_Parse(f->raw) : NULL;
    cJSON *message = cJSON_GetObjectItemCaseSensitive(root, "message");
    if (root == NULL) {
        struct dt_text cause;
        char seconds[32];
        dt_text_init(&cause);
        report_cause(f, 1, 0, &cause);
        (void)snprintf(seconds, sizeof seconds, "%.0f", floor(f->wall_s));
        root = cJSON_CreateObject();
        message = cJSON_AddObjectToObject(root, "message");
        (void)cJSON_AddStringToObject(message, "message", dt_text_str(&cause));
        cJSON *extra = cJSON_AddObjectToObject(message, "extraInfo");
        (void)cJSON_AddStringToObject(extra, "py_callstack", dt_text_str(&cause));
        (void)cJSON_AddStringToObject(extra, "timestamp", seconds);
        dt_text_clear(&cause);
    }
    if (cJSON_IsObject(message)) {
        cJSON_DeleteItemFromObjectCaseSensitive(message, "errorCode");
        (void)cJSON_AddNumberToObject(message, "errorCode", f->exit_code);
    }
    char *printed = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    if (printed == NULL) {
        return dt_fail(err, DT_NO_MEMORY, "%s: out of memory", parent_path);
    }
    int result = dt_file_write(parent_path, printed, strlen(printed), err);
    cJSON_free(printed);
    return result != 0 ? dt_wrap(err, "TORCHELASTIC_ERROR_FILE=%.200s", parent_path) : 0;
}

int report_event(const char *path, const char *event, const char *fields, struct dt_error *err)
{
    if (path == NULL) {
        return 0;
    }
    char when[40];
    struct dt_text line;
    dt_text_init(&line);
    dt_wall_text(dt_wall_s(), when, sizeof when);
    dt_text_printf(&line, "{\"time\":\"%s\",\"event\":", when);
    dt_text_json(&line, event, strlen(event));
    if (fields != NULL && fields[0] != '\0') {
        dt_text_printf(&line, ",%s", fields);
    }
    dt_text_puts(&line, "}");
    int result = dt_file_append_line(path, line.data, line.size, err);
    dt_text_clear(&line);
    return result;
}

void report_event_failure(const struct report_failure *f, struct dt_text *out)
{
    struct cause data;
    struct dt_text cause;
    dt_text_init(&cause);
    report_to_cause(f, CAUSE_FAILED, &data);
    cause_add_what(&data, &cause);
    dt_text_printf(out,
                   "\"rank\":%d,\"local_rank\":%d,\"pid\":%ld,\"exit_code\":%d,\"stopped_by_us\":%s,\"host\":", f->rank,
                   f->local_rank, (long)f->pid, f->exit_code, f->stopped_by_us ? "true" : "false");
    dt_text_json(out, f->host, strlen(f->host));
    dt_text_puts(out, ",\"cause\":");
    dt_text_json(out, dt_text_str(&cause), cause.size);
    dt_text_clear(&cause);
}
