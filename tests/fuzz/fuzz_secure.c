/* An agent's side of a link from hostile bytes, raw or after an honest handshake. The first byte
 * says which side, at which stage the hostile bytes begin and in which pieces they come. Without
 * the key nothing may come through, and nothing may be held beyond a frame. */
#include "driver.h"

#include "launcher/hosts/link/secure.h"

#include <stdlib.h>

enum { frame_bytes = 1024 };

static bool forged; /* bytes that nobody with the key has made have been fed */

static int step(struct secure *s, struct dt_text *out)
{
    const uint8_t *data;
    size_t size;
    struct dt_error err;
    for (;;) {
        switch (secure_next(s, out, &data, &size, &err)) {
        case SECURE_BAD:
            return -1;
        case SECURE_MORE:
            return 0;
        case SECURE_ASKED:
            if (s->client) {
                secure_prove(s, NULL, out);
            } else if (forged) {
                abort(); /* a proof without the key */
            } else {
                secure_answer(s, true, out);
            }
            break;
        case SECURE_UP:
        case SECURE_DUPLICATE:
        case SECURE_FRAME:
        case SECURE_END:
            if (forged) {
                abort();
            }
            break;
        }
    }
}

int dt_fuzz(const uint8_t *data, size_t size)
{
    struct secure_key keys[2] = {{.bytes = {1}, .given = true}, {.bytes = {2}, .given = true}};
    struct secure_self self[2];
    struct secure s[2]; /* client, server */
    struct dt_text out[2];
    struct dt_error err;
    uint8_t choice = size > 0 ? data[0] : 0;
    int victim = choice & 1, stage = (choice >> 1) & 3;
    size_t piece = (size_t)1 + (choice >> 3) * 7;
    for (int i = 0; i < 2; i++) {
        if (secure_self_init(&self[i], (uint64_t)(i + 1), 0, "fuzz", &keys[stage == 3 ? 0 : i], frame_bytes, &err) !=
            0) {
            abort();
        }
        secure_init(&s[i], &self[i], i == 0);
        dt_text_init(&out[i]);
    }
    forged = false;
    secure_begin(&s[0], &out[0]);
    bool open = true;
    /* honest bytes first; stage 3: with the same key, until it is up */
    for (int i = 0; i < (stage == 3 ? 8 : stage) && open; i++) {
        int from = i % 2;
        secure_feed(&s[1 - from], out[from].data, out[from].size);
        dt_text_reset(&out[from]);
        open = step(&s[1 - from], &out[1 - from]) == 0;
    }
    forged = true;
    for (size_t at = 1; at < size && open; at += piece) {
        secure_feed(&s[victim], data + at, size - at < piece ? size - at : piece);
        open = step(&s[victim], &out[victim]) == 0;
        if (s[victim].in.size > frame_bytes + SECURE_FRAME_EXTRA + piece) {
            abort();
        }
    }
    for (int i = 0; i < 2; i++) {
        secure_clear(&s[i]);
        dt_text_clear(&out[i]);
    }
    return 0;
}
