/* Attention over queries, keys and values that lie side by side in rows of one tensor, and gated
 * activations, whose two inputs lie so: what layers share.
 *
 * Letters: R = B * T rows, H heads, KV heads of keys and values, D values of a head, I inner. */
#ifndef DT_WORKER_MODEL_BLOCKS_PACKED_H
#define DT_WORKER_MODEL_BLOCKS_PACKED_H

#include "worker/model/chain.h"

struct linear; /* worker/model/blocks/linear.h */

struct packed {
    struct dt_attention_shape shape; /* without strides: those of packed rows */
    void *qkv, *out, *lse;           /* (R, (H + 2 KV) D), (R, H D), (B, H, T) */
    void *cache;                     /* (slots, key_capacity, 2 KV D): keys and values; null: none */
};

/* Declares that the layer reads the segments of the batch, if it has any. */
void packed_declare_segments(struct block *b);
/* The shape of a pass in which all positions of a segment see each other; callers add what their model
 * has. */
struct dt_attention_shape packed_shape(const struct block *b, const struct pass *p, int64_t heads, int64_t kv_heads,
                                       int64_t head_size);
/* Declares the cache, and returns its memory's number. */
int packed_declare_cache(struct block *b, int64_t kv_heads, int64_t head_size);
/* out and lse from qkv. With a cache, keys and values also go there, and queries see those of all
 * positions of their sample; lse is not computed. */
void packed_attention(const struct pass *p, const struct packed *a);
/* dqkv, with the rows of qkv, from dout, with those of out. work: work_bytes that the kernel may use for
 * speed, or null. */
void packed_attention_backward(const struct pass *p, const struct packed *a, void *dqkv, const void *dout, void *work,
                               size_t work_bytes);
/* Turns the queries and keys of x, with the rows of qkv, by the block's constant 0, in which `width`
 * values of a head turn. Positions begin anew in each document of the batch, if it has any. inverse:
 * back. */
void packed_turn(const struct block *b, const struct pass *p, const struct dt_attention_shape *s, int64_t width,
                 void *x, bool inverse);

struct packed_gate { /* y = act(g) u, with elements dropped */
    enum dt_activation kind;
    int64_t inner;
    double dropout;
    int site; /* of dropout */
};

/* y (R, I) from `both` (R, 2 I), which holds g, then u. */
void packed_gate(const struct block *b, const struct pass *p, const struct packed_gate *gate, void *y, void *both);
/* The gradients of m = down(y): those of down's weights, from dm, and those of g and u, which
 * overwrite `both`. kept: y as forward left it; null: it is computed again. wide (R, I) and sums
 * are memory of the call, as in linear_weight_backward. */
void packed_gate_backward(const struct block *b, const struct pass *p, const struct packed_gate *gate,
                          const struct linear *down, void *both, const void *kept, void *wide, const void *dm,
                          void *sums);

#endif
