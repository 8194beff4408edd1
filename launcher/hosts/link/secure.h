/* The protocol between two agents: a handshake with ephemeral keys, proofs that both hold the
 * job's key, then encrypted frames. No I/O: bytes come in, events and bytes come out.
 *
 *   client                                    server
 *   hello: versions, id, port, nonce, key ->
 *                                         <-  hello: the same
 *   [ASKED: go on?] proof, last session   ->
 *                                             [ASKED: take it?]
 *                                         <-  answer: taken or duplicate, proof
 *   frames                                <->  frames, the last one says goodbye
 *
 * A server proves itself only to a client that has proved itself, so strangers learn only that a
 * program listens. Without a key file the key is all zeros: the bytes look the same, but anybody
 * can take part. Nonces and keys are new each time, so recorded bytes are refused.
 *
 * From version 7 on, a hello has the same length and the same first 64 bytes in every version. A
 * hello of another version is answered, too, so that both sides can name both versions. Its
 * bytes: "DTL", version of the protocol, flags, 0, port (2), id (8), hash of the run id (16),
 * nonce (16), version of dtrun as text (16), key (32). */
#ifndef DT_LAUNCHER_HOSTS_LINK_SECURE_H
#define DT_LAUNCHER_HOSTS_LINK_SECURE_H

#include "base/error.h"
#include "base/text.h"

#include <sodium.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SECURE_HELLO_BYTES = 96,
    SECURE_PROOF_BYTES = 72,     /* last session, stream header, proof */
    SECURE_ANSWER_BYTES = 57,    /* taken or not, stream header, proof */
    SECURE_FRAME_EXTRA = 4 + 17, /* bytes of a frame beyond its message */
    SECURE_SESSION_BYTES = 16
};

struct secure_key {
    uint8_t bytes[32];
    bool given; /* read from a file; else all zeros */
};

/* Reads the key of a job: any content of 16 bytes to 64 KiB; white space at the end is dropped.
 * Refuses files that other users can read or own; the error names the command that corrects this.
 * path null: the key of zeros. */
int secure_key_read(struct secure_key *k, const char *path, struct dt_error *err);
/* A warning for users who run several hosts without a key. */
const char *secure_no_key_warning(void);

/* shared by all connections; must outlive them */
struct secure_self {
    uint64_t id;        /* not 0 */
    int port;           /* port at which others can connect, on any of our addresses; 0: none */
    size_t frame_bytes; /* longest message in either direction */
    struct secure_key key;
    uint8_t run[32]; /* derived from the run id by secure_self_init */
};
/* Returns -1 when the cryptographic library does not work on this system. */
int secure_self_init(struct secure_self *self, uint64_t id, int port, const char *run_id, const struct secure_key *key,
                     size_t frame_bytes, struct dt_error *err);

enum secure_event {
    SECURE_BAD = -1, /* err says why; the caller closes the connection */
    SECURE_MORE,     /* nothing until more bytes come */
    /* peer_id is known. Call secure_prove (client) or secure_answer (server; the peer has proved
     * itself), or close */
    SECURE_ASKED,
    SECURE_UP,        /* client: the server took the connection */
    SECURE_DUPLICATE, /* client: the peer prefers another connection between the same agents */
    SECURE_FRAME,     /* a message */
    SECURE_END        /* goodbye: nothing follows */
};

enum secure_stage { SECURE_HELLO, SECURE_CHOICE, SECURE_PROOF, SECURE_ANSWER, SECURE_OPEN, SECURE_OVER };

struct secure {
    const struct secure_self *self;
    bool client;
    enum secure_stage stage;
    uint64_t peer_id;
    int peer_port;
    bool wrong_key; /* server: the client's proof was wrong */
    /* the peer speaks another version; BAD follows, and no other try will help */
    bool other_version;
    /* name of this session, the same on both sides; set from ASKED on */
    uint8_t session[SECURE_SESSION_BYTES];
    /* server: the last session with us that the client knew */
    uint8_t peer_last[SECURE_SESSION_BYTES];
    struct dt_text in;              /* received bytes, not handled yet */
    size_t used;                    /* bytes of `in` that were handled */
    struct secure_secrets *secrets; /* of the handshake; freed afterwards */
    crypto_secretstream_xchacha20poly1305_state push, pull;
};

/* A client calls secure_begin next. */
void secure_init(struct secure *s, const struct secure_self *self, bool client);
void secure_clear(struct secure *s);
/* Appends the client's first bytes to out. */
void secure_begin(struct secure *s, struct dt_text *out);
/* The id in a hello that has arrived whole but was not checked yet, or the peer's id; 0:
 * neither. */
uint64_t secure_claimed_id(const struct secure *s);
/* Takes bytes from the peer. */
void secure_feed(struct secure *s, const void *bytes, size_t size);
/* Returns the next event of the bytes taken: call it until MORE or BAD. Appends bytes to be sent to
 * out. With FRAME, *data holds *size bytes until the next call for s. */
enum secure_event secure_next(struct secure *s, struct dt_text *out, const uint8_t **data, size_t *size,
                              struct dt_error *err);
/* Appends the client's proof, after ASKED. last: name of the last session with this peer, or
 * null. */
void secure_prove(struct secure *s, const uint8_t *last, struct dt_text *out);
/* Appends the server's answer, after ASKED. A taken connection is open from now on; any other is
 * over once the answer has been sent. */
void secure_answer(struct secure *s, bool taken, struct dt_text *out);
/* Appends a frame; size at most self->frame_bytes. */
void secure_put(struct secure *s, const void *bytes, size_t size, struct dt_text *out);
/* Appends the goodbye. */
void secure_put_end(struct secure *s, struct dt_text *out);
/* Memory held beyond the struct, in bytes. */
size_t secure_held(const struct secure *s);

#endif
