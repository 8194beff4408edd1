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

/* A step, or an order. */
static int64_t step(void)
{
    return (int64_t)(rnd() % ((uint64_t)MESSAGE_STEP_MAX + 2)) - 1;
}

static uint64_t term(void)
{
    return rnd() % (MESSAGE_TERM_MAX + 1);
}

static int number(int low, int high)
{
    return low + (int)(rnd() % ((uint64_t)(high - low) + 1));
}

static void fill_info(struct peer_info *p, bool full)
{
    p->id = rnd() | 1;
    p->order = step();
    p->port = number(1, 65535);
    p->pid = number(0, INT32_MAX);
    p->machine = rnd();
    fill_text(p->host, sizeof p->host, full);
    fill_text(p->address, sizeof p->address, full);
    for (char *c = p->address; *c != 0; c++) {
        *c = "0123456789abcdef.:%"[(unsigned char)*c % 19];
    }
}

static void fill(struct message *m, enum message_kind kind, bool full)
{
    static char body[MESSAGE_BODY_BYTES];
    struct record *r = &m->record;
    memset(m, 0, sizeof *m);
    m->body = body;
    m->body_size = full ? sizeof body : (size_t)(rnd() % sizeof body);
    for (size_t i = 0; i < sizeof body; i++) {
        body[i] = (char)rnd();
    }
    m->kind = kind;
    m->term = term();
    m->round = number(0, MESSAGE_COUNT_MAX);
    m->granted = rnd() % 2 != 0;
    m->finished = rnd() % 2 != 0;
    m->code = number(0, 255);
    m->local_world_size = number(1, MESSAGE_LOCAL_MAX);
    m->count = kind == MESSAGE_BEAT    ? number(-1, 0)
               : kind == MESSAGE_CAUSE ? number(CAUSE_PEER, CAUSE_FAILED)
               : kind == MESSAGE_VOTE  ? number(0, 1)
                                       : number(0, MESSAGE_COUNT_MAX);
    m->members = number(0, COORDINATOR_MAX_NODES);
    m->stamp = number(0, INT32_MAX) / 1024.0;
    m->echo = number(0, INT32_MAX) / 1024.0;
    m->nonce[0] = rnd();
    m->nonce[1] = rnd();
    fill_info(&m->info, full);
    fill_text(m->role, sizeof m->role, full);
    fill_text(m->text, sizeof m->text, full);
    *r = (struct record){.nonce = {rnd(), rnd()},
                         .term = term(),
                         .leader = rnd(),
                         .round = number(1, MESSAGE_COUNT_MAX),
                         .restarts_used = number(0, 99),
                         .no_progress = number(0, 9),
                         .best_step = step(),
                         .best_saved = -1,
                         .oom_step = step(),
                         .oom_seen = rnd() % 2 != 0,
                         .next_order = step() + 1 > 0 ? 7 : 0,
                         .finished = rnd() % 2 != 0,
                         .committed = rnd() % 2 != 0,
                         .code = number(0, 255),
                         .members = number(0, COORDINATOR_MAX_NODES),
                         .leader_in = number(0, 1) != 0,
                         .before_leader = rnd()};
    r->council_count = full ? MESSAGE_COUNCIL : number(1, MESSAGE_COUNCIL);
    r->before_count = full ? MESSAGE_COUNCIL : number(0, MESSAGE_COUNCIL);
    for (int i = 0; i < MESSAGE_COUNCIL; i++) {
        fill_info(&r->council[i], full);
        fill_info(&r->before[i], full);
    }
    m->event = (struct event){.kind = (enum event_kind)number(0, EVENT_STOP),
                              .round = number(0, 1000),
                              .local_world_size = number(0, MESSAGE_LOCAL_MAX),
                              .order = step(),
                              .role = m->role,
                              .failure = (enum failure_kind)number(0, FAILURE_START),
                              .code = number(0, 255),
                              .step = step(),
                              .saved_step = -1,
                              .why = m->text,
                              .weak = rnd() % 2 != 0,
                              .out_of_memory = rnd() % 2 != 0,
                              .at_step = step()};
    m->action = (struct action){.kind = (enum action_kind)number(0, ACTION_REFUSE),
                                .code = number(0, 255),
                                .place = {r->round, 1, 2, 3, number(2, 80000 - 8), 80000, 2, 10, 8}};
    if (kind == MESSAGE_ACTION) { /* of a round that its record knows, with a leader */
        r->leader = r->council[0].id;
        m->info.order = number(0, 9);
        (void)snprintf(m->text, sizeof m->text, "8(x3),4");
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
            assert_true(out.term == in.term && out.round == in.round);
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
            in.body_size = in.body_size > 100 ? 100 : in.body_size;
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
    fill(&in, MESSAGE_EVENT, false);
    const char *role = "trainer";
    in.event.role = role; /* as the leader's own node gives it */
    in.event.why = "host b rank 1: exit code 3";
    message_encode(&in, &bytes);
    assert_int_equal(decode(&out, &bytes), 0);
    assert_string_equal(out.event.role, role);
    assert_string_equal(out.event.why, in.event.why);
    assert_int_equal(out.event.weak, in.event.weak);
    assert_int_equal(out.event.out_of_memory, in.event.out_of_memory);
    assert_true(out.event.at_step == in.event.at_step);
    assert_ptr_equal(out.event.role, out.role);
    assert_true(out.event.step == in.event.step && out.event.kind == in.event.kind &&
                out.event.failure == in.event.failure);
    dt_text_clear(&bytes);
    fill(&in, MESSAGE_ACTION, true);
    message_encode(&in, &bytes);
    assert_int_equal(decode(&out, &bytes), 0);
    assert_memory_equal(&out.action.place, &in.action.place, sizeof in.action.place);
    assert_int_equal(out.record.council_count, MESSAGE_COUNCIL);
    assert_string_equal(out.record.council[6].address, in.record.council[6].address);
    assert_true(out.record.best_saved == -1);
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
    enum { TERM = 2, ROUND = 10, BODY = 18, CODE = BODY + 17, TEXT = CODE + 8 };
    struct dt_text ack = {0};
    char other[32];
    fill(&in, MESSAGE_ACK, false);
    message_encode(&in, &ack);
    assert_int_equal(message_decode(&out, ack.data, ack.size, &err), 0);
    ack.data[BODY] = 2; /* neither true nor false */
    assert_int_equal(message_decode(&out, ack.data, ack.size, &err), -1);
    ack.data[BODY] = 1;
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
    in.code = 2;
    (void)snprintf(in.text, sizeof in.text, "abc");
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
    X(MESSAGE_ACK, "term 9223372036854775809", late_term, m->term = MESSAGE_TERM_MAX + 1)                              \
    X(MESSAGE_ACK, "round 1000000001", late_round, m->round = MESSAGE_COUNT_MAX + 1)                                   \
    X(MESSAGE_ACK, "round -1", no_round, m->round = -1)                                                                \
    X(MESSAGE_JOIN, "order 9223372036854775807", far_order, m->info.order = INT64_MAX)                                 \
    X(MESSAGE_JOIN, "order -2", no_order, m->info.order = -2)                                                          \
    X(MESSAGE_JOIN, "port 65536", far_port, m->info.port = 65536)                                                      \
    X(MESSAGE_JOIN, "pid -1", no_pid, m->info.pid = -1)                                                                \
    X(MESSAGE_JOIN, "workers 0", no_workers, m->local_world_size = 0)                                                  \
    X(MESSAGE_JOIN, "workers 4097", many_workers, m->local_world_size = MESSAGE_LOCAL_MAX + 1)                         \
    X(MESSAGE_JOIN, "count -1", no_count, m->count = -1)                                                               \
    X(MESSAGE_JOIN, "preference -2", no_preference, m->preference = -2)                                                \
    X(MESSAGE_JOIN, "stamp nan", nan_stamp, m->stamp = NAN)                                                            \
    X(MESSAGE_JOIN, "clock inf", infinite_clock, m->wall_s = INFINITY)                                                 \
    X(MESSAGE_BEAT_ACK, "echo -1", negative_echo, m->echo = -1)                                                        \
    X(MESSAGE_BEAT_ACK, "stamp 1e+300", far_stamp, m->stamp = 1e300)                                                   \
    X(MESSAGE_BEAT, "members 10241", many_members, m->members = COORDINATOR_MAX_NODES + 1)                             \
    X(MESSAGE_BEAT, "count 1", late_beat, m->count = 1)                                                                \
    X(MESSAGE_REDIRECT, "nobody", redirect_to_nobody, m->info.id = 0)                                                  \
    X(MESSAGE_PROBE, "nobody", probe_nowhere, m->info.port = 0)                                                        \
    X(MESSAGE_YIELD, "nobody", yield_to_nobody, m->info.id = 0)                                                        \
    X(MESSAGE_YIELD, "address", strange_address, (void)strcpy(m->info.address, "$(id)"))                               \
    X(MESSAGE_PREPARE, "council 2: nobody", empty_council, m->record.council_count = 3, m->record.council[2].id = 0)   \
    X(MESSAGE_PREPARE, "council -1", no_council, m->record.council_count = -1)                                         \
    X(MESSAGE_PREPARE, "next order -1", no_next_order, m->record.next_order = -1)                                      \
    X(MESSAGE_PREPARE, "next order 9223372036854775807", far_next_order, m->record.next_order = INT64_MAX)             \
    X(MESSAGE_PREPARE, "restarts used 2147483647", many_restarts, m->record.restarts_used = INT32_MAX)                 \
    X(MESSAGE_KEEP, "without progress 2147483647", no_progress, m->record.no_progress = INT32_MAX)                     \
    X(MESSAGE_KEEP, "best step -2", no_best_step, m->record.best_step = -2)                                            \
    X(MESSAGE_VOTE, "best saved step", far_best_saved, m->record.best_saved = MESSAGE_STEP_MAX + 1)                    \
    X(MESSAGE_VOTE_ASK, "record: term", late_record, m->record.term = UINT64_MAX)                                      \
    X(MESSAGE_VOTE_ASK, "record: round", far_record, m->record.round = INT32_MAX)                                      \
    X(MESSAGE_VOTE_ASK, "record: members", record_members, m->record.members = INT32_MAX)                              \
    X(MESSAGE_EVENT, "event 5", event_of_a_leader, m->event.kind = EVENT_LOST)                                         \
    X(MESSAGE_EVENT, "failure 3", unknown_failure, m->event.failure = (enum failure_kind)3)                            \
    X(MESSAGE_EVENT, "workers 4097", event_workers, m->event.local_world_size = MESSAGE_LOCAL_MAX + 1)                 \
    X(MESSAGE_EVENT, "step 4611686018427387904", far_step, m->event.step = (int64_t)1 << 62)                           \
    X(MESSAGE_EVENT, "saved step", no_saved_step, m->event.saved_step = INT64_MIN)                                     \
    X(MESSAGE_EVENT, "out of memory", far_at_step, m->event.at_step = INT64_MAX)                                       \
    X(MESSAGE_CAUSE, "cause 0", no_cause, m->count = 0)                                                                \
    X(MESSAGE_STATUS, "part -1", no_part, m->count = -1)                                                               \
    X(MESSAGE_ACTION, "order -1", start_without_order, start(m); m->info.order = -1)                                   \
    X(MESSAGE_ACTION, "sizes", strange_sizes, start(m); (void)strcpy(m->text, "8;id"))                                 \
    X(MESSAGE_ACTION, "names no leader", start_without_leader, start(m); m->record.leader++)                           \
    X(MESSAGE_ACTION, "names no leader", leader_nowhere, start(m); m->record.council[0].port = 0)                      \
    X(MESSAGE_ACTION, "the round is 4", start_of_another_round, start(m); m->action.place.round = 4)                   \
    X(MESSAGE_ACTION, "no place", place_without_round, start(m); m->action.place.round = m->record.round = 0)          \
    X(MESSAGE_ACTION, "no place", place_of_none, start(m); m->action.place.local_world_size = 0)                       \
    X(MESSAGE_ACTION, "no place", place_of_many, start(m); m->action.place.local_world_size = MESSAGE_LOCAL_MAX + 1)   \
    X(MESSAGE_ACTION, "no place", host_outside, start(m); m->action.place.group_rank = 3)                              \
    X(MESSAGE_ACTION, "no place", more_hosts_than_ranks, start(m); m->action.place.group_world_size = 21)              \
    X(MESSAGE_ACTION, "no place", ranks_outside, start(m); m->action.place.rank = 13)                                  \
    X(MESSAGE_ACTION, "no place", rank_before_its_host, start(m);                                                      \
      m->action.place.rank = m->action.place.role_rank = 0)                                                            \
    X(MESSAGE_ACTION, "no place", role_outside, start(m); m->action.place.role_rank = 3)                               \
    X(MESSAGE_ACTION, "no place", role_too_large, start(m); m->action.place.role_world_size = 21)                      \
    X(MESSAGE_ACTION, "place: rank 2147483647", far_rank, start(m); m->action.place.rank = INT32_MAX)                  \
    X(MESSAGE_ACTION, "place: world size -1", no_world, start(m); m->action.place.world_size = -1)

/* A host with 8 of 20 ranks, the last one of three. */
static void start(struct message *m)
{
    m->action = (struct action){.kind = ACTION_START, .place = {3, 0, 2, 3, 12, 20, 2, 10, 8}};
    m->record.round = 3;
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
            in.record.council_count = in.record.council_count < 3 ? 3 : in.record.council_count;
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
        (void)strcpy(in.info.host, harmful[i]);
        message_encode(&in, &bytes);
        assert_int_equal(message_decode(&out, bytes.data, bytes.size, &err), -1);
        assert_string_equal(err.text, "join message: host: control characters, or no UTF-8");
        dt_text_reset(&bytes);
        fill(&in, MESSAGE_EVENT, false);
        in.event.why = harmful[i];
        message_encode(&in, &bytes);
        assert_int_equal(message_decode(&out, bytes.data, bytes.size, &err), 0);
        assert_int_equal(strlen(out.text), size);
        assert_non_null(strchr(out.text, '?'));
        dt_text_clear(&bytes);
    }
    struct dt_text bytes = {0};
    fill(&in, MESSAGE_JOIN, false);
    memset(in.text, 'x', sizeof in.text); /* the end of what has room is in the middle of a
                                           * character */
    memcpy(in.text + sizeof in.text - 3, "\xe2\x82\xac", 3);
    in.text[5] = '\n';
    message_encode(&in, &bytes);
    assert_int_equal(message_decode(&out, bytes.data, bytes.size, &err), 0);
    assert_int_equal(out.text[5], '\n'); /* lines of values */
    assert_string_equal(out.text + sizeof out.text - 3, "??");
    dt_text_reset(&bytes);
    in.kind = MESSAGE_REFUSE; /* one line for people */
    message_encode(&in, &bytes);
    assert_int_equal(message_decode(&out, bytes.data, bytes.size, &err), 0);
    assert_int_equal(out.text[5], '?');
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
