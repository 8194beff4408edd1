/* Pre-tokenizers, for the tokenizer: the steps that split a text into the pieces that the model gets. */
#ifndef DT_WORKER_DATA_TOKENIZERS_PRETOKENIZER_H
#define DT_WORKER_DATA_TOKENIZERS_PRETOKENIZER_H

#include "worker/data/tokenizers/parts.h"
#include "worker/data/tokenizers/scanners.h"

struct pretokenizer;
/* json: null or JSON null: the text is one piece. */
int pretokenizer_open(struct pretokenizer **out, const cJSON *json, struct dt_error *err);
void pretokenizer_close(struct pretokenizer *p); /* null is allowed */

/* True if the last step is ByteLevel, which writes bytes as characters. */
bool pretokenizer_maps(const struct pretokenizer *p);
/* The scanner that gives all pieces, but for the mapping of bytes; null: there is none. */
scanner_function *pretokenizer_scanner(const struct pretokenizer *p);

/* True if a step asks whether the text begins where the whole text begins. */
bool pretokenizer_asks_start(const struct pretokenizer *p);

/* Places where a text may be cut so that the pieces of both parts are those of the whole. */
enum pretokenizer_cuts {
    CUTS_NEVER,
    CUTS_SPACES, /* before a space behind anything but white space */
    CUTS_LINES,  /* there, and between a single line feed and what follows, but for white space and '/' */
    CUTS_WHITE,  /* before any space and behind any line feed: white space is in no piece */
};
enum pretokenizer_cuts pretokenizer_cuts(const struct pretokenizer *p);

/* A text and its pieces; they are valid until the next call. All zero at first. */
struct pre_tokens {
    const char *text;
    size_t size;
    struct pieces pieces;
    /* the rest is the pretokenizer's */
    struct dt_text texts[2];
    struct pieces spare;
    struct split_match *matches;
    size_t match_capacity;
    bool at_start;
};
/* at_start: the text begins where the whole text begins. bytes: without the mapping of the last step. */
int pretokenizer_apply(const struct pretokenizer *p, struct pre_tokens *w, const char *text, size_t size, bool at_start,
                       bool bytes, struct dt_error *err);
void pre_tokens_clear(struct pre_tokens *w);

#endif
