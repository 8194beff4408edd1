/* See the header. */
#include "worker/model/blocks/packed.h"

#include "kernels/attention.h"
#include "worker/model/blocks/blocks.h"
#include "worker/model/blocks/drop.h"
#include "worker/model/blocks/linear.h"

void packed_declare_segments(struct block *b)
{
    if (batch_find(&b->chain->batch, "segments") >= 0) {
        (void)block_field(b, "segments");
    }
}

struct dt_attention_shape packed_shape(const struct block *b, const struct pass *p, int64_t heads, int64_t kv_heads,
                                       int64_t head_size)
{
    int segments = batch_find(&b->chain->batch, "segments"); /* -1: each sample is one */
    return (struct dt_attention_shape){.batch = p->batch->samples,
                                       .queries = p->batch->length,
                                       .keys = p->batch->length,
                                       .key_capacity = b->spec->cache_length,
                                       .heads = heads,
                                       .kv_heads = kv_heads,
                                       .head_size = head_size,
                                       .segments = segments >= 0 ? p->batch->at[segments] : NULL,
                                       .type = b->spec->type};
}

int packed_declare_cache(struct block *b, int64_t kv_heads, int64_t head_size)
{
    const struct model_spec *m = b->spec;
    return block_memory(b, "cache", LIFE_CACHE, 0, m->batch_size * m->cache_length * 2 * kv_heads * head_size, m->type);
}

/* Sample number i, whose queries stand behind its positions in the cache. Samples have different
 * numbers of keys, so each is a call of its own. */
static void attend_cached(const struct pass *p, const struct packed *a, int64_t i)
{
    const struct batch_past *past = &p->batch->past[i];
    struct dt_attention_shape s = a->shape;
    int64_t queries = s.heads * s.head_size, kept = 2 * s.kv_heads * s.head_size, row = queries + kept;
    size_t size = dt_dtype_size(s.type), kept_bytes = (size_t)kept * size, row_bytes = (size_t)row * size;
    char *qkv = (char *)a->qkv + (size_t)(i * s.queries) * row_bytes,
         *cache = (char *)a->cache + (size_t)(past->slot * s.key_capacity) * kept_bytes,
         *to = cache + (size_t)past->length * kept_bytes, *from = qkv + (size_t)queries * size;
    for (int64_t t = 0; t < s.queries; t++) {
        dt_stream_copy(p->stream, to + (size_t)t * kept_bytes, from + (size_t)t * row_bytes, kept_bytes);
    }
    s.batch = 1;
    s.keys = past->length + s.queries;
    s.q_stride = row;
    s.kv_stride = kept;
    p->kernels->attention(p->stream,
                          &(struct dt_attention_args){.shape = s,
                                                      .out = (char *)a->out + (size_t)(i * s.queries * queries) * size,
                                                      .q = qkv,
                                                      .k = cache,
                                                      .v = cache + kept_bytes / 2});
}

void packed_attention(const struct pass *p, const struct packed *a)
{
    for (int64_t i = 0; a->cache != NULL && i < p->batch->samples; i++) {
        attend_cached(p, a, i);
    }
    if (a->cache != NULL) {
        return;
    }
    p->kernels->attention(p->stream, &(struct dt_attention_args){.shape = a->shape,
                                                                 .out = a->out,
                                                                 .lse = a->lse,
                                                                 .q = a->qkv,
                                                                 .k = dt_attention_part(&a->shape, a->qkv, 1),
                                                                 .v = dt_attention_part(&a->shape, a->qkv, 2)});
}

void packed_attention_backward(const struct pass *p, const struct packed *a, void *dqkv, const void *dout, void *work,
                               size_t work_bytes)
{
    p->kernels->attention_backward(p->stream,
                                   &(struct dt_attention_backward_args){.shape = a->shape,
                                                                        .dq = dqkv,
                                                                        .dk = dt_attention_part(&a->shape, dqkv, 1),
                                                                        .dv = dt_attention_part(&a->shape, dqkv, 2),
                                                                        .work = work,
                                                                        .work_bytes = work != NULL ? work_bytes : 0,
                                                                        .dout = dout,
                                                                        .out = a->out,
                                                                        .q = a->qkv,
                                                                        .k = dt_attention_part(&a->shape, a->qkv, 1),
                                                                        .v = dt_attention_part(&a->shape, a->qkv, 2),
                                                                        .lse = a->lse});
}

void packed_turn(const struct block *b, const struct pass *p, const struct dt_attention_shape *s, int64_t width,
                 void *x, bool inverse)
{
    const struct batch_layout *l = &b->chain->batch;
    const int32_t *positions =
        batch_has_documents(l) ? p->batch->at[batch_find(l, "position_ids")] : p->batch->positions;
    p->kernels->rope(p->stream, &(struct dt_rope_args){.x = x,
                                                       .table = pass_constant(b, p, 0),
                                                       .positions = positions,
                                                       .row_count = row_count(p),
                                                       .position_count = p->batch->length,
                                                       .heads = s->heads + s->kv_heads,
                                                       .head_size = s->head_size,
                                                       .width = width,
                                                       .stride = (s->heads + 2 * s->kv_heads) * s->head_size,
                                                       .inverse = inverse,
                                                       .type = b->spec->type});
}

static void *second(const struct block *b, void *both, int64_t inner)
{
    return (char *)both + (size_t)inner * dt_dtype_size(b->spec->type);
}

/* Drops elements of y, or of its gradient, in place. */
static void drop_gated(const struct block *b, const struct pass *p, const struct packed_gate *gate, void *x)
{
    (void)drop(b, p, gate->dropout, gate->site, x, x, row_count(p), gate->inner);
}

void packed_gate(const struct block *b, const struct pass *p, const struct packed_gate *gate, void *y, void *both)
{
    int64_t inner = gate->inner;
    p->kernels->gate(p->stream, &(struct dt_gate_args){.y = y,
                                                       .gate = both,
                                                       .up = second(b, both, inner),
                                                       .row_count = row_count(p),
                                                       .col_count = inner,
                                                       .ld = 2 * inner,
                                                       .kind = gate->kind,
                                                       .type = b->spec->type});
    drop_gated(b, p, gate, y);
}

void packed_gate_backward(const struct block *b, const struct pass *p, const struct packed_gate *gate,
                          const struct linear *down, void *both, const void *kept, void *wide, const void *dm,
                          void *sums)
{
    int64_t inner = gate->inner;
    void *up = second(b, both, inner);
    linear_input_backward(b, p, down, wide, dm);
    drop_gated(b, p, gate, wide);
    p->kernels->gate_backward(p->stream, &(struct dt_gate_backward_args){.dgate = both,
                                                                         .dup = up,
                                                                         .y = kept == NULL ? wide : NULL,
                                                                         .dy = wide,
                                                                         .gate = both,
                                                                         .up = up,
                                                                         .row_count = row_count(p),
                                                                         .col_count = inner,
                                                                         .ld = 2 * inner,
                                                                         .kind = gate->kind,
                                                                         .type = b->spec->type});
    if (kept == NULL) {
        drop_gated(b, p, gate, wide);
    }
    linear_weight_backward(b, p, down, dm, kept != NULL ? kept : wide, sums);
}
