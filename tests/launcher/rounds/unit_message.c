/* covers: launcher/rounds/message.c launcher/rounds/protocol.h */
/* Messages between agents: what goes in comes out, for every kind; cut short, longer or
 * malformed bytes are refused; whatever is accepted is what we would have written ourselves. */
#include "base/text.h"
#include "base/file.h"
#include "launcher/rounds/message.h"
#include "launcher/rounds/protocol.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed = 1;

static uint64_t rnd(void)
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return seed ^ seed >> 29;
}

static void fill_text(char *out, size_t capacity, bool full)
{
    size_t size = full ? capacity - 1 : (size_t)(rnd() % capacity);
    for (size_t i = 0; i < size; i++) {
        out[i] = (char)(32 + rnd() % 95);
        if (rnd() % 8 == 0 && i + 1 < size) { /* U+00A0 to U+00BF */
            out[i++] = (char)0xc2;
            out[i] = (char)(0xa0 + rnd() % 32);
        }
    }
    out[size] = 0;
}

static int64_t number(int64_t low, int64_t high)
{
    return low + (int64_t)(rnd() % ((uint64_t)(high - low) + 1));
}

static void fill_number(const struct field *f, void *at)
{
    int64_t x = number(f->low, f->high);
    int i = (int)x;
    if (f->type == FIELD_BOOL) {
        *(bool *)at = x != 0;
    } else if (f->type == FIELD_INT) {
        memcpy(at, &i, sizeof i);
    } else {
        memcpy(at, &x, sizeof x);
    }
}

static void fill_string(const struct field *f, char *s, bool full)
{
    fill_text(s, f->bytes, full);
    for (char *c = s; *c != 0 && f->type == FIELD_CHARS; c++) {
        *c = f->characters[(unsigned char)*c % strlen(f->characters)];
    }
}

/* Values that some agent may send. full: strings and lists are as long as they may be. */
static void fill_fields(const struct field *f, void *value, bool full)
{
    static char body[MESSAGE_BODY_BYTES];
    for (; f->type != FIELD_END; f++) {
        char *at = (char *)value + f->at;
        uint64_t any = rnd() | 1;
        int count = full ? (int)f->high : (int)number(1, f->type == FIELD_LIST ? f->high : 1);
        switch (f->type) {
        case FIELD_U64:
        case FIELD_TERM:
            any = f->type == FIELD_TERM ? any % (FIELDS_TERM_MAX + 1) : any;
            memcpy(at, &any, sizeof any);
            break;
        case FIELD_I64:
        case FIELD_INT:
        case FIELD_BOOL:
            fill_number(f, at);
            break;
        case FIELD_SECONDS:
            *(double *)(void *)at = (double)number(0, INT32_MAX) / 1024.0;
            break;
        case FIELD_NAME:
        case FIELD_LINE:
        case FIELD_LINES:
        case FIELD_CHARS:
            fill_string(f, at, full);
            break;
        case FIELD_BODY:
            for (size_t i = 0; i < sizeof body; i++) {
                body[i] = (char)rnd();
            }
            *(struct field_body *)(void *)at =
                (struct field_body){body, full ? (size_t)f->high : (size_t)number(0, f->high)};
            break;
        case FIELD_STRUCT:
            fill_fields(f->of, at, full);
            break;
        case FIELD_LIST:
            memcpy((char *)value + f->count_at, &count, sizeof count);
            for (int i = 0; i < f->high; i++) {
                fill_fields(f->of, at + (size_t)i * f->bytes, full);
            }
            break;
        case FIELD_CHECK:
        case FIELD_END:
            break;
        }
    }
}

static void fill(struct message *m, enum message_kind kind, bool full)
{
    memset(m, 0, sizeof *m);
    m->kind = kind;
    fill_fields(message_fields(kind), m, full);
    if (kind == MESSAGE_REDIRECT || kind == MESSAGE_PROBE || kind == MESSAGE_YIELD) {
        m->redirect.port |= 1;
    }
    if (kind == MESSAGE_CAUSE) {
        m->cause.cause.kind = CAUSE_FAILED;
        m->cause.cause.rank = abs(m->cause.cause.rank);
    }
    if (kind == MESSAGE_EVENT) {
        m->event.cause.rank = abs(m->event.cause.rank);
    }
    if (kind == MESSAGE_ACTION) { /* of a round that its record knows, with a leader */
        struct record *r = &m->action.record;
        r->round = (int)number(1, MESSAGE_COUNT_MAX);
        r->leader = r->council[0].id;
        r->council[0].port |= 1;
        m->action.order = number(0, 9);
        m->action.action.place = (struct place){r->round, 1, 2, 3, (int)number(2, 80000 - 8), 80000, 2, 10, 8};
    }
}

static int decode(struct message *m, const struct dt_text *bytes)
{
    struct dt_error err;
    static char *exact; /* of its size, so that reading behind the end is seen; a body points
                         * into it until the next message */
    exact = dt_realloc(exact, bytes->size + 1);
    memcpy(exact, bytes->data, bytes->size);
    return message_decode(m, exact, bytes->size, &err);
}

static void every_kind_comes_back(void **state)
{
    static struct message in, out;
    (void)state;
    for (int kind = 1; kind < MESSAGE_KIND_COUNT; kind++) {
        for (int i = 0; i < 20; i++) {
            struct dt_text bytes = {0}, again = {0};
            fill(&in, (enum message_kind)kind, i == 0);
            message_encode(&in, &bytes);
            assert_true(bytes.size <= MESSAGE_MAX_BYTES);
            assert_int_equal(decode(&out, &bytes), 0);
            assert_int_equal(out.kind, kind);
            assert_true(out.term == in.term);
            message_encode(&out, &again);
            assert_int_equal(again.size, bytes.size);
            assert_memory_equal(again.data, bytes.data, bytes.size);
            dt_text_clear(&bytes);
            dt_text_clear(&again);
        }
    }
}

/* Where fuzzing begins: messages of this version, of every kind. DTRUN_WRITE_SEEDS=1 writes them
 * anew. */
static void the_corpus_is_understood(void **state)
{
    static struct message in, out;
    struct dt_error err;
    (void)state;
    for (int kind = 1; kind < MESSAGE_KIND_COUNT; kind++) {
        struct dt_text bytes = {0};
        char path[128];
        (void)snprintf(path, sizeof path, "tests/fuzz/corpus/message/%s", message_name((enum message_kind)kind));
        if (getenv("DTRUN_WRITE_SEEDS") != NULL) {
            fill(&in, (enum message_kind)kind, false);
            if (kind == MESSAGE_STATUS && in.status.lines.size > 100) {
                in.status.lines.size = 100;
            }
            message_encode(&in, &bytes);
            assert_int_equal(dt_file_write(path, bytes.data, bytes.size, &err), 0);
            dt_text_reset(&bytes);
        }
        if (dt_file_read(path, MESSAGE_MAX_BYTES, &bytes, &err) != 0 || decode(&out, &bytes) != 0) {
            fail_msg("%s: not a message of today; DTRUN_WRITE_SEEDS=1 build/tests/unit_message writes it anew", path);
        }
        assert_int_equal(out.kind, kind);
        dt_text_clear(&bytes);
    }
}

static void fields_arrive(void **state)
{
    static struct message in, out;
    struct dt_text bytes = {0};
    (void)state;
    static const struct cause cause = {.kind = CAUSE_FAILED, .host = "b", .rank = 1, .words = "a file"};
    struct event e = {.kind = EVENT_FAILED,
                      .failure = FAILURE_PERMANENT,
                      .step = 12,
                      .role = "trainer",
                      .cause = &cause,
                      .weak = true,
                      .out_of_memory = true,
                      .at_step = 11};
    message_set_event(&in, &e);
    message_encode(&in, &bytes);
    assert_int_equal(decode(&out, &bytes), 0);
    struct event came = message_event_of(&out);
    assert_string_equal(came.role, e.role);
    assert_ptr_equal(came.cause, &out.event.cause);
    assert_memory_equal(came.cause, &cause, sizeof cause);
    assert_true(came.weak && came.out_of_memory && came.at_step == 11);
    assert_true(came.step == 12 && came.kind == e.kind && came.failure == e.failure);
    dt_text_clear(&bytes);
    fill(&in, MESSAGE_ACTION, true);
    in.action.record.history.best_saved = -1;
    message_encode(&in, &bytes);
    assert_int_equal(decode(&out, &bytes), 0);
    assert_memory_equal(&out.action.action.place, &in.action.action.place, sizeof in.action.action.place);
    assert_int_equal(out.action.record.council_count, MESSAGE_COUNCIL);
    assert_string_equal(out.action.record.council[6].address, in.action.record.council[6].address);
    assert_true(out.action.record.history.best_saved == -1);
    dt_text_clear(&bytes);
}

static void every_cut_is_refused(void **state)
{
    static struct message in, out;
    struct dt_error err;
    (void)state;
    for (int kind = 1; kind < MESSAGE_KIND_COUNT; kind++) {
        struct dt_text bytes = {0};
        fill(&in, (enum message_kind)kind, false);
        message_encode(&in, &bytes);
        for (size_t size = 0; size < bytes.size; size++) {
            assert_int_equal(message_decode(&out, bytes.data, size, &err), -1);
        }
        dt_text_add(&bytes, "", 1);
        assert_int_equal(message_decode(&out, bytes.data, bytes.size, &err), -1);
        dt_text_clear(&bytes);
    }
}

static void malformed_values_are_refused(void **state)
{
    static struct message in, out;
    struct dt_error err;
    (void)state;
    enum { BODY = 10, ROUND = BODY, FINISHED = ROUND + 8, CODE = BODY + 24, TEXT = CODE + 8 }; /* places */
    struct dt_text ack = {0};
    char other[32];
    fill(&in, MESSAGE_ACK, false);
    message_encode(&in, &ack);
    assert_int_equal(message_decode(&out, ack.data, ack.size, &err), 0);
    ack.data[FINISHED] = 2; /* neither true nor false */
    assert_int_equal(message_decode(&out, ack.data, ack.size, &err), -1);
    ack.data[FINISHED] = 1;
    ack.data[ROUND + 7] = (char)0x80; /* a negative round */
    assert_int_equal(message_decode(&out, ack.data, ack.size, &err), -1);
    ack.data[ROUND + 7] = 0;
    ack.data[0] = PROTOCOL_VERSION + 1;
    assert_int_equal(message_decode(&out, ack.data, ack.size, &err), -1);
    (void)snprintf(other, sizeof other, "version %d;", PROTOCOL_VERSION + 1);
    assert_non_null(strstr(err.text, other));
    assert_non_null(strstr(err.text, "run the same dtrun"));
    ack.data[0] = 1;
    for (int kind = 0; kind < 256; kind++) {
        ack.data[1] = (char)kind;
        if (kind == 0 || kind >= MESSAGE_KIND_COUNT) {
            assert_int_equal(message_decode(&out, ack.data, ack.size, &err), -1);
        }
    }
    dt_text_clear(&ack);

    struct dt_text refuse = {0};
    fill(&in, MESSAGE_REFUSE, false);
    in.refuse.code = 2;
    (void)snprintf(in.refuse.text, sizeof in.refuse.text, "abc");
    message_encode(&in, &refuse);
    assert_int_equal(message_decode(&out, refuse.data, refuse.size, &err), 0);
    refuse.data[TEXT] = (char)0xff; /* a text longer than what follows, and than any text may be */
    refuse.data[TEXT + 1] = (char)0xff;
    assert_int_equal(message_decode(&out, refuse.data, refuse.size, &err), -1);
    refuse.data[TEXT] = 3;
    refuse.data[TEXT + 1] = 0;
    refuse.data[TEXT + 3] = 0; /* a NUL inside */
    assert_int_equal(message_decode(&out, refuse.data, refuse.size, &err), -1);
    refuse.data[TEXT + 3] = 'b';
    refuse.data[CODE + 1] = 1; /* exit code 258 */
    assert_int_equal(message_decode(&out, refuse.data, refuse.size, &err), -1);
    dt_text_clear(&refuse);

    struct dt_text beat = {0};
    fill(&in, MESSAGE_BEAT_ACK, false);
    message_encode(&in, &beat);
    memset(beat.data + BODY, 0xff, 8); /* not a number */
    assert_int_equal(message_decode(&out, beat.data, beat.size, &err), -1);
    dt_text_clear(&beat);
}

/* Sets one field of a good message, which is refused for it then, with a text that names the
 * field. */
struct wrong {
    enum message_kind kind;
    const char *text;
    void (*set)(struct message *m);
};

#define WRONG(kind_, text_, name, ...)                                                                                 \
    static void name(struct message *m)                                                                                \
    {                                                                                                                  \
        __VA_ARGS__;                                                                                                   \
    }
#define ALL_WRONG(X)                                                                                                   \
    X(MESSAGE_ACK, "term 9223372036854775809", late_term, m->term = FIELDS_TERM_MAX + 1)                               \
    X(MESSAGE_ACK, "round 1000000001", late_round, m->ack.round = MESSAGE_COUNT_MAX + 1)                               \
    X(MESSAGE_ACK, "round -1", no_round, m->ack.round = -1)                                                            \
    X(MESSAGE_JOIN, "order 9223372036854775807", far_order, m->join.info.order = INT64_MAX)                            \
    X(MESSAGE_JOIN, "order -2", no_order, m->join.info.order = -2)                                                     \
    X(MESSAGE_JOIN, "port 65536", far_port, m->join.info.port = 65536)                                                 \
    X(MESSAGE_JOIN, "pid -1", no_pid, m->join.info.pid = -1)                                                           \
    X(MESSAGE_JOIN, "workers 0", no_workers, m->join.local_world_size = 0)                                             \
    X(MESSAGE_JOIN, "workers 4097", many_workers, m->join.local_world_size = MESSAGE_LOCAL_MAX + 1)                    \
    X(MESSAGE_JOIN, "count -1", no_count, m->join.seek_count = -1)                                                     \
    X(MESSAGE_JOIN, "preference -2", no_preference, m->join.preference = -2)                                           \
    X(MESSAGE_JOIN, "stamp nan", nan_stamp, m->join.stamp = NAN)                                                       \
    X(MESSAGE_JOIN, "clock inf", infinite_clock, m->join.clock_s = INFINITY)                                           \
    X(MESSAGE_BEAT_ACK, "echo -1", negative_echo, m->beat_ack.echo = -1)                                               \
    X(MESSAGE_BEAT_ACK, "stamp 1e+300", far_stamp, m->beat_ack.stamp = 1e300)                                          \
    X(MESSAGE_BEAT, "hosts 10241", many_hosts, m->beat.hosts = COORDINATOR_MAX_NODES + 1)                              \
    X(MESSAGE_REDIRECT, "nobody", redirect_to_nobody, m->redirect.id = 0)                                              \
    X(MESSAGE_PROBE, "nobody", probe_nowhere, m->probe.port = 0)                                                       \
    X(MESSAGE_YIELD, "nobody", yield_to_nobody, m->yield.id = 0)                                                       \
    X(MESSAGE_YIELD, "address", strange_address, (void)strcpy(m->yield.address, "$(id)"))                              \
    X(MESSAGE_PREPARE, "council 2: nobody", empty_council, m->prepare.record.council_count = 3,                        \
      m->prepare.record.council[2].id = 0)                                                                             \
    X(MESSAGE_PREPARE, "council -1", no_council, m->prepare.record.council_count = -1)                                 \
    X(MESSAGE_PREPARE, "next order -1", no_next_order, m->prepare.record.next_order = -1)                              \
    X(MESSAGE_PREPARE, "next order 9223372036854775807", far_next_order, m->prepare.record.next_order = INT64_MAX)     \
    X(MESSAGE_PREPARE, "restarts used 2147483647", many_restarts, m->prepare.record.history.restarts_used = INT32_MAX) \
    X(MESSAGE_KEEP, "without progress 2147483647", no_progress, m->keep.record.history.no_progress = INT32_MAX)        \
    X(MESSAGE_KEEP, "best step -2", no_best_step, m->keep.record.history.best_step = -2)                               \
    X(MESSAGE_VOTE, "best saved step", far_best_saved, m->vote.record.history.best_saved = MESSAGE_STEP_MAX + 1)       \
    X(MESSAGE_VOTE_ASK, "record: term", late_record, m->vote_ask.record.term = UINT64_MAX)                             \
    X(MESSAGE_VOTE_ASK, "record: round", far_record, m->vote_ask.record.round = INT32_MAX)                             \
    X(MESSAGE_VOTE_ASK, "record: members", record_members, m->vote_ask.record.members = INT32_MAX)                     \
    X(MESSAGE_EVENT, "event 5", event_of_a_leader, m->event.event.kind = EVENT_LOST)                                   \
    X(MESSAGE_EVENT, "failure 3", unknown_failure, m->event.event.failure = (enum failure_kind)3)                      \
    X(MESSAGE_EVENT, "workers 4097", event_workers, m->event.event.local_world_size = MESSAGE_LOCAL_MAX + 1)           \
    X(MESSAGE_EVENT, "step 4611686018427387904", far_step, m->event.event.step = (int64_t)1 << 62)                     \
    X(MESSAGE_EVENT, "saved step", no_saved_step, m->event.event.saved_step = INT64_MIN)                               \
    X(MESSAGE_EVENT, "out of memory", far_at_step, m->event.event.at_step = INT64_MAX)                                 \
    X(MESSAGE_CAUSE, "cause: none", no_cause, m->cause.cause.kind = CAUSE_NONE)                                        \
    X(MESSAGE_CAUSE, "neither a rank nor words", says_nothing, m->cause.cause.rank = -1;                               \
      m->cause.cause.words[0] = '\0')                                                                                  \
    X(MESSAGE_CAUSE, "cause: kind 4", unknown_cause, m->cause.cause.kind = CAUSE_KIND_COUNT)                           \
    X(MESSAGE_EVENT, "cause: rank -2", no_rank, m->event.cause.rank = -2)                                              \
    X(MESSAGE_EVENT, "cause: fault 3", unknown_fault, m->event.cause.blame.fault = DT_FAULT_COUNT)                     \
    X(MESSAGE_CAUSE, "cause: blamed rank -1", blamed_nobody, m->cause.cause.blame.rank = -1)                           \
    X(MESSAGE_CAUSE, "cause: told 3", unknown_told, m->cause.cause.blame.told = DT_TOLD_COUNT)                         \
    X(MESSAGE_CAUSE, "cause: teller -1", no_teller, m->cause.cause.blame.teller = -1)                                  \
    X(MESSAGE_STATUS, "part -1", no_part, m->status.part = -1)                                                         \
    X(MESSAGE_ACTION, "order -1", start_without_order, start(m); m->action.order = -1)                                 \
    X(MESSAGE_ACTION, "sizes", strange_sizes, start(m); (void)strcpy(m->action.sizes, "8;id"))                         \
    X(MESSAGE_ACTION, "names no leader", start_without_leader, start(m); m->action.record.leader++)                    \
    X(MESSAGE_ACTION, "names no leader", leader_nowhere, start(m); m->action.record.council[0].port = 0)               \
    X(MESSAGE_ACTION, "the round is 4", start_of_another_round, start(m); m->action.action.place.round = 4)            \
    X(MESSAGE_ACTION, "no place", place_without_round, start(m);                                                       \
      m->action.action.place.round = m->action.record.round = 0)                                                       \
    X(MESSAGE_ACTION, "no place", place_of_none, start(m); m->action.action.place.local_world_size = 0)                \
    X(MESSAGE_ACTION, "no place", place_of_many, start(m);                                                             \
      m->action.action.place.local_world_size = MESSAGE_LOCAL_MAX + 1)                                                 \
    X(MESSAGE_ACTION, "no place", host_outside, start(m); m->action.action.place.group_rank = 3)                       \
    X(MESSAGE_ACTION, "no place", more_hosts_than_ranks, start(m); m->action.action.place.group_world_size = 21)       \
    X(MESSAGE_ACTION, "no place", ranks_outside, start(m); m->action.action.place.rank = 13)                           \
    X(MESSAGE_ACTION, "no place", rank_before_its_host, start(m);                                                      \
      m->action.action.place.rank = m->action.action.place.role_rank = 0)                                              \
    X(MESSAGE_ACTION, "no place", role_outside, start(m); m->action.action.place.role_rank = 3)                        \
    X(MESSAGE_ACTION, "no place", role_too_large, start(m); m->action.action.place.role_world_size = 21)               \
    X(MESSAGE_ACTION, "place: rank 2147483647", far_rank, start(m); m->action.action.place.rank = INT32_MAX)           \
    X(MESSAGE_ACTION, "place: world size -1", no_world, start(m); m->action.action.place.world_size = -1)

/* A host with 8 of 20 ranks, the last one of three. */
static void start(struct message *m)
{
    m->action.action = (struct action){.kind = ACTION_START, .place = {3, 0, 2, 3, 12, 20, 2, 10, 8}};
    m->action.record.round = 3;
}
ALL_WRONG(WRONG)

#define ROW(kind_, text_, name, ...) {kind_, text_, name},
static const struct wrong wrongs[] = {ALL_WRONG(ROW)};

static void wrong_values_are_refused_by_name(void **state)
{
    static struct message in, out;
    struct dt_error err;
    (void)state;
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        struct dt_text bytes = {0};
        for (int wrong = 0; wrong < 2; wrong++) {
            fill(&in, wrongs[i].kind, false);
            if (wrongs[i].kind == MESSAGE_ACTION) {
                start(&in);
            }
            if (wrong == 1) {
                wrongs[i].set(&in);
            }
            dt_text_reset(&bytes);
            message_encode(&in, &bytes);
            int result = message_decode(&out, bytes.data, bytes.size, &err);
            if (result != -wrong) {
                fail_msg("%s: %s", wrongs[i].text, wrong == 1 ? "accepted" : err.text);
            }
        }
        if (strstr(err.text, wrongs[i].text) == NULL || strstr(err.text, message_name(wrongs[i].kind)) != err.text) {
            fail_msg("%s: not in: %s", wrongs[i].text, err.text);
        }
        dt_text_clear(&bytes);
    }
}

/* Names and texts: whatever we have to say arrives, harmless; what a stranger wrote otherwise is
 * refused. */
static void texts_are_harmless(void **state)
{
    static const char *const harmful[] = {"\033[2J",
                                          "a\rb",
                                          "\x7f",
                                          "\xc2\x9b"
                                          "2J",
                                          "a\xe2\x80\xae"
                                          "b",
                                          "a\x9b"
                                          "b",
                                          "h\xc3"};
    static struct message in, out;
    struct dt_error err;
    (void)state;
    for (size_t i = 0; i < sizeof harmful / sizeof harmful[0]; i++) {
        struct dt_text bytes = {0};
        fill(&in, MESSAGE_JOIN, false);
        size_t size = strlen(harmful[i]);
        (void)strcpy(in.join.info.host, harmful[i]);
        message_encode(&in, &bytes);
        assert_int_equal(message_decode(&out, bytes.data, bytes.size, &err), -1);
        assert_string_equal(err.text, "join message: host: control characters, or no UTF-8");
        dt_text_reset(&bytes);
        fill(&in, MESSAGE_EVENT, false);
        (void)strcpy(in.event.cause.words, harmful[i]);
        message_encode(&in, &bytes);
        assert_int_equal(message_decode(&out, bytes.data, bytes.size, &err), 0);
        assert_int_equal(strlen(out.event.cause.words), size);
        assert_non_null(strchr(out.event.cause.words, '?'));
        dt_text_clear(&bytes);
    }
    struct dt_text bytes = {0};
    char *text = in.join.digest;
    const size_t room = sizeof in.join.digest;
    fill(&in, MESSAGE_JOIN, false);
    memset(text, 'x', room); /* the end of the room is in the middle of a character */
    memcpy(text + room - 3, "\xe2\x82\xac", 3);
    text[5] = '\n';
    message_encode(&in, &bytes);
    assert_int_equal(message_decode(&out, bytes.data, bytes.size, &err), 0);
    assert_int_equal(out.join.digest[5], '\n'); /* lines of values */
    assert_string_equal(out.join.digest + room - 3, "??");
    dt_text_reset(&bytes);
    fill(&in, MESSAGE_REFUSE, false); /* one line for people */
    (void)snprintf(in.refuse.text, sizeof in.refuse.text, "not yet\nnever");
    message_encode(&in, &bytes);
    assert_int_equal(message_decode(&out, bytes.data, bytes.size, &err), 0);
    assert_string_equal(out.refuse.text, "not yet?never");
    dt_text_clear(&bytes);
}

/* One byte changed anywhere: refused, or exactly what we would send for what was understood. */
static void what_is_accepted_is_canonical(void **state)
{
    static struct message in, out;
    struct dt_error err;
    (void)state;
    for (int kind = 1; kind < MESSAGE_KIND_COUNT; kind++) {
        struct dt_text bytes = {0}, again = {0};
        fill(&in, (enum message_kind)kind, false);
        message_encode(&in, &bytes);
        for (size_t i = 0; i < bytes.size; i++) {
            char was = bytes.data[i];
            bytes.data[i] = (char)(was ^ (char)(1u << rnd() % 8));
            if (message_decode(&out, bytes.data, bytes.size, &err) == 0) {
                dt_text_reset(&again);
                message_encode(&out, &again);
                assert_int_equal(again.size, bytes.size);
                assert_memory_equal(again.data, bytes.data, bytes.size);
            }
            bytes.data[i] = was;
        }
        dt_text_clear(&bytes);
        dt_text_clear(&again);
    }
}

static void names(void **state)
{
    (void)state;
    assert_string_equal(message_name(MESSAGE_JOIN), "join");
    assert_string_equal(message_name(MESSAGE_BYE), "bye");
    assert_string_equal(message_name((enum message_kind)200), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_comes_back),
        cmocka_unit_test(the_corpus_is_understood),
        cmocka_unit_test(fields_arrive),
        cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(malformed_values_are_refused),
        cmocka_unit_test(wrong_values_are_refused_by_name),
        cmocka_unit_test(texts_are_harmless),
        cmocka_unit_test(what_is_accepted_is_canonical),
        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
