/* Each host has one ssh with three pipes: the leash in, and the two outputs back. The agents decide
 * about the job; this file only counts hosts. If this process dies, the leashes end, and with them
 * the agents. */
#include "launcher/ssh/starter.h"

#include "base/clock.h"
#include "launcher/output/console.h"
#include "launcher/options/exports.h"
#include "launcher/options/hostfile.h"
#include "launcher/ssh/leash.h"
#include "launcher/output/log_lines.h"
#include "launcher/workers/process.h"
#include "launcher/hosts/link/secure.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <uv.h>

/* most output that waits for our console; later lines are dropped and counted */
#define KEEP_BYTES ((size_t)8 << 20)
#define SSH_FAILED 255 /* ssh's own exit code; dtrun never ends with it */
/* added to the workers' grace, before hosts that have not ended are cut off */
#define AFTER_S 20.0
/* from the end of an agent's leash until its ssh is killed */
#define CUT_S 10.0
#define KEY_RECORD_BYTES (4 + 2 * sizeof((struct secure_key *)NULL)->bytes + 1) /* "key ", hexadecimal, NUL */
/* longest wait for output after the last ssh has ended; a program in the background may hold the
 * pipes for ever */
#define DRAIN_S 2.0

struct stream {
    struct remote *remote;
    uv_pipe_t pipe;
    struct log_lines lines;
    int side; /* output of the console: 0 or 1 */
};
struct remote {
    struct starter *starter;
    const char *name;
    uv_process_t process;
    uv_pipe_t input;
    struct stream out, err;
    bool running, leashed, spoke; /* spoke: the host wrote a line */
    int signed_code;              /* the agent's signed exit code; -1: none */
    /* ssh has ended without a signed line, which may still be in the pipes */
    bool waits;
    int code; /* exit code, once ssh has ended */
};
struct starter {
    struct options *o;
    char *const *env;
    uv_loop_t loop;
    uv_signal_t signals[65];
    int signal_count;
    uv_timer_t beat, end, rest;
    struct remote *remotes;
    int count, running_count, open_streams;
    int int_count;
    bool ending, cut; /* ending: the job has a verdict; cut: the leashes have been closed */
    bool hung_up;     /* all hosts were sent HUP, so a host that ends by HUP obeyed us */
    int code;         /* the verdict; -1: none yet */
    int judge;        /* the host that gave the verdict; -1: none */
    char sign[LEASH_SIGN_BYTES];
    size_t dropped;
    bool terminal[2], colours; /* of the console's two outputs */
    /* in locked memory of libsodium, which core dumps leave out; null: all hosts have the key */
    char *key_record;
    /* pending writes of the key, plus one while hosts are being started */
    int key_uses;
};

/* ---- output ---- */

static void has_ended(struct remote *r);

/* Length of the line before an agent's signature; the whole line if there is none. A worker may
 * have left an unfinished line in front of the signature. */
static size_t before_sign(struct remote *r, const char *line, size_t size)
{
    char words[sizeof LEASH_SIGN + LEASH_SIGN_BYTES];
    (void)snprintf(words, sizeof words, LEASH_SIGN "%s ", r->starter->sign);
    const char *at = memmem(line, size, words, strlen(words));
    /* strtol stops at the newline or NUL that follows the line in memory */
    long code = at != NULL ? strtol(at + strlen(words), NULL, 10) : -1;
    r->signed_code = code >= 0 && code <= 255 ? (int)code : r->signed_code;
    return at != NULL ? (size_t)(at - line) : size;
}

static void on_line(void *context, const char *line, size_t line_size)
{
    struct stream *s = context;
    struct starter *st = s->remote->starter;
    size_t size = before_sign(s->remote, line, line_size);
    if (size == 0 && line_size > 0) {
        return;
    }
    s->remote->spoke = true;
    if (console_size() > KEEP_BYTES) {
        st->dropped++;
        return;
    }
    struct dt_text text;
    dt_text_init(&text);
    dt_text_printf(&text, "%s: ", s->remote->name);
    if (st->terminal[s->side]) {
        log_safe(&text, line, size, st->colours);
    } else {
        dt_text_add(&text, line, size);
    }
    dt_text_puts(&text, "\n");
    console_put(s->side, text.data, text.size);
    dt_text_clear(&text);
}

static void give_buffer(uv_handle_t *handle, size_t wanted, uv_buf_t *out)
{
    static char buffer[65536]; /* one buffer is enough: the loop does one read at a time */
    (void)handle;
    (void)wanted;
    *out = uv_buf_init(buffer, sizeof buffer);
}

static void close_stream(struct stream *s)
{
    struct starter *st = s->remote->starter;
    if (uv_is_closing((uv_handle_t *)&s->pipe)) {
        return;
    }
    log_lines_end(&s->lines, on_line, s);
    uv_close((uv_handle_t *)&s->pipe, NULL);
    st->open_streams--;
    if (s->remote->waits && uv_is_closing((uv_handle_t *)&s->remote->out.pipe) &&
        uv_is_closing((uv_handle_t *)&s->remote->err.pipe)) {
        has_ended(s->remote);
    } else if (st->open_streams == 0 && st->running_count == 0) {
        uv_close((uv_handle_t *)&st->end, NULL);
    }
}

static void on_output(uv_stream_t *pipe, ssize_t size, const uv_buf_t *buffer)
{
    struct stream *s = pipe->data;
    if (size > 0) {
        log_lines_feed(&s->lines, buffer->base, (size_t)size, on_line, s);
    } else if (size < 0) {
        close_stream(s);
    }
}

/* ---- the leashes ---- */

static void on_written(uv_write_t *write, int status)
{
    (void)status; /* when ssh is gone, on_ssh_end tells */
    free(write->data);
    free(write);
}

/* Drops one use of the key. The last one wipes the key. */
static void release_key(struct starter *st)
{
    if (--st->key_uses == 0) {
        sodium_free(st->key_record);
        st->key_record = NULL;
    }
}

static void on_key_written(uv_write_t *write, int status)
{
    (void)status;
    release_key(write->data);
    free(write);
}

/* Writes the key from where it lies, because a copy would stay in freed memory. */
static void tell_key(struct remote *r)
{
    struct starter *st = r->starter;
    uv_write_t *write = dt_alloc(sizeof *write);
    write->data = st;
    st->key_uses++;
    uv_buf_t buffer = uv_buf_init(st->key_record, KEY_RECORD_BYTES);
    if (uv_write(write, (uv_stream_t *)&r->input, &buffer, 1, on_key_written) != 0) {
        on_key_written(write, 0);
    }
}

static void tell(struct remote *r, const struct dt_text *records)
{
    if (!r->leashed) {
        return;
    }
    uv_write_t *write = dt_alloc(sizeof *write);
    char *copy = dt_alloc(records->size);
    (void)memcpy(copy, records->data, records->size);
    write->data = copy;
    uv_buf_t buffer = uv_buf_init(copy, (unsigned)records->size);
    if (uv_write(write, (uv_stream_t *)&r->input, &buffer, 1, on_written) != 0) {
        on_written(write, 0);
    }
}

static void send_all(struct starter *st, const char *fmt, int number)
{
    struct dt_text record;
    dt_text_init(&record);
    if (number > 0) {
        leash_put(&record, "%s %d", fmt, number);
    } else {
        leash_put(&record, "%s", fmt);
    }
    for (int i = 0; i < st->count; i++) {
        tell(&st->remotes[i], &record);
    }
    dt_text_clear(&record);
}

static void unleash(struct remote *r)
{
    if (r->leashed) {
        r->leashed = false;
        uv_close((uv_handle_t *)&r->input, NULL);
    }
}

static void on_beat(uv_timer_t *timer)
{
    send_all(timer->data, "beat", 0);
}

/* ---- the end ---- */

static void on_end(uv_timer_t *timer)
{
    struct starter *st = timer->data;
    for (int i = 0; i < st->count; i++) {
        struct remote *r = &st->remotes[i];
        if (r->running && st->cut) {
            (void)uv_process_kill(&r->process, SIGKILL);
        } else if (r->running) {
            console_say("dtrun: host %s: has not ended with the others; cutting it off\n", r->name);
            unleash(r);
        }
    }
    if (!st->cut) {
        st->cut = true;
        (void)uv_timer_start(timer, on_end, dt_milliseconds(CUT_S), 0);
    }
}

static void end_within(struct starter *st, double seconds)
{
    if (!st->cut && (!uv_is_active((uv_handle_t *)&st->end) || (double)uv_timer_get_due_in(&st->end) > seconds * 1e3)) {
        (void)uv_timer_start(&st->end, on_end, dt_milliseconds(seconds), 0);
    }
}

static void on_drained(uv_timer_t *timer)
{
    struct starter *st = timer->data;
    for (int i = 0; i < st->count; i++) {
        close_stream(&st->remotes[i].out);
        close_stream(&st->remotes[i].err);
    }
}

/* Called when no ssh runs any more. */
static void close_all(struct starter *st)
{
    for (int i = 0; i < st->signal_count; i++) {
        uv_close((uv_handle_t *)&st->signals[i], NULL);
    }
    uv_close((uv_handle_t *)&st->beat, NULL);
    uv_close((uv_handle_t *)&st->rest, NULL);
    if (st->open_streams > 0) {
        (void)uv_timer_start(&st->end, on_drained, dt_milliseconds(DRAIN_S), 0);
    } else {
        uv_close((uv_handle_t *)&st->end, NULL);
    }
}

/* Codes of a shell whose program is missing or cannot be run. dtrun ends with these codes only
 * where it passes on a worker's. */
static bool is_missing(const struct starter *st, int code)
{
    return (code == 126 || code == 127) && !st->o->stop.exit_code_worker;
}

/* Every agent of a job ends with the job's code. Two codes concern one host alone while others run:
 * 111, and the signal of a lost leash. */
static bool is_verdict(const struct starter *st, const struct remote *r)
{
    int code = r->code;
    return (code != DT_EXIT_DONE || r->signed_code >= 0) && code != SSH_FAILED && code != DT_EXIT_TEMPORARY &&
           (code != 128 + SIGHUP || st->hung_up) && !is_missing(st, code);
}

/* Writes one text at once, because lines of the hosts may come between two writes. */
static void say_lost(const struct starter *st, const struct remote *r, bool enough)
{
    struct dt_text line;
    dt_text_init(&line);
    if (is_missing(st, r->code)) {
        dt_text_printf(&line, "dtrun: host %s: ended with %d: is dtrun at the same path there?; ", r->name, r->code);
    } else if (r->code == DT_EXIT_DONE) {
        dt_text_printf(&line,
                       "dtrun: host %s: ended with 0, and no agent of dtrun said so: does --ssh run what it is given, "
                       "and wait for it?; ",
                       r->name);
    } else if (r->code == DT_EXIT_TEMPORARY) { /* the host's own lines say which */
        dt_text_printf(&line, "dtrun: host %s: ended with %d: did not join the job, or could not stay in it; ", r->name,
                       r->code);
    } else {
        dt_text_printf(&line, "dtrun: host %s: %s; ", r->name,
                       r->code == SSH_FAILED ? "ssh failed, or what it ran was killed: the host is lost"
                                             : "left the job");
    }
    if (enough) {
        dt_text_printf(&line, "going on with %d of %d hosts (minimum %d)\n", st->running_count, st->count,
                       st->o->world.nnodes_min);
    } else {
        dt_text_printf(&line, "too few hosts are left (minimum %d): stopping\n", st->o->world.nnodes_min);
    }
    console_write(dt_text_str(&line), line.size);
    dt_text_clear(&line);
}

static void ended(struct starter *st, const struct remote *r)
{
    st->running_count--;
    if (is_verdict(st, r)) {
        st->judge = st->code < 0 ? (int)(r - st->remotes) : st->judge;
        st->code = st->code < 0 ? r->code : st->code;
        st->ending = true;
        end_within(st, st->o->stop.shutdown_timeout_s + AFTER_S / st->o->time_scale);
    } else if (!st->ending) {
        bool enough = st->running_count >= st->o->world.nnodes_min;
        say_lost(st, r, enough);
        if (!enough) {
            st->ending = true;
            st->code = DT_EXIT_TEMPORARY;
            send_all(st, "signal", SIGTERM);
            end_within(st, st->o->stop.shutdown_timeout_s + AFTER_S / st->o->time_scale);
        }
    }
    if (st->running_count == 0) {
        close_all(st);
    }
}

/* Reads the output that is still in the pipe, before the end of ssh counts. */
static void read_rest(struct stream *s)
{
    char part[65536];
    uv_os_fd_t fd;
    ssize_t size;
    while (uv_fileno((uv_handle_t *)&s->pipe, &fd) == 0 && (size = read(fd, part, sizeof part)) > 0) {
        log_lines_feed(&s->lines, part, (size_t)size, on_line, s);
    }
}

/* A signed code replaces ssh's: --ssh may be a pipeline, which ends with the code of its last
 * part. */
static void has_ended(struct remote *r)
{
    r->waits = false;
    r->code = r->signed_code >= 0 ? r->signed_code : r->code;
    ended(r->starter, r);
}

static void on_rest(uv_timer_t *timer)
{
    struct starter *st = timer->data;
    for (int i = 0; i < st->count; i++) {
        if (st->remotes[i].waits) {
            has_ended(&st->remotes[i]);
        }
    }
}

static void on_ssh_end(uv_process_t *process, int64_t status, int signal)
{
    struct remote *r = process->data;
    struct starter *st = r->starter;
    read_rest(&r->out);
    read_rest(&r->err);
    r->running = false;
    r->code = signal != 0 ? SSH_FAILED : (int)status;
    unleash(r);
    uv_close((uv_handle_t *)process, NULL);
    bool open = !uv_is_closing((uv_handle_t *)&r->out.pipe) || !uv_is_closing((uv_handle_t *)&r->err.pipe);
    r->waits = r->code == DT_EXIT_DONE && r->signed_code < 0 && open;
    if (!r->waits) {
        has_ended(r);
    } else {
        (void)uv_timer_start(&st->rest, on_rest, dt_milliseconds(DRAIN_S), 0);
    }
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct starter *st = handle->data;
    send_all(st, "signal", number);
    st->int_count += number == SIGINT;
    st->hung_up = st->hung_up || number == SIGHUP;
    if (st->int_count > 1) {
        end_within(st, CUT_S / st->o->time_scale);
    } else if (number != SIGUSR1 && number != SIGUSR2) {
        st->ending = true;
        end_within(st, st->o->stop.shutdown_timeout_s + AFTER_S / st->o->time_scale);
    }
}

/* ---- the beginning ---- */

static int open_stream(struct stream *s, struct remote *r, int side)
{
    s->remote = r;
    s->side = side;
    s->pipe.data = s;
    return uv_pipe_init(&r->starter->loop, &s->pipe, 0);
}

static int start_one(struct starter *st, int i, const struct dt_text *opening, struct dt_error *err)
{
    struct remote *r = &st->remotes[i];
    char **words = hostfile_ssh(st->o, i);
    *r = (struct remote){.starter = st, .name = st->o->ssh.host_list[i].name, .code = SSH_FAILED, .signed_code = -1};
    (void)uv_pipe_init(&st->loop, &r->input, 0);
    (void)open_stream(&r->out, r, 0);
    (void)open_stream(&r->err, r, 1);
    r->process.data = r;
    uv_stdio_container_t stdio[3] = {
        {.flags = UV_CREATE_PIPE | UV_READABLE_PIPE, .data.stream = (uv_stream_t *)&r->input},
        {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&r->out.pipe},
        {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&r->err.pipe},
    };
    uv_process_options_t options = {.exit_cb = on_ssh_end,
                                    .file = words[0],
                                    .args = words,
                                    /* only dtrun gets the terminal's Ctrl-C */
                                    .flags = UV_PROCESS_DETACHED,
                                    .stdio_count = 3,
                                    .stdio = stdio};
    int rc = uv_spawn(&st->loop, &r->process, &options);
    if (rc != 0) {
        uv_close((uv_handle_t *)&r->input, NULL);
        uv_close((uv_handle_t *)&r->out.pipe, NULL);
        uv_close((uv_handle_t *)&r->err.pipe, NULL);
        uv_close((uv_handle_t *)&r->process, NULL);
        return dt_fail(err, rc == UV_ENOENT || rc == UV_EACCES ? DT_INVALID : DT_IO, "--ssh: %s: %s", words[0],
                       uv_strerror(rc));
    }
    r->running = r->leashed = true;
    st->running_count++;
    st->open_streams += 2;
    (void)uv_read_start((uv_stream_t *)&r->out.pipe, give_buffer, on_output);
    (void)uv_read_start((uv_stream_t *)&r->err.pipe, give_buffer, on_output);
    tell_key(r);
    tell(r, opening);
    return 0;
}

/* Makes the key by which agents prove themselves to each other: derived from the user's key, or
 * random. The key is never in a command line, an environment or a file. */
static int make_key(struct starter *st, struct dt_error *err)
{
    struct secure_key key;
    if (sodium_init() < 0 || secure_key_read(&key, st->o->rdzv.key_file, err) != 0) {
        return -1;
    }
    if (!key.given) {
        randombytes_buf(key.bytes, sizeof key.bytes);
    }
    st->key_record = sodium_malloc(KEY_RECORD_BYTES);
    st->key_uses = 1;
    if (st->key_record != NULL) {
        (void)memcpy(st->key_record, "key ", 4);
        (void)sodium_bin2hex(st->key_record + 4, KEY_RECORD_BYTES - 4, key.bytes, sizeof key.bytes);
    }
    sodium_memzero(&key, sizeof key);
    return st->key_record != NULL ? 0 : dt_fail_errno(err, "--hostfile: memory for the key");
}

/* The records after the key. */
static void write_opening(struct starter *st, struct dt_text *out)
{
    for (char *const *e = st->env; *e != NULL; e++) {
        if (exports_passes(st->o, *e)) {
            leash_put(out, "env %s", *e);
        }
    }
    leash_put(out, "sign %s", st->sign);
    leash_put(out, "go");
}

/* Opens the key, the loop and the console. On failure all are closed again. */
static int open_all(struct starter *st, struct dt_error *err)
{
    if (make_key(st, err) != 0) {
        return -1;
    }
    int failed = uv_loop_init(&st->loop);
    if (failed != 0) {
        (void)dt_fail(err, DT_IO, "event loop: %s", uv_strerror(failed));
    } else if ((failed = console_open(1, 2, err)) != 0) {
        (void)uv_loop_close(&st->loop);
    }
    if (failed != 0) {
        release_key(st);
    }
    return failed != 0 ? -1 : 0;
}

static void begin(struct starter *st)
{
    struct rlimit files; /* raised, as each host needs three pipes */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    uint64_t beat_ms = dt_milliseconds(st->o->rdzv.dead_after_s * 2 / LEASH_BEATS);
    (void)signal(SIGPIPE, SIG_IGN);
    /* a stopped dtrun would send no beats, and the agents would end */
    (void)signal(SIGTSTP, SIG_IGN);
    sigset_t wishes;
    process_wishes(st->o->stop.signals, &wishes);
    for (int n = 1; n < 65; n++) {
        if (sigismember(&wishes, n) == 1) {
            uv_signal_t *handle = &st->signals[st->signal_count++];
            (void)uv_signal_init(&st->loop, handle);
            handle->data = st;
            (void)uv_signal_start(handle, on_signal, n);
        }
    }
    (void)uv_timer_init(&st->loop, &st->beat);
    (void)uv_timer_init(&st->loop, &st->end);
    (void)uv_timer_init(&st->loop, &st->rest);
    st->beat.data = st->end.data = st->rest.data = st;
    (void)uv_timer_start(&st->beat, on_beat, beat_ms, beat_ms);
}

int starter_run(struct options *o, char *const *env)
{
    struct starter *st = dt_alloc(sizeof *st);
    struct dt_error err;
    struct dt_text opening;
    st->o = o;
    st->env = env;
    st->code = st->judge = -1;
    if (open_all(st, &err) != 0) {
        console_say("dtrun: %s\n", err.text);
        free(st);
        return err.status == DT_INVALID ? DT_EXIT_USAGE : DT_EXIT_TEMPORARY;
    }
    st->terminal[0] = console_is_terminal(0);
    st->terminal[1] = console_is_terminal(1);
    st->colours = console_wants_colours();
    unsigned char random[(LEASH_SIGN_BYTES - 1) / 2];
    randombytes_buf(random, sizeof random);
    (void)sodium_bin2hex(st->sign, sizeof st->sign, random, sizeof random);
    dt_text_init(&opening);
    write_opening(st, &opening);
    begin(st);
    st->count = o->ssh.host_list_count;
    st->remotes = dt_alloc((size_t)st->count * sizeof *st->remotes);
    int result = 0;
    for (int i = 0; i < st->count && result == 0; i++) {
        result = start_one(st, i, &opening, &err);
        st->count = result == 0 ? st->count : i;
    }
    release_key(st);
    dt_text_clear(&opening);
    if (result != 0) {
        console_say("dtrun: %s\n", err.text);
        st->ending = true;
        st->code = err.status == DT_INVALID ? DT_EXIT_USAGE : DT_EXIT_TEMPORARY;
        for (int i = 0; i < st->count; i++) {
            unleash(&st->remotes[i]);
        }
        end_within(st, CUT_S);
        if (st->running_count == 0) {
            close_all(st);
        }
    }
    (void)uv_run(&st->loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&st->loop);
    int code = st->code < 0 ? DT_EXIT_TEMPORARY : st->code;
    /* an agent would have said why it ended */
    if (code != DT_EXIT_DONE && st->judge >= 0 && !st->remotes[st->judge].spoke) {
        console_say("dtrun: host %s: ended with %d without a word: does --ssh run what it is given?\n",
                    st->remotes[st->judge].name, code);
    }
    for (int i = 0; i < st->count; i++) {
        log_lines_clear(&st->remotes[i].out.lines);
        log_lines_clear(&st->remotes[i].err.lines);
    }
    free(st->remotes);
    console_missed(st->dropped, NULL);
    free(st);
    console_close(CONSOLE_STALL_S);
    return code;
}
