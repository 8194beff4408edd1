/* LayerNorm and RMSNorm, forward (with the residual sum) and backward: one set of loops, in which
 * `centers` is a constant; RMSNorm takes no mean away. Rows are cut into blocks. The sums for the
 * weights add blocks of rows in order, so they have the same bits with any number of threads. */
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/pool.h"

#define ROW_BLOCK 32
#define COLUMNS 64
#define PART 16384     /* elements of a part of narrow rows */
#define SLICES_MOST 64 /* slices of the rows, each with sums of its own */

/* The places of rows: row r is head r % heads of position r / heads, with ld elements between
 * positions. One head and ld = cols: rows are tight. */
struct layout {
    int64_t heads, ld, cols;
};

INLINE struct layout layout_of(int64_t heads, int64_t ld, int64_t cols)
{
    return heads > 0 ? (struct layout){heads, ld, cols} : (struct layout){1, cols, cols};
}

/* Elements at which rows [begin, end) begin, at most ROW_BLOCK of them. */
INLINE void find_rows(int64_t *at, const struct layout *l, int64_t begin, int64_t end)
{
    int64_t position = begin / l->heads, head = begin - position * l->heads;
    for (int64_t r = begin; r < end; r++) {
        at[r - begin] = position * l->ld + head * l->cols;
        head++;
        if (head == l->heads) {
            head = 0;
            position++;
        }
    }
}

/* Rows of a part: ROW_BLOCK, or several blocks of narrow rows. */
INLINE int64_t rows_of_part(int64_t cols)
{
    int64_t blocks = PART / (ROW_BLOCK * cols);
    return (blocks > 1 ? blocks : 1) * ROW_BLOCK;
}

/* A row without its mean, times rstd */
INLINE vec normed(vec x, float mean, float rstd, bool centers)
{
    return (centers ? x - mean : x) * rstd;
}

/* ---- forward ---- */

struct forward {
    void *y, *sum;             /* sum may be null */
    float *mean, *rstd;        /* mean: if it centers */
    const void *x, *branch;    /* branch may be null */
    const void *weight, *bias; /* bias may be null */
    int64_t rows, cols;
    struct layout in, out;
    float eps, branch_scale, weight_offset;
    enum dt_dtype type;
};

/* weight and bias (or null): as floats. room: cols floats, for a row of BF16. */
INLINE void forward_row(const struct forward *f, int64_t row, int64_t from, int64_t to, const float *weight,
                        const float *bias, float *room, bool centers, enum dt_dtype type)
{
    int64_t cols = f->cols, kept = row * cols;
    const void *x = f->x, *branch = f->branch;
    void *y = f->y;
    const vec offset = vec_all(f->weight_offset), scale = vec_all(f->branch_scale);
    vec total = {0}, squares = {0}; /* lanes behind the end are 0 */
    const float *floats = room;
    if (branch != NULL || f->sum != NULL) {
        void *sum = f->sum != NULL ? f->sum : y;
        int64_t sum_at = f->sum != NULL ? kept : to;
        for (int64_t j = 0; j < cols; j += VEC) {
            vec v = vec_get(x, from + j, cols - j, type);
            if (branch != NULL) {
                v = vec_fma(scale, vec_get(branch, kept + j, cols - j, type), v);
            }
            vec_put(sum, sum_at + j, v, cols - j, type);
            v = vec_rounded(v, type);
            if (type == DT_HALF) {
                vec_store_n(room + j, v, cols - j);
            }
            total += v;
            squares = vec_fma(v, v, squares);
        }
        floats = type == DT_HALF ? room : (const float *)sum + sum_at;
    } else {
        floats = vec_floats(room, x, from, cols, type);
        for (int64_t j = 0; j < cols; j += VEC) {
            vec v = vec_load_n(floats + j, cols - j);
            total += v;
            squares = vec_fma(v, v, squares);
        }
    }
    float mean = 0;
    if (centers) {
        mean = vec_sum(total) / (float)cols;
        squares = (vec){0};
        int64_t j = 0;
        for (; j + VEC <= cols; j += VEC) {
            vec d = vec_load(floats + j) - mean;
            squares = vec_fma(d, d, squares);
        }
        if (j < cols) {
            vec d = vec_load_n(floats + j, cols - j) - mean;
            d = vec_pick(vec_index() < (int32_t)(cols - j), d, vec_all(0));
            squares = vec_fma(d, d, squares);
        }
        f->mean[row] = mean;
    }
    float rstd = 1.0F / sqrtf(vec_sum(squares) / (float)cols + f->eps);
    for (int64_t j = 0; j < cols; j += VEC) {
        vec h = normed(vec_load_n(floats + j, cols - j), mean, rstd, centers), w = vec_load_n(weight + j, cols - j);
        vec v = centers ? vec_fma(h, w, bias != NULL ? vec_load_n(bias + j, cols - j) : (vec){0}) : h * (offset + w);
        vec_put(y, to + j, v, cols - j, type);
    }
    f->rstd[row] = rstd;
}

INLINE void forward_rows(const struct forward *f, int64_t part, bool centers, enum dt_dtype type)
{
    int64_t rows = rows_of_part(f->cols), last = min64(f->rows, (part + 1) * rows), cols = f->cols;
    float *room = dt_cpu_work(DT_WORK_ROWS, (size_t)(3 * cols) * sizeof(float));
    const float *weight = vec_floats(room + cols, f->weight, 0, cols, type);
    const float *bias = f->bias != NULL ? vec_floats(room + 2 * cols, f->bias, 0, cols, type) : NULL;
    for (int64_t begin = part * rows; begin < last; begin += ROW_BLOCK) {
        int64_t from[ROW_BLOCK], to[ROW_BLOCK], end = min64(last, begin + ROW_BLOCK);
        find_rows(from, &f->in, begin, end);
        find_rows(to, &f->out, begin, end);
        for (int64_t row = begin; row < end; row++) {
            forward_row(f, row, from[row - begin], to[row - begin], weight, bias, room, centers, type);
        }
    }
}

static void layernorm_part(void *context, int64_t part)
{
    const struct forward *f = context;
    if (DT_IS_HALF(f->type)) {
        forward_rows(f, part, true, DT_HALF);
    } else {
        forward_rows(f, part, true, DT_F32);
    }
}

static int layernorm_now(struct dt_pool *pool, struct dt_layernorm_args *a, struct dt_error *err)
{
    (void)err;
    struct layout tight = layout_of(0, 0, a->col_count);
    struct forward f = {.y = a->y,
                        .sum = a->residual_out,
                        .mean = a->mean,
                        .rstd = a->rstd,
                        .x = a->residual,
                        .branch = a->branch,
                        .weight = a->gamma,
                        .bias = a->beta,
                        .rows = a->row_count,
                        .cols = a->col_count,
                        .in = tight,
                        .out = tight,
                        .eps = (float)a->eps,
                        .branch_scale = 1,
                        .type = a->type};
    dt_pool_run(pool, parts_of(f.rows, rows_of_part(f.cols)), layernorm_part, &f);
    return 0;
}
DT_ISA_KERNEL(layernorm)

static void rmsnorm_part(void *context, int64_t part)
{
    const struct forward *f = context;
    if (DT_IS_HALF(f->type)) {
        forward_rows(f, part, false, DT_HALF);
    } else {
        forward_rows(f, part, false, DT_F32);
    }
}

static int rmsnorm_now(struct dt_pool *pool, struct dt_rmsnorm_args *a, struct dt_error *err)
{
    (void)err;
    struct forward f = {.y = a->y,
                        .sum = a->residual_out,
                        .rstd = a->rstd,
                        .x = a->residual,
                        .branch = a->branch,
                        .weight = a->weight,
                        .rows = a->row_count,
                        .cols = a->col_count,
                        .in = layout_of(a->heads, a->x_ld, a->col_count),
                        .out = layout_of(a->heads, a->y_ld, a->col_count),
                        .eps = (float)a->eps,
                        .branch_scale = a->branch_scale != 0 ? (float)a->branch_scale : 1.0F,
                        .weight_offset = (float)a->weight_offset,
                        .type = a->type};
    dt_pool_run(pool, parts_of(f.rows, rows_of_part(f.cols)), rmsnorm_part, &f);
    return 0;
}
DT_ISA_KERNEL(rmsnorm)

/* ---- backward ---- */

struct backward {
    void *dx;
    const void *dy, *x, *weight, *above; /* above: the gradient that reaches the residual sum, or null */
    const float *mean, *rstd;
    /* sums for the weight and the bias, or null: the gradients themselves, or floats that become
     * these at the end. Slice i of the rows adds to sums that begin i * cols later. */
    float *dweight, *dbias;
    int64_t rows, cols, rows_of_slice;
    struct layout in, out; /* of x; of dy, dx and above */
    float weight_offset;
    bool centers, adds; /* adds: to what dweight and dbias hold */
    enum dt_dtype type;
};

/* Memory for rows of cols floats: the weight, g and h of a row, and the sums of a block of rows. */
struct room {
    const float *weight;
    float *g, *h, *dweight, *dbias; /* dweight, dbias: null if they are not wanted */
};

/* dx = rstd (g - mean(g) - h mean(g h)) + above; g = dy weight, h = normed(x). RMSNorm: without
 * mean(g). The row is at `from` in x, at `to` in the others. Adds dy h to the room's dweight and dy to
 * its dbias; all of dy is read before dx is written. */
INLINE void backward_row(const struct backward *c, int64_t row, int64_t from, int64_t to, const struct room *room,
                         bool centers, enum dt_dtype type)
{
    int64_t cols = c->cols;
    const void *dy = c->dy, *x = c->x, *above = c->above;
    void *dx = c->dx;
    const float *weight = room->weight;
    float *gs = room->g, *hs = room->h, *dweight = room->dweight, *dbias = room->dbias;
    float mean = centers ? c->mean[row] : 0, rstd = c->rstd[row];
    const vec offset = vec_all(centers ? 0 : c->weight_offset);
    vec sum = {0}, dot = {0};
    for (int64_t j = 0; j < cols; j += VEC) {
        /* lanes behind the end are 0 */
        int64_t n = cols - j;
        vec w = vec_load_n(weight + j, n), y = vec_get(dy, to + j, n, type);
        vec g = y * (centers ? w : offset + w), h = normed(vec_get(x, from + j, n, type), mean, rstd, centers);
        sum += g;
        dot = vec_fma(g, h, dot);
        vec_store_n(gs + j, g, n);
        vec_store_n(hs + j, h, n);
        if (dweight != NULL) {
            vec_store_n(dweight + j, vec_fma(y, h, vec_load_n(dweight + j, n)), n);
        }
        if (centers && dbias != NULL) {
            vec_store_n(dbias + j, vec_load_n(dbias + j, n) + y, n);
        }
    }
    float m = centers ? vec_sum(sum) / (float)cols : 0, d = vec_sum(dot) / (float)cols;
    for (int64_t j = 0; j < cols; j += VEC) {
        int64_t n = cols - j;
        vec g = vec_load_n(gs + j, n), v = vec_fma(vec_load_n(hs + j, n), vec_all(-d), centers ? g - m : g);
        v = above != NULL ? vec_fma(v, vec_all(rstd), vec_get(above, to + j, n, type)) : v * rstd;
        vec_put(dx, to + j, v, n, type);
    }
}

INLINE void rows_typed(const struct backward *c, int64_t begin, int64_t end, const struct room *room, bool centers,
                       enum dt_dtype type)
{
    int64_t from[ROW_BLOCK], to[ROW_BLOCK];
    find_rows(from, &c->in, begin, end);
    find_rows(to, &c->out, begin, end);
    for (int64_t row = begin; row < end; row++) {
        backward_row(c, row, from[row - begin], to[row - begin], room, centers, type);
    }
}

/* dx of one block of rows, and their sums, if the room has a place for them. */
static void backward_rows(const struct backward *c, int64_t begin, int64_t end, const struct room *room)
{
    if (c->centers) {
        DT_IS_HALF(c->type) ? rows_typed(c, begin, end, room, true, DT_HALF)
                            : rows_typed(c, begin, end, room, true, DT_F32);
    } else {
        DT_IS_HALF(c->type) ? rows_typed(c, begin, end, room, false, DT_HALF)
                            : rows_typed(c, begin, end, room, false, DT_F32);
    }
}

/* The calling thread's room, with the weight in it. */
static struct room room_of(const struct backward *c, bool sums)
{
    int64_t cols = c->cols;
    float *at = dt_cpu_work(DT_WORK_ROWS, (size_t)(5 * cols) * sizeof(float));
    struct room room = {.g = at + cols, .h = at + 2 * cols};
    room.weight = DT_IS_HALF(c->type) ? vec_floats(at, c->weight, 0, cols, DT_HALF) : c->weight;
    room.dweight = sums ? at + 3 * cols : NULL;
    room.dbias = sums && c->dbias != NULL ? at + 4 * cols : NULL;
    return room;
}

/* LayerNorm: adds one block of rows to columns [left, right) of the sums; `first`: there is nothing
 * in them yet. */
INLINE void add_columns(const struct backward *c, int64_t begin, int64_t end, int64_t left, int64_t right, bool first,
                        enum dt_dtype type)
{
    int64_t cols = c->cols;
    const void *dy = c->dy, *other = c->x;
    const float *mean = c->mean, *rstd = c->rstd;
    float *dweight = c->dweight, *dbias = c->dbias;
    for (int64_t j = left; j < right; j += 2 * VEC) {
        vec g[2] = {{0}}, b[2] = {{0}};
        for (int64_t r = begin; r < end; r++) {
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++) {
                int64_t at = j + v * VEC;
                if (at < right) {
                    vec y = vec_get(dy, r * cols + at, right - at, type);
                    vec x = vec_get(other, r * cols + at, right - at, type);
                    g[v] = vec_fma(y, normed(x, mean[r], rstd[r], true), g[v]);
                    b[v] += y;
                }
            }
        }
        for (int v = 0; v < 2; v++) {
            int64_t at = j + v * VEC;
            if (at < right) {
                vec_store_n(dweight + at, first ? g[v] : vec_load_n(dweight + at, right - at) + g[v], right - at);
            }
            if (at < right && dbias != NULL) {
                vec_store_n(dbias + at, first ? b[v] : vec_load_n(dbias + at, right - at) + b[v], right - at);
            }
        }
    }
}

static void backward_rows_part(void *context, int64_t part)
{
    const struct backward *c = context;
    struct room room = room_of(c, false);
    backward_rows(c, part * ROW_BLOCK, min64(c->rows, (part + 1) * ROW_BLOCK), &room);
}

static void backward_columns_part(void *context, int64_t part)
{
    const struct backward *c = context;
    int64_t left = part * COLUMNS, right = min64(c->cols, left + COLUMNS);
    for (int64_t row = 0; row < c->rows; row += ROW_BLOCK) {
        int64_t end = min64(c->rows, row + ROW_BLOCK);
        bool first = row == 0 && !c->adds;
        DT_IS_HALF(c->type) ? add_columns(c, row, end, left, right, first, DT_HALF)
                            : add_columns(c, row, end, left, right, first, DT_F32);
    }
}

/* sums (n) = [sums +] block (n) */
static void add_block(float *sums, const float *block, int64_t n, bool first)
{
    for (int64_t j = 0; j < n; j++) {
        sums[j] = first ? block[j] : sums[j] + block[j];
    }
}

/* A slice of the rows: each row is read once for dx and for the sums. */
static void backward_slice_part(void *context, int64_t slice)
{
    const struct backward *c = context;
    int64_t first = slice * c->rows_of_slice, last = min64(c->rows, first + c->rows_of_slice), cols = c->cols;
    struct room room = room_of(c, c->dweight != NULL);
    for (int64_t row = first; row < last; row += ROW_BLOCK) {
        if (room.dweight != NULL) {
            memset(room.dweight, 0, (size_t)(2 * cols) * sizeof(float)); /* and dbias */
        }
        backward_rows(c, row, min64(last, row + ROW_BLOCK), &room);
        if (room.dweight != NULL) {
            add_block(c->dweight + slice * cols, room.dweight, cols, row == first && !c->adds);
        }
        if (room.dbias != NULL) {
            add_block(c->dbias, room.dbias, cols, row == first && !c->adds);
        }
    }
}

/* LayerNorm adds all blocks to one sum, so several threads take columns first, then rows. */
static void backward_parts(struct dt_pool *pool, struct backward *c)
{
    if (c->dweight == NULL) {
        dt_pool_run(pool, parts_of(c->rows, ROW_BLOCK), backward_rows_part, c);
    } else if (dt_pool_size(pool) > 1) {
        dt_pool_run(pool, parts_of(c->cols, COLUMNS), backward_columns_part, c);
        dt_pool_run(pool, parts_of(c->rows, ROW_BLOCK), backward_rows_part, c);
    } else if (c->rows > 0) {
        backward_slice_part(c, 0);
    }
}

static int layernorm_backward_now(struct dt_pool *pool, struct dt_layernorm_backward_args *a, struct dt_error *err)
{
    (void)err;
    struct layout tight = layout_of(0, 0, a->col_count);
    struct backward c = {.dx = a->dx,
                         .dy = a->dy,
                         .x = a->x,
                         .weight = a->gamma,
                         .above = a->dresidual,
                         .mean = a->mean,
                         .rstd = a->rstd,
                         .dweight = a->dgamma,
                         .dbias = a->dbeta,
                         .rows = a->row_count,
                         .cols = a->col_count,
                         .rows_of_slice = a->row_count + 1,
                         .in = tight,
                         .out = tight,
                         .centers = true,
                         .adds = a->accumulate,
                         .type = a->type};
    bool rounded = a->dgamma != NULL && DT_IS_HALF(a->type) && a->grad_type == DT_HALF;
    int64_t old = a->accumulate ? a->col_count : 0;
    if (rounded) {
        c.dweight = dt_cpu_work(DT_WORK_KERNEL, (size_t)(2 * a->col_count) * sizeof(float));
        c.dbias = a->dbeta != NULL ? c.dweight + a->col_count : NULL;
        vec_fetch(c.dweight, a->dgamma, 0, old, DT_HALF);
    }
    if (rounded && a->dbeta != NULL) {
        vec_fetch(c.dbias, a->dbeta, 0, old, DT_HALF);
    }
    backward_parts(pool, &c);
    if (rounded && a->row_count > 0) {
        vec_keep(a->dgamma, 0, c.dweight, a->col_count, DT_HALF);
    }
    if (rounded && a->dbeta != NULL && a->row_count > 0) {
        vec_keep(a->dbeta, 0, c.dbias, a->col_count, DT_HALF);
    }
    return 0;
}
DT_ISA_KERNEL(layernorm_backward)

/* dweight = [dweight +] the sums of the slices in order, rounded once */
INLINE void add_slices(const struct dt_rmsnorm_backward_args *a, const float *sums, int64_t slices, enum dt_dtype grad)
{
    int64_t cols = a->col_count;
    for (int64_t j = 0; j < cols; j += VEC) {
        vec total = a->accumulate ? vec_get(a->dweight, j, cols - j, grad) : (vec){0};
        for (int64_t i = 0; i < slices; i++) {
            total += vec_load_n(sums + i * cols + j, cols - j);
        }
        vec_put(a->dweight, j, total, cols - j, grad);
    }
}

/* Each slice of the rows has sums of its own, so all tensors are read once with any number of
 * threads, also if a row is narrow. */
static int rmsnorm_backward_now(struct dt_pool *pool, struct dt_rmsnorm_backward_args *a, struct dt_error *err)
{
    (void)err;
    int64_t part = rows_of_part(a->col_count), parts = parts_of(a->row_count, part);
    struct backward c = {.dx = a->dx,
                         .dy = a->dy,
                         .x = a->x,
                         .weight = a->weight,
                         .above = a->dresidual,
                         .rstd = a->rstd,
                         .rows = a->row_count,
                         .cols = a->col_count,
                         .rows_of_slice = parts_of(parts, SLICES_MOST) * part,
                         .in = layout_of(a->heads, a->x_ld, a->col_count),
                         .out = layout_of(a->heads, a->y_ld, a->col_count),
                         .weight_offset = (float)a->weight_offset,
                         .type = a->type};
    int64_t slices = a->row_count > 0 ? parts_of(a->row_count, c.rows_of_slice) : 0;
    if (a->dweight != NULL) {
        c.dweight = dt_cpu_work(DT_WORK_KERNEL, (size_t)(slices * a->col_count) * sizeof(float) + 1);
    }
    dt_pool_run(pool, slices, backward_slice_part, &c);
    if (a->dweight != NULL && DT_IS_HALF(a->type) && a->grad_type == DT_HALF) {
        add_slices(a, c.dweight, slices, DT_HALF);
    } else if (a->dweight != NULL) {
        add_slices(a, c.dweight, slices, DT_F32);
    }
    return 0;
}
DT_ISA_KERNEL(rmsnorm_backward)
