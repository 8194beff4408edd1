/* covers: launcher/hosts/link/secure.c */
/* The handshake and the frames without sockets: two sides in memory, bytes carried in pieces of
 * every size, changed, repeated, reflected. */
#include "launcher/hosts/link/secure.h"

#include "base/file.h"
#include "collectives/store_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { frame_bytes = 4096 };

struct side {
    struct secure_self self;
    struct secure s;
    struct dt_text out, got, sent; /* sent: all it ever sent */
    bool up, ended, duplicate, taken;
    int frames;
    struct dt_error err;
};

static struct secure_key key_of(const char *text)
{
    struct secure_key k = {.given = text != NULL};
    if (text != NULL) {
        (void)snprintf((char *)k.bytes, sizeof k.bytes, "%s", text);
    }
    return k;
}

static void open_side(struct side *a, uint64_t id, bool client, const char *run_id, const char *key)
{
    struct secure_key k = key_of(key);
    *a = (struct side){.taken = true};
    assert_int_equal(secure_self_init(&a->self, id, (int)id, run_id, &k, frame_bytes, &a->err), 0);
    secure_init(&a->s, &a->self, client);
    if (client) {
        secure_begin(&a->s, &a->out);
    }
}

static void close_side(struct side *a)
{
    secure_clear(&a->s);
    dt_text_clear(&a->out);
    dt_text_clear(&a->got);
    dt_text_clear(&a->sent);
}

/* Feeds bytes; false when the side refused them. */
static bool feed(struct side *a, const void *bytes, size_t size)
{
    const uint8_t *data;
    size_t got;
    secure_feed(&a->s, bytes, size);
    for (;;) {
        switch (secure_next(&a->s, &a->out, &data, &got, &a->err)) {
        case SECURE_BAD:
            return false;
        case SECURE_MORE:
            return true;
        case SECURE_ASKED:
            if (a->s.client) {
                secure_prove(&a->s, NULL, &a->out);
            } else {
                secure_answer(&a->s, a->taken, &a->out);
                a->up = a->taken;
            }
            break;
        case SECURE_UP:
            a->up = true;
            break;
        case SECURE_DUPLICATE:
            a->duplicate = true;
            break;
        case SECURE_FRAME:
            a->frames++;
            dt_text_add(&a->got, data, got);
            break;
        case SECURE_END:
            a->ended = true;
            break;
        }
    }
}

/* Carries what `from` has to send, in pieces. */
static bool carry(struct side *from, struct side *to, size_t piece)
{
    struct dt_text bytes = from->out;
    bool fine = true;
    dt_text_init(&from->out);
    if (bytes.size > 0) {
        dt_text_add(&from->sent, bytes.data, bytes.size);
    }
    for (size_t at = 0; at < bytes.size && fine; at += piece) {
        fine = feed(to, bytes.data + at, bytes.size - at < piece ? bytes.size - at : piece);
    }
    dt_text_clear(&bytes);
    return fine;
}

static bool shake(struct side *a, struct side *b, size_t piece)
{
    bool fine = true;
    for (int i = 0; i < 6 && fine; i++) {
        fine = carry(a, b, piece) && carry(b, a, piece);
    }
    return fine && a->up && b->up;
}

static void talks_in_pieces_of_every_size(void **state)
{
    (void)state;
    for (size_t piece = 1; piece <= 300; piece = piece * 3 / 2 + 1) {
        struct side a, b;
        char big[frame_bytes];
        memset(big, 'x', sizeof big);
        open_side(&a, 1, true, "run", piece % 2 == 0 ? "key" : NULL);
        open_side(&b, 2, false, "run", piece % 2 == 0 ? "key" : NULL);
        assert_true(shake(&a, &b, piece));
        assert_true(a.s.peer_id == 2 && b.s.peer_id == 1 && a.s.peer_port == 2);
        assert_memory_equal(a.s.session, b.s.session, SECURE_SESSION_BYTES);
        secure_put(&a.s, "hello", 5, &a.out);
        secure_put(&a.s, NULL, 0, &a.out);
        secure_put(&b.s, big, sizeof big, &b.out);
        secure_put_end(&b.s, &b.out);
        assert_true(carry(&a, &b, piece) && carry(&b, &a, piece));
        assert_true(b.frames == 2 && b.got.size == 5 && memcmp(b.got.data, "hello", 5) == 0);
        assert_true(a.frames == 1 && a.got.size == sizeof big && a.ended && !b.ended);
        assert_null(strstr(dt_text_str(&a.sent), "hello"));
        assert_int_equal(secure_held(&b.s), 0); /* idle: no buffer */
        close_side(&a);
        close_side(&b);
    }
}

/* Lengths around the blocks of the cipher, and the longest: all bytes arrive, in order, on both
 * ways. */
static void messages_of_every_length_arrive_whole(void **state)
{
    (void)state;
    static const size_t pieces[] = {1, 61, 300, 100000};
    static uint8_t bytes[frame_bytes];
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)(i * 7 + (i >> 8) * 31);
    }
    for (size_t k = 0; k < sizeof pieces / sizeof pieces[0]; k++) {
        struct side a, b;
        struct dt_text expected;
        dt_text_init(&expected);
        open_side(&a, 1, true, "run", "key");
        open_side(&b, 2, false, "run", "key");
        assert_true(shake(&a, &b, pieces[k]));
        for (size_t size = 0; size <= sizeof bytes; size = size < 600             ? size + 13
                                                           : size == sizeof bytes ? size + 1
                                                                                  : sizeof bytes) {
            secure_put(&a.s, bytes, size, &a.out);
            secure_put(&b.s, bytes, size, &b.out);
            if (size > 0) {
                dt_text_add(&expected, bytes, size);
            }
        }
        assert_true(carry(&a, &b, pieces[k]) && carry(&b, &a, pieces[k]));
        assert_true(a.got.size == expected.size && memcmp(a.got.data, expected.data, expected.size) == 0);
        assert_true(b.got.size == expected.size && memcmp(b.got.data, expected.data, expected.size) == 0);
        dt_text_clear(&expected);
        close_side(&a);
        close_side(&b);
    }
}

static void refuses_other_keys_and_runs(void **state)
{
    (void)state;
    static const struct {
        const char *run_a, *run_b, *key_a, *key_b, *text;
        bool by_client;
    } cases[] = {
        {"run", "run", "one", "two", "key files differ", false},
        {"run", "run", "one", NULL, "--key_file", true},
        {"run", "run", NULL, "two", "--key_file", true},
        {"run", "other", NULL, NULL, "run id", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct side a, b;
        open_side(&a, 1, true, cases[i].run_a, cases[i].key_a);
        open_side(&b, 2, false, cases[i].run_b, cases[i].key_b);
        assert_false(shake(&a, &b, 1000));
        assert_non_null(strstr(b.err.text, cases[i].text));
        if (cases[i].by_client) { /* the mistaken side is told as well */
            assert_false(carry(&b, &a, 1000));
            assert_non_null(strstr(a.err.text, cases[i].text));
        }
        assert_false(a.up || b.up);
        close_side(&a);
        close_side(&b);
    }
}

/* Both sides name both versions, whichever is the newer one and whatever the rest of its hello
 * means. */
static void other_versions_are_named_by_both(void **state)
{
    (void)state;
    struct side a, b;
    for (int client = 0; client < 2; client++) {
        open_side(&a, 1, true, "run", NULL);
        open_side(&b, 2, false, "run", NULL);
        struct dt_text *changed = client ? &a.out : &b.out;
        if (!client) {
            assert_true(carry(&a, &b, 1000));
        }
        changed->data[3] = 77;
        changed->data[4] = (char)0xff;
        memcpy(changed->data + 48, "9.8\n7\0xxxxxxxxx", 16);
        assert_false(client ? carry(&a, &b, 7) : carry(&b, &a, 7));
        struct side *hears = client ? &b : &a;
        assert_true(hears->s.other_version);
        assert_non_null(
            strstr(hears->err.text, "runs dtrun 9.8?7 (protocol 77), this host dtrun " DT_VERSION " (protocol "));
        /* the server answers before it refuses */
        assert_int_equal(b.out.size, client ? SECURE_HELLO_BYTES : 0);
        close_side(&a);
        close_side(&b);
    }
}

static void refuses_a_false_server(void **state)
{
    (void)state;
    struct side a, b;
    open_side(&a, 1, true, "run", "key");
    open_side(&b, 2, false, "run", "key");
    assert_true(carry(&a, &b, 1000) && carry(&b, &a, 1000));
    dt_text_reset(&a.out);
    char answer[SECURE_ANSWER_BYTES];
    memset(answer, 1, sizeof answer); /* says "taken" without having seen the proof */
    assert_false(feed(&a, answer, sizeof answer));
    assert_false(a.up);
    close_side(&a);
    close_side(&b);
}

static void refuses_replays_and_reflections(void **state)
{
    (void)state;
    struct side a, b, again;
    open_side(&a, 1, true, "run", "key");
    open_side(&b, 2, false, "run", "key");
    assert_true(shake(&a, &b, 1000));
    secure_put(&a.s, "stop", 4, &a.out);
    assert_true(carry(&a, &b, 1000));
    open_side(&again, 2, false, "run", "key"); /* the same agent, another connection: everything
                                                * that a sent */
    assert_true(feed(&again, a.sent.data, SECURE_HELLO_BYTES));
    assert_false(feed(&again, a.sent.data + SECURE_HELLO_BYTES, a.sent.size - SECURE_HELLO_BYTES));
    assert_true(again.s.wrong_key);
    assert_false(again.up);
    assert_int_equal(again.frames, 0);
    close_side(&again);
    struct dt_text frame; /* a frame twice on its own connection */
    dt_text_init(&frame);
    secure_put(&a.s, "once", 4, &frame);
    assert_true(feed(&b, frame.data, frame.size));
    assert_false(feed(&b, frame.data, frame.size));
    assert_int_equal(b.frames, 2);
    dt_text_clear(&frame);
    close_side(&b);
    open_side(&b, 3, true, "run", "key"); /* its own hello thrown back */
    struct dt_text mine = b.out;
    dt_text_init(&b.out);
    assert_false(feed(&b, mine.data, mine.size));
    dt_text_clear(&mine);
    close_side(&b);
    close_side(&a);
    open_side(&b, 3, false, "run", "key"); /* ourselves */
    open_side(&a, 3, true, "run", "key");
    assert_false(shake(&a, &b, 1000));
    close_side(&a);
    close_side(&b);
}

/* Whoever sends a proof with its hello cannot have made it of ours: it is not looked at, so that
 * limits on proofs hold. */
static void a_proof_waits_for_our_hello(void **state)
{
    (void)state;
    struct side client, server;
    char bytes[SECURE_HELLO_BYTES + SECURE_PROOF_BYTES] = {0};
    for (size_t size = SECURE_HELLO_BYTES; size <= sizeof bytes;
         size += size == SECURE_HELLO_BYTES ? 1 : SECURE_PROOF_BYTES - 1) {
        open_side(&client, 1, true, "run", "key");
        open_side(&server, 2, false, "run", "key");
        memcpy(bytes, client.out.data, SECURE_HELLO_BYTES);
        assert_int_equal(feed(&server, bytes, size), size == SECURE_HELLO_BYTES);
        assert_false(server.s.wrong_key);
        assert_int_equal(server.out.size, size == SECURE_HELLO_BYTES ? SECURE_HELLO_BYTES : 0);
        close_side(&client);
        close_side(&server);
    }
}

static void a_duplicate_is_told(void **state)
{
    (void)state;
    struct side a, b;
    open_side(&a, 1, true, "run", "key");
    open_side(&b, 2, false, "run", "key");
    b.taken = false;
    assert_false(shake(&a, &b, 10));
    assert_true(a.duplicate && !a.up && !b.up);
    close_side(&a);
    close_side(&b);
}

static void every_changed_byte_is_seen(void **state)
{
    (void)state;
    for (size_t at = 0; at < SECURE_HELLO_BYTES + SECURE_PROOF_BYTES + SECURE_FRAME_EXTRA + 3; at++) {
        struct side a, b;
        bool fine = true;
        size_t passed = 0;
        open_side(&a, 1, true, "run", "key");
        open_side(&b, 2, false, "run", "key");
        for (int i = 0; i < 4 && fine; i++) {
            if (i == 2) {
                secure_put(&a.s, "abc", 3, &a.out);
            }
            if (at >= passed && at < passed + a.out.size) {
                a.out.data[at - passed] ^= 0x10;
            }
            passed += a.out.size;
            fine = carry(&a, &b, 1000) && carry(&b, &a, 1000);
        }
        if (fine && b.frames != 0) {
            fail_msg("byte %zu was changed and nobody noticed", at);
        }
        close_side(&a);
        close_side(&b);
    }
}

static void lengths_have_a_limit(void **state)
{
    (void)state;
    static const uint8_t lengths[][4] = {{0xff, 0xff, 0xff, 0xff}, {0, 0, 0, 0}, {16, 0, 0, 0}, {0x12, 0x10, 0, 0}};
    for (size_t i = 0; i < 4; i++) {
        struct side a, b;
        open_side(&a, 1, true, "run", NULL);
        open_side(&b, 2, false, "run", NULL);
        assert_true(shake(&a, &b, 1000));
        assert_false(feed(&b, lengths[i], 4));
        close_side(&a);
        close_side(&b);
    }
}

static void key_files_are_private(void **state)
{
    (void)state;
    char path[] = "/tmp/dtrun-key-XXXXXX";
    struct secure_key k, other;
    struct dt_error err;
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, "0123456789abcdef0123\n", 21) == 21);
    assert_int_equal(fchmod(fd, 0600), 0);
    assert_int_equal(secure_key_read(&k, path, &err), 0);
    assert_true(k.given);
    assert_int_equal(ftruncate(fd, 20), 0); /* the newline does not matter */
    assert_int_equal(secure_key_read(&other, path, &err), 0);
    assert_memory_equal(k.bytes, other.bytes, sizeof k.bytes);
    static const mode_t wide[] = {0640, 0604, 0666, 0620, 0601};
    for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++) {
        assert_int_equal(fchmod(fd, wide[i]), 0);
        assert_int_equal(secure_key_read(&k, path, &err), -1);
        assert_non_null(strstr(err.text, "chmod 600 /tmp/dtrun-key-"));
    }
    assert_int_equal(fchmod(fd, 0400), 0);
    assert_int_equal(ftruncate(fd, 5), 0);
    assert_int_equal(secure_key_read(&k, path, &err), -1);
    assert_non_null(strstr(err.text, "5 bytes"));
    (void)close(fd);
    (void)unlink(path);
    assert_int_equal(secure_key_read(&k, path, &err), -1);
    assert_int_equal(secure_key_read(&k, "/tmp", &err), -1);
    assert_int_equal(secure_key_read(&k, NULL, &err), 0);
    assert_false(k.given);
}

enum { SEEDS = 6 };
static const char *const seed_names[SEEDS] = {"hello_client", "hello_server",    "proof",
                                              "answer",       "frame_to_server", "frame_to_client"};

/* What tests/fuzz/fuzz_secure.c begins with: its first byte says which side is fed (1: the
 * server), how much of the handshake is honest, and that the bytes come in one piece; then what
 * the other side would say there. */
static void make_seeds(struct dt_text seeds[SEEDS])
{
    static const unsigned char firsts[SEEDS] = {0xf8 | 1,          0xf8,         0xf8 | 2 << 1 | 1, 0xf8 | 2 << 1,
                                                0xf8 | 3 << 1 | 1, 0xf8 | 3 << 1};
    struct side a, b;
    open_side(&a, 1, true, "fuzz", "key");
    open_side(&b, 2, false, "fuzz", "key");
    assert_true(shake(&a, &b, 1000));
    secure_put(&a.s, "a message", 9, &a.out);
    secure_put(&b.s, "a message", 9, &b.out);
    const char *client = a.sent.data, *server = b.sent.data;
    const struct dt_bytes bytes[SEEDS] = {{client, SECURE_HELLO_BYTES + SECURE_PROOF_BYTES},
                                          {server, SECURE_HELLO_BYTES + SECURE_ANSWER_BYTES},
                                          {client + SECURE_HELLO_BYTES, SECURE_PROOF_BYTES},
                                          {server + SECURE_HELLO_BYTES, SECURE_ANSWER_BYTES},
                                          {a.out.data, a.out.size},
                                          {b.out.data, b.out.size}};
    for (int i = 0; i < SEEDS; i++) {
        dt_text_init(&seeds[i]);
        dt_text_add(&seeds[i], &firsts[i], 1);
        dt_text_add(&seeds[i], bytes[i].data, bytes[i].size);
    }
    close_side(&a);
    close_side(&b);
}

/* Where fuzzing begins: what sides of this version say. DTRUN_WRITE_SEEDS=1 writes it anew. */
static void the_corpus_is_of_today(void **state)
{
    (void)state;
    struct dt_text seeds[SEEDS];
    make_seeds(seeds);
    for (int i = 0; i < SEEDS; i++) {
        char path[64];
        struct dt_error err;
        struct dt_text seed = {0};
        (void)snprintf(path, sizeof path, "tests/fuzz/corpus/secure/%s", seed_names[i]);
        if (getenv("DTRUN_WRITE_SEEDS") != NULL) {
            assert_int_equal(dt_file_write(path, seeds[i].data, seeds[i].size, &err), 0);
        }
        bool today = dt_file_read(path, 4096, &seed, &err) == 0 && seed.size == seeds[i].size &&
                     seed.data[0] == seeds[i].data[0];
        if (today && i < 2) { /* hellos: the other side goes on */
            struct side x;
            open_side(&x, 3, i == 1, "fuzz", "key");
            size_t before = x.out.size;
            today = feed(&x, seed.data + 1, SECURE_HELLO_BYTES) && x.out.size > before;
            close_side(&x);
        }
        if (!today) {
            fail_msg("%s: not what this version says; DTRUN_WRITE_SEEDS=1 build/tests/unit_secure writes it anew",
                     path);
        }
        dt_text_clear(&seed);
        dt_text_clear(&seeds[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(talks_in_pieces_of_every_size), cmocka_unit_test(messages_of_every_length_arrive_whole),
        cmocka_unit_test(refuses_other_keys_and_runs),   cmocka_unit_test(other_versions_are_named_by_both),
        cmocka_unit_test(refuses_a_false_server),        cmocka_unit_test(refuses_replays_and_reflections),
        cmocka_unit_test(a_proof_waits_for_our_hello),   cmocka_unit_test(a_duplicate_is_told),
        cmocka_unit_test(every_changed_byte_is_seen),    cmocka_unit_test(lengths_have_a_limit),
        cmocka_unit_test(key_files_are_private),         cmocka_unit_test(the_corpus_is_of_today),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
