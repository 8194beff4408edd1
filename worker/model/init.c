/* Initial weights. Element e of a tensor is a function of the seed, the tensor's name and e alone
 * (Philox4x32-10, Salmon et al. 2011, and Box-Muller). So every rank fills only the slice that it
 * owns, and the model begins the same with every world size. */
#include "worker/model/chain.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include <xxhash.h>

static void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t x[4] = {counter[0], counter[1], counter[2], counter[3]}, k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * x[0], b = (uint64_t)0xCD9E8D57u * x[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ x[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ x[3] ^ k1, (uint32_t)a};
        memcpy(x, next, sizeof x);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    memcpy(out, x, sizeof x);
}

enum { TRY_SHIFT = 24 }; /* of the number of a try in the counter's second word */

/* Four words: counter `block` of the stream (seed, name hash). */
static void words(uint64_t seed, uint64_t hash, uint64_t block, uint32_t try, uint32_t bits[4])
{
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32) ^ try << TRY_SHIFT, (uint32_t)hash,
                           (uint32_t)(hash >> 32)};
    philox(counter, key, bits);
}

static double share(uint32_t word)
{
    return ((double)word + 0.5) * 0x1p-32;
}

/* Four standard normal values of that stream. Values that lie too far out are drawn again, with another
 * `try`. */
static void normals(uint64_t seed, uint64_t hash, uint64_t block, uint32_t try, double out[4])
{
    uint32_t bits[4];
    words(seed, hash, block, try, bits);
    for (int i = 0; i < 4; i += 2) {
        double radius = sqrt(-2.0 * log(share(bits[i])));
        double angle = 6.283185307179586476925 * ((double)bits[i + 1] * 0x1p-32);
        out[i] = radius * cos(angle);
        out[i + 1] = radius * sin(angle);
    }
}

/* A standard normal value for element e; `first` is its own where it lies within `cut` (0: always). */
static double normal_within(uint64_t seed, uint64_t hash, int64_t e, double first, double cut)
{
    double four[4], x = first;
    for (uint32_t try = 1; cut > 0 && fabs(x) > cut && try < 1 << (32 - TRY_SHIFT); try++) {
        normals(seed, hash, (uint64_t)e / 4, try, four);
        x = four[e % 4];
    }
    return cut > 0 && fabs(x) > cut ? 0 : x;
}

/* Four values between -1 and 1 of that stream, neither of which occurs. */
static void uniforms(uint64_t seed, uint64_t hash, uint64_t block, double out[4])
{
    uint32_t bits[4];
    words(seed, hash, block, 0, bits);
    for (int i = 0; i < 4; i++) {
        out[i] = 2 * share(bits[i]) - 1;
    }
}

static void normal_values(const struct tensor *t, uint64_t seed, uint64_t hash, int64_t first, int64_t count,
                          double *out)
{
    double four[4];
    for (int64_t i = 0; i < count; i++) {
        int64_t e = first + i;
        if (i == 0 || e % 4 == 0) {
            normals(seed, hash, (uint64_t)e / 4, 0, four);
        }
        bool zero = t->rule.has_zero_row && e / t->shape[1] == t->rule.zero_row;
        double x = zero ? 0.0 : normal_within(seed, hash, e, four[e % 4], t->rule.init_cut);
        out[i] = t->rule.init_std * x;
    }
}

static void uniform_values(const struct tensor *t, uint64_t seed, uint64_t hash, int64_t first, int64_t count,
                           double *out)
{
    double four[4];
    for (int64_t i = 0; i < count; i++) {
        int64_t e = first + i;
        if (i == 0 || e % 4 == 0) {
            uniforms(seed, hash, (uint64_t)e / 4, four);
        }
        out[i] = t->rule.init_bound * four[e % 4];
    }
}

void init_values(const struct tensor *t, uint64_t seed, int64_t first, int64_t count, double *out)
{
    assert(first >= 0 && count >= 0 && count <= t->numel - first);
    uint64_t hash = XXH64(t->name, strlen(t->name), 0);
    switch (t->rule.init) {
    case INIT_NORMAL:
        normal_values(t, seed, hash, first, count, out);
        break;
    case INIT_UNIFORM:
        uniform_values(t, seed, hash, first, count, out);
        break;
    case INIT_ZERO:
    case INIT_ONE:
        for (int64_t i = 0; i < count; i++) {
            out[i] = t->rule.init == INIT_ONE ? 1.0 : 0.0;
        }
        break;
    }
}

enum { PIECE = 1024 };

static void put_values(void *out, enum dt_dtype type, int64_t at, const double *values, int64_t count)
{
    for (int64_t k = 0; k < count; k++) {
        if (type == DT_F32) {
            ((float *)out)[at + k] = (float)values[k];
        } else {
            ((double *)out)[at + k] = values[k];
        }
    }
}

/* Fills a span with the values of a constant, or, if that is null, with first values of its tensor. */
static void put_span(void *out, enum dt_dtype type, const struct span *s, const struct constant *x, uint64_t seed)
{
    double part[PIECE];
    for (int64_t done = 0, n; done < s->count; done += n) {
        n = s->count - done < PIECE ? s->count - done : PIECE;
        if (x != NULL) {
            x->fill(x->args, s->first + done, n, part);
        } else {
            init_values(s->tensor, seed, s->first + done, n, part);
        }
        put_values(out, type, s->at + done, part, n);
    }
}

void init_span(const struct span *s, uint64_t seed, enum dt_dtype type, void *out)
{
    put_span(out, type, s, NULL, seed);
}

void init_unit(const struct chain *c, int u, uint64_t seed, int64_t first, int64_t count, enum dt_dtype type, void *out)
{
    struct span s;
    assert(type == DT_F32 || type == DT_F64);
    assert(first >= 0 && count >= 0 && count <= (u < 0 ? chain_buffers(c) : c->units[u].numel) - first);
    memset(out, 0, (size_t)count * dt_dtype_size(type));
    for (int i = 0; i < c->tensor_count; i++) {
        if (c->tensors[i].unit == u && tensor_span(&c->tensors[i], first, count, &s)) {
            init_span(&s, seed, type, out);
        }
    }
    for (int i = 0; i < c->constant_count && u < 0; i++) {
        const struct constant *x = &c->constants[i];
        if (span_of(x->offset, x->numel, first, count, &s)) {
            put_span(out, type, &s, x, seed);
        }
    }
}
