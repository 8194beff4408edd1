/* Messages between agents: what goes in comes out, for every kind; cut short, longer or malformed bytes are refused; whatever is accepted is what
 * we would have written ourselves. */
#include "base/text.h"
#include "base/file.h"
#include "launcher/message.h"
#include "launcher/protocol.h"

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
        out[i] = rnd() % 8 == 0 ? (char)(128 + rnd() % 128) : out[i];
    }
    out[size] = 0;
}

static int number(int low, int high)
{
    return low + (int)(rnd() % ((uint64_t)(high - low) + 1));
}

static void fill_info(struct peer_info *p, bool full)
{
    p->id = rnd();
    p->order = (int64_t)rnd();
    p->port = number(0, 65535);
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
    m->term = rnd();
    m->round = number(0, INT32_MAX);
    m->granted = rnd() % 2 != 0;
    m->finished = rnd() % 2 != 0;
    m->code = number(0, 255);
    m->local_world_size = number(1, 65536);
    m->count = kind == MESSAGE_BEAT    ? number(-1, 0)
               : kind == MESSAGE_CAUSE ? number(CAUSE_PEER, CAUSE_FAILED)
               : kind == MESSAGE_VOTE  ? number(0, 1)
                                       : number(0, INT32_MAX);
    m->members = number(0, INT32_MAX);
    m->stamp = number(0, INT32_MAX) / 1024.0;
    m->echo = number(0, INT32_MAX) / 1024.0;
    m->nonce[0] = rnd();
    m->nonce[1] = rnd();
    fill_info(&m->info, full);
    fill_text(m->role, sizeof m->role, full);
    fill_text(m->text, sizeof m->text, full);
    *r = (struct record){.nonce = {rnd(), rnd()},
                         .term = rnd(),
                         .leader = rnd(),
                         .round = number(0, INT32_MAX),
                         .restarts_used = number(0, 99),
                         .no_progress = number(0, 9),
                         .best_step = (int64_t)rnd(),
                         .best_saved = -1,
                         .oom_step = (int64_t)rnd(),
                         .oom_seen = rnd() % 2 != 0,
                         .next_order = (int64_t)rnd(),
                         .finished = rnd() % 2 != 0,
                         .committed = rnd() % 2 != 0,
                         .code = number(0, 255),
                         .members = number(0, 20000),
                         .leader_in = number(0, 1) != 0,
                         .before_leader = rnd()};
    r->council_count = full ? MESSAGE_COUNCIL : number(0, MESSAGE_COUNCIL);
    r->before_count = full ? MESSAGE_COUNCIL : number(0, MESSAGE_COUNCIL);
    for (int i = 0; i < MESSAGE_COUNCIL; i++) {
        fill_info(&r->council[i], full);
        fill_info(&r->before[i], full);
    }
    m->event = (struct event){.kind = (enum event_kind)number(0, EVENT_TICK),
                              .round = number(0, 1000),
                              .local_world_size = number(0, 65536),
                              .order = (int64_t)rnd(),
                              .role = m->role,
                              .failure = (enum failure_kind)number(0, FAILURE_START),
                              .code = number(0, 255),
                              .step = (int64_t)rnd(),
                              .saved_step = -1,
                              .why = m->text,
                              .weak = rnd() % 2 != 0,
                              .out_of_memory = rnd() % 2 != 0,
                              .at_step = (int64_t)rnd()};
    m->action = (struct action){.kind = (enum action_kind)number(0, ACTION_REFUSE),
                                .code = number(0, 255),
                                .place = {number(0, 9), 1, 2, 3, number(0, 80000), 80000, 4, 5, 8}};
}

static int decode(struct message *m, const struct dt_text *bytes)
{
    struct dt_error err;
    static char *exact; /* of its size, so that reading behind the end is seen; a body points into it until the next message */
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

/* Where fuzzing begins: messages of this version, of every kind. DTRUN_WRITE_SEEDS=1 writes them anew. */
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
            fail_msg("%s: not a message of today; DTRUN_WRITE_SEEDS=1 build/tests/test_message writes it anew", path);
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
    assert_true(out.event.step == in.event.step && out.event.kind == in.event.kind && out.event.failure == in.event.failure);
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
        cmocka_unit_test(what_is_accepted_is_canonical),
        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
