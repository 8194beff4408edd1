/* crypto_kx gives two secrets per connection. BLAKE2b, keyed with the job's key, derives the keys
 * of the proofs and of the two secretstreams from these secrets, both hellos and the run id. A
 * wrong key, another run, a changed hello or a replay all lead to a proof that does not fit.
 * Numbers are little-endian. */
#include "launcher/hosts/link/secure.h"

#include "launcher/rounds/protocol.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    flag_key = 1,
    flag_server = 2,
    hash_bytes = 32,
    header_bytes = 24,
    tag_bytes = 16,
    key_min_bytes = 16,
    key_max_bytes = 65536,
    nonce_bytes = 16,
    text_bytes = 16
};
enum { HEARD_BYTES = 24 }; /* first bytes of a stranger that an error message shows */
/* bytes of the stack below us to wipe, where libsodium's hash may have left secrets */
#define STACK_BYTES 4096
/* the first byte tells links from store clients, which begin with 0x00 */
static const uint8_t magic[3] = {'D', 'T', 'L'};

struct secure_secrets {
    uint8_t public_key[crypto_kx_PUBLICKEYBYTES], secret_key[crypto_kx_SECRETKEYBYTES];
    uint8_t hello[2][SECURE_HELLO_BYTES]; /* of client and server */
    uint8_t master[hash_bytes];
    uint8_t proof[hash_bytes]; /* of the client */
};

_Static_assert(SECURE_HELLO_BYTES == 8 + 8 + tag_bytes + nonce_bytes + text_bytes + crypto_kx_PUBLICKEYBYTES, "hello");
_Static_assert(SECURE_PROOF_BYTES == SECURE_SESSION_BYTES + header_bytes + hash_bytes, "proof");
_Static_assert(SECURE_ANSWER_BYTES == 1 + header_bytes + hash_bytes, "answer");
_Static_assert(header_bytes == crypto_secretstream_xchacha20poly1305_HEADERBYTES, "header");
_Static_assert(SECURE_FRAME_EXTRA == 4 + crypto_secretstream_xchacha20poly1305_ABYTES, "frame");

static void put_number(uint8_t *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        out[i] = (uint8_t)(value >> (8 * i));
    }
}

static uint64_t get_number(const uint8_t *in, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) {
        value |= (uint64_t)in[i] << (8 * i);
    }
    return value;
}

/* ---- the job's key ---- */

/* Checks an open file, so that the file which was checked is the one which is read. */
static int check_key_file(int fd, const char *path, struct dt_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0) {
        return dt_fail_errno(err, "--key_file: %s", path);
    }
    if (!S_ISREG(st.st_mode)) {
        return dt_fail(err, DT_INVALID, "--key_file: %s: not a regular file", path);
    }
    if ((st.st_mode & 0177) != 0) {
        return dt_fail(err, DT_INVALID, "--key_file: %s: mode %04o lets others use the key; run: chmod 600 %s", path,
                       (unsigned)(st.st_mode & 07777), path);
    }
    if (st.st_uid != geteuid()) {
        return dt_fail(err, DT_INVALID, "--key_file: %s: belongs to user %u, not to %u; run: chown %u %s", path,
                       (unsigned)st.st_uid, (unsigned)geteuid(), (unsigned)geteuid(), path);
    }
    return 0;
}

/* Reads the key without dt_file_read_fd, whose buffers would keep a copy. Returns the number of
 * bytes, or -1. */
static ssize_t read_key(int fd, const char *path, char text[key_max_bytes + 1], struct dt_error *err)
{
    size_t size = 0;
    for (ssize_t n = 1; n > 0 && size <= key_max_bytes; size += n > 0 ? (size_t)n : 0) {
        do {
            n = read(fd, text + size, key_max_bytes + 1 - size);
        } while (n < 0 && errno == EINTR);
        if (n < 0) {
            return dt_fail_errno(err, "--key_file: %s", path);
        }
    }
    return size <= key_max_bytes ? (ssize_t)size
                                 : dt_fail(err, DT_INVALID, "--key_file: %s: larger than the limit of %d bytes", path,
                                           (int)key_max_bytes);
}

int secure_key_read(struct secure_key *k, const char *path, struct dt_error *err)
{
    *k = (struct secure_key){0};
    if (path == NULL) {
        return 0;
    }
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        return dt_fail(err, DT_INVALID,
                       "--key_file: %s: no such file; make one with (umask 077; head -c 32 /dev/urandom | base64 > %s)",
                       path, path);
    }
    if (fd < 0) {
        (void)dt_fail_errno(err, "--key_file: %s", path);
        err->status = DT_INVALID; /* a second try would find the same */
        return -1;
    }
    char text[key_max_bytes + 1];
    ssize_t size = check_key_file(fd, path, err) == 0 ? read_key(fd, path, text, err) : -1;
    (void)close(fd);
    while (size > 0 && strchr(" \t\r\n", text[size - 1]) != NULL && text[size - 1] != '\0') {
        size--;
    }
    int rc = size < 0 ? -1 : 0;
    if (rc == 0 && size < key_min_bytes) {
        rc = dt_fail(err, DT_INVALID,
                     "--key_file: %s: %zd bytes; at least %d are needed; run: head -c 32 /dev/urandom | base64 > %s",
                     path, size, (int)key_min_bytes, path);
    }
    if (rc == 0) {
        (void)crypto_generichash(k->bytes, sizeof k->bytes, (const uint8_t *)text, (size_t)size, NULL, 0);
        k->given = true;
    }
    sodium_memzero(text, sizeof text);
    sodium_stackzero(STACK_BYTES);
    return rc;
}

const char *secure_no_key_warning(void)
{
    return "warning: no --key_file: whoever reaches this job's ports can join it; make one with (umask 077; head -c 32 "
           "/dev/urandom | base64 > FILE) "
           "and give it to all hosts";
}

int secure_self_init(struct secure_self *self, uint64_t id, int port, const char *run_id, const struct secure_key *key,
                     size_t frame_bytes, struct dt_error *err)
{
    if (sodium_init() < 0) {
        return dt_fail(err, DT_IO, "libsodium: no random numbers on this machine");
    }
    *self = (struct secure_self){.id = id, .port = port, .frame_bytes = frame_bytes};
    if (key != NULL) {
        self->key = *key;
    }
    (void)crypto_generichash(self->run, sizeof self->run, (const uint8_t *)run_id, strlen(run_id), NULL, 0);
    return 0;
}

/* ---- handshake ---- */

/* out = BLAKE2b(key; label, a, b, c) */
static void keyed(uint8_t out[hash_bytes], const uint8_t *key, const char *label, const void *a, size_t a_bytes,
                  const void *b, size_t b_bytes)
{
    crypto_generichash_state state;
    (void)crypto_generichash_init(&state, key, hash_bytes, hash_bytes);
    (void)crypto_generichash_update(&state, (const uint8_t *)label, strlen(label) + 1);
    (void)crypto_generichash_update(&state, a, a_bytes);
    (void)crypto_generichash_update(&state, b, b_bytes);
    (void)crypto_generichash_final(&state, out, hash_bytes);
}

void secure_init(struct secure *s, const struct secure_self *self, bool client)
{
    *s = (struct secure){.self = self, .client = client, .stage = SECURE_HELLO};
    dt_text_init(&s->in);
}

static void forget_secrets(struct secure *s)
{
    if (s->secrets != NULL) {
        sodium_memzero(s->secrets, sizeof *s->secrets);
        free(s->secrets);
        s->secrets = NULL;
    }
}

void secure_clear(struct secure *s)
{
    forget_secrets(s);
    dt_text_clear(&s->in);
    sodium_memzero(&s->push, sizeof s->push);
    sodium_memzero(&s->pull, sizeof s->pull);
    s->stage = SECURE_OVER;
}

/* vain: the handshake will be refused, so random bytes stand in for the costly key pair. */
static void put_hello(struct secure *s, bool vain, struct dt_text *out)
{
    struct secure_secrets *x = s->secrets = dt_alloc(sizeof *s->secrets);
    uint8_t *h = x->hello[s->client ? 0 : 1];
    if (vain) {
        randombytes_buf(x->public_key, sizeof x->public_key);
    } else {
        (void)crypto_kx_keypair(x->public_key, x->secret_key);
    }
    memcpy(h, magic, sizeof magic);
    h[3] = PROTOCOL_VERSION;
    h[4] = (uint8_t)((s->self->key.given ? flag_key : 0) | (s->client ? 0 : flag_server));
    h[5] = 0;
    put_number(h + 6, (uint64_t)s->self->port, 2);
    put_number(h + 8, s->self->id, 8);
    memcpy(h + 16, s->self->run, tag_bytes);
    randombytes_buf(h + 32, nonce_bytes);
    (void)snprintf((char *)h + 48, text_bytes, "%s", DT_VERSION);
    memcpy(h + 64, x->public_key, sizeof x->public_key);
    dt_text_add(out, h, SECURE_HELLO_BYTES);
}

void secure_begin(struct secure *s, struct dt_text *out)
{
    put_hello(s, false, out);
}

/* Derives the keys of all that follows, once both hellos are here. */
static int derive(struct secure *s, const uint8_t *peer_key, struct dt_error *err)
{
    struct secure_secrets *x = s->secrets;
    uint8_t rx[crypto_kx_SESSIONKEYBYTES], tx[crypto_kx_SESSIONKEYBYTES], both[sizeof rx + sizeof tx], name[hash_bytes],
        transcript[hash_bytes];
    int rc = s->client ? crypto_kx_client_session_keys(rx, tx, x->public_key, x->secret_key, peer_key)
                       : crypto_kx_server_session_keys(rx, tx, x->public_key, x->secret_key, peer_key);
    if (rc != 0) {
        return dt_fail(err, DT_INVALID, "a hello with a key that is none");
    }
    memcpy(both, s->client ? tx : rx, sizeof rx); /* both sides put the client's key first */
    memcpy(both + sizeof rx, s->client ? rx : tx, sizeof tx);
    keyed(transcript, s->self->run, "dtrun link transcript", x->hello[0], SECURE_HELLO_BYTES, x->hello[1],
          SECURE_HELLO_BYTES);
    keyed(x->master, s->self->key.bytes, "dtrun link master", transcript, sizeof transcript, both, sizeof both);
    keyed(name, x->master, "session", NULL, 0, NULL, 0);
    memcpy(s->session, name, sizeof s->session);
    sodium_memzero(rx, sizeof rx);
    sodium_memzero(tx, sizeof tx);
    sodium_memzero(both, sizeof both);
    return 0;
}

uint64_t secure_claimed_id(const struct secure *s)
{
    bool whole = s->stage == SECURE_HELLO && s->in.size - s->used >= SECURE_HELLO_BYTES;
    return whole ? get_number((const uint8_t *)s->in.data + s->used + 8, 8) : s->peer_id;
}

/* Copies a stranger's text, which terminals will show, without control characters. */
static void copy_version(const uint8_t *text, char out[text_bytes])
{
    memcpy(out, text, text_bytes - 1);
    out[text_bytes - 1] = '\0';
    for (char *c = out; *c != '\0'; c++) {
        *c = (unsigned char)*c <= 32 || (unsigned char)*c >= 127 ? '?' : *c;
    }
}

static int check_hello(struct secure *s, const uint8_t *h, struct dt_error *err)
{
    if (h[3] != PROTOCOL_VERSION) {
        char theirs[text_bytes];
        copy_version(h + 48, theirs);
        s->other_version = true;
        return dt_fail(
            err, DT_PEER,
            "runs dtrun %s (protocol %d), this host dtrun %s (protocol %d); install the same dtrun on all hosts",
            theirs, h[3], DT_VERSION, PROTOCOL_VERSION);
    }
    if (((h[4] & flag_server) != 0) != s->client) {
        return dt_fail(err, DT_INVALID, "a hello for the other side");
    }
    s->peer_id = get_number(h + 8, 8);
    s->peer_port = (int)get_number(h + 6, 2);
    if (s->peer_id == s->self->id) {
        /* we called an endpoint that belongs to us by now; no stranger is refused */
        return dt_fail(err, DT_PEER, "this is the agent itself");
    }
    if (s->peer_id == 0 || (h[4] & ~(flag_key | flag_server)) != 0 || h[5] != 0) {
        return dt_fail(err, DT_INVALID, "a hello with values that are not allowed");
    }
    if (memcmp(h + 16, s->self->run, tag_bytes) != 0) {
        return dt_fail(err, DT_IN_USE, "belongs to another job: its run id (--rdzv_id) differs from ours");
    }
    if (((h[4] & flag_key) != 0) != s->self->key.given) {
        return dt_fail(err, DT_INVALID,
                       s->self->key.given ? "has no key, this agent has one: give --key_file to all hosts or to none"
                                          : "has a key, this agent has none: give --key_file to all hosts or to none");
    }
    return 0;
}

/* Checks the part of a hello that is here, so that a wrong one is refused early. The error tells
 * the user what to do. */
static int check_beginning(const struct secure *s, const uint8_t *h, size_t size, struct dt_error *err)
{
    size_t n = size < sizeof magic ? size : sizeof magic;
    if (memcmp(h, magic, n) == 0) {
        return 0;
    }
    char heard[4 * HEARD_BYTES + 1];
    size_t shown = 0;
    for (size_t i = 0; i < size && i < HEARD_BYTES && h[i] != '\r' && h[i] != '\n'; i++) {
        bool plain = h[i] >= ' ' && h[i] < 127 && h[i] != '"' && h[i] != '\\';
        shown += (size_t)snprintf(heard + shown, sizeof heard - shown, plain ? "%c" : "\\x%02x", h[i]);
    }
    heard[shown] = '\0';
    return dt_fail(err, DT_IN_USE, "does not speak the agents' protocol, it said \"%s\"%s", heard,
                   s->client ? "; end the program that has this port, or give all hosts another port" : "");
}

static enum secure_event on_hello(struct secure *s, const uint8_t *h, struct dt_text *out, struct dt_error *err)
{
    bool good = check_hello(s, h, err) == 0;
    if (!s->client) {
        /* sent even before a refusal, so that a mistaken agent can tell its user why */
        put_hello(s, !good, out);
    }
    memcpy(s->secrets->hello[s->client ? 1 : 0], h, SECURE_HELLO_BYTES);
    if (!good || derive(s, h + 64, err) != 0) {
        return SECURE_BAD;
    }
    s->stage = s->client ? SECURE_CHOICE : SECURE_PROOF;
    return s->client ? SECURE_ASKED : SECURE_MORE;
}

static void proof_of_client(const struct secure *s, const uint8_t *last_and_header, uint8_t out[hash_bytes])
{
    keyed(out, s->secrets->master, "client proof", last_and_header, SECURE_SESSION_BYTES + header_bytes, NULL, 0);
}

static void proof_of_server(const struct secure *s, const uint8_t *taken_and_header, uint8_t out[hash_bytes])
{
    keyed(out, s->secrets->master, "server proof", taken_and_header, 1 + header_bytes, s->secrets->proof, hash_bytes);
}

/* Opens the stream that we send, or with `header` given the one that we receive. */
static int open_stream(struct secure *s, bool from_client, uint8_t *header, bool sending)
{
    uint8_t key[hash_bytes];
    keyed(key, s->secrets->master, from_client ? "client stream" : "server stream", NULL, 0, NULL, 0);
    int rc = sending ? crypto_secretstream_xchacha20poly1305_init_push(&s->push, header, key)
                     : crypto_secretstream_xchacha20poly1305_init_pull(&s->pull, header, key);
    sodium_memzero(key, sizeof key);
    return rc;
}

void secure_prove(struct secure *s, const uint8_t *last, struct dt_text *out)
{
    uint8_t bytes[SECURE_PROOF_BYTES] = {0};
    if (last != NULL) {
        memcpy(bytes, last, SECURE_SESSION_BYTES);
    }
    (void)open_stream(s, true, bytes + SECURE_SESSION_BYTES, true);
    proof_of_client(s, bytes, bytes + SECURE_SESSION_BYTES + header_bytes);
    memcpy(s->secrets->proof, bytes + SECURE_SESSION_BYTES + header_bytes, hash_bytes);
    dt_text_add(out, bytes, sizeof bytes);
    s->stage = SECURE_ANSWER;
}

static enum secure_event on_proof(struct secure *s, uint8_t *bytes, struct dt_error *err)
{
    uint8_t expected[hash_bytes];
    proof_of_client(s, bytes, expected);
    if (sodium_memcmp(expected, bytes + SECURE_SESSION_BYTES + header_bytes, hash_bytes) != 0) {
        (void)dt_fail(err, DT_INVALID, "has another key: the key files differ");
        s->wrong_key = true;
        return SECURE_BAD;
    }
    memcpy(s->peer_last, bytes, SECURE_SESSION_BYTES);
    memcpy(s->secrets->proof, expected, hash_bytes);
    (void)open_stream(s, true, bytes + SECURE_SESSION_BYTES, false);
    s->stage = SECURE_CHOICE;
    return SECURE_ASKED;
}

void secure_answer(struct secure *s, bool taken, struct dt_text *out)
{
    uint8_t bytes[SECURE_ANSWER_BYTES] = {taken ? 1 : 0};
    (void)open_stream(s, false, bytes + 1, true);
    proof_of_server(s, bytes, bytes + 1 + header_bytes);
    dt_text_add(out, bytes, sizeof bytes);
    forget_secrets(s);
    s->stage = taken ? SECURE_OPEN : SECURE_OVER;
}

static enum secure_event on_answer(struct secure *s, uint8_t *bytes, struct dt_error *err)
{
    uint8_t expected[hash_bytes];
    proof_of_server(s, bytes, expected);
    if (sodium_memcmp(expected, bytes + 1 + header_bytes, hash_bytes) != 0 || bytes[0] > 1) {
        (void)dt_fail(err, DT_INVALID, "has another key: the key files differ");
        return SECURE_BAD;
    }
    (void)open_stream(s, false, bytes + 1, false);
    forget_secrets(s);
    s->stage = bytes[0] == 1 ? SECURE_OPEN : SECURE_OVER;
    return bytes[0] == 1 ? SECURE_UP : SECURE_DUPLICATE;
}

/* ---- frames: length of the rest (4 bytes), then the secretstream of the message; the length is
 * its associated data ---- */

static void put_frame(struct secure *s, const void *bytes, size_t size, uint8_t tag, struct dt_text *out)
{
    static const uint8_t room[SECURE_FRAME_EXTRA];
    size_t at = out->size;
    uint8_t length[4];
    put_number(length, size + crypto_secretstream_xchacha20poly1305_ABYTES, 4);
    dt_text_add(out, length, 4);
    if (size > 0) {
        dt_text_add(out, bytes, size); /* reserves room; overwritten below */
    }
    dt_text_add(out, room, crypto_secretstream_xchacha20poly1305_ABYTES);
    (void)crypto_secretstream_xchacha20poly1305_push(&s->push, (uint8_t *)out->data + at + 4, NULL, bytes, size, length,
                                                     4, tag);
}

void secure_put(struct secure *s, const void *bytes, size_t size, struct dt_text *out)
{
    put_frame(s, bytes, size, crypto_secretstream_xchacha20poly1305_TAG_MESSAGE, out);
}

void secure_put_end(struct secure *s, struct dt_text *out)
{
    put_frame(s, NULL, 0, crypto_secretstream_xchacha20poly1305_TAG_FINAL, out);
}

/* Decrypts in place: the message lands where the ciphertext begins, which is one byte (the tag)
 * after the start of the frame. libsodium handles several blocks at a time, so any other overlap
 * garbles frames of more than 256 bytes. */
static enum secure_event on_frame(struct secure *s, uint8_t *frame, size_t length, const uint8_t **data, size_t *size,
                                  struct dt_error *err)
{
    unsigned long long got = 0;
    uint8_t tag = 0;
    if (crypto_secretstream_xchacha20poly1305_pull(&s->pull, frame + 5, &got, &tag, frame + 4, length, frame, 4) != 0) {
        (void)dt_fail(err, DT_INVALID, "sent a frame that was changed, repeated or not its own");
        return SECURE_BAD;
    }
    *data = frame + 5;
    *size = (size_t)got;
    if (tag == crypto_secretstream_xchacha20poly1305_TAG_FINAL) {
        s->stage = SECURE_OVER;
        return SECURE_END;
    }
    return SECURE_FRAME;
}

/* ---- input ---- */

void secure_feed(struct secure *s, const void *bytes, size_t size)
{
    if (s->stage != SECURE_OVER) {
        dt_text_add(&s->in, bytes, size);
    }
}

/* The next `need` bytes, or null. */
static uint8_t *take(struct secure *s, size_t need)
{
    if (s->in.size - s->used < need) {
        return NULL;
    }
    uint8_t *at = (uint8_t *)s->in.data + s->used;
    s->used += need;
    return at;
}

static void compact(struct secure *s)
{
    size_t rest = s->in.size - s->used;
    if (rest == 0) {
        dt_text_clear(&s->in); /* so that idle connections hold no memory */
    } else if (s->used > 0) {
        memmove(s->in.data, s->in.data + s->used, rest);
        s->in.size = rest;
    }
    s->used = 0;
}

static enum secure_event next(struct secure *s, struct dt_text *out, const uint8_t **data, size_t *size,
                              struct dt_error *err)
{
    uint8_t *at;
    size_t there = s->in.size - s->used, length;
    switch (s->stage) {
    case SECURE_HELLO:
        if (there > 0 && check_beginning(s, (const uint8_t *)s->in.data + s->used, there, err) != 0) {
            return SECURE_BAD;
        }
        if ((at = take(s, SECURE_HELLO_BYTES)) == NULL) {
            return SECURE_MORE;
        }
        /* a real proof depends on our hello, so this one is a guess or a replay */
        if (!s->client && there > SECURE_HELLO_BYTES) {
            (void)dt_fail(err, DT_INVALID, "says more than a hello before it has ours");
            return SECURE_BAD;
        }
        return on_hello(s, at, out, err);
    case SECURE_PROOF:
        return (at = take(s, SECURE_PROOF_BYTES)) == NULL ? SECURE_MORE : on_proof(s, at, err);
    case SECURE_ANSWER:
        return (at = take(s, SECURE_ANSWER_BYTES)) == NULL ? SECURE_MORE : on_answer(s, at, err);
    case SECURE_OPEN:
        if (there < 4) {
            return SECURE_MORE;
        }
        length = (size_t)get_number((const uint8_t *)s->in.data + s->used, 4);
        if (length < crypto_secretstream_xchacha20poly1305_ABYTES ||
            length > s->self->frame_bytes + crypto_secretstream_xchacha20poly1305_ABYTES) {
            (void)dt_fail(err, DT_INVALID, "sent a frame of %zu bytes; the limit is %zu", length, s->self->frame_bytes);
            return SECURE_BAD;
        }
        return (at = take(s, 4 + length)) == NULL ? SECURE_MORE : on_frame(s, at, length, data, size, err);
    case SECURE_CHOICE: /* waits for secure_prove or secure_answer */
    case SECURE_OVER:
        break;
    }
    return SECURE_MORE;
}

enum secure_event secure_next(struct secure *s, struct dt_text *out, const uint8_t **data, size_t *size,
                              struct dt_error *err)
{
    enum secure_event event = next(s, out, data, size, err);
    if (event == SECURE_BAD) {
        s->stage = SECURE_OVER;
    }
    if (event == SECURE_MORE || event == SECURE_BAD) {
        compact(s);
    }
    return event;
}

size_t secure_held(const struct secure *s)
{
    return s->in.capacity + (s->secrets != NULL ? sizeof *s->secrets : 0);
}
