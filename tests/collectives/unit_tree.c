/* covers: collectives/tree.c */
/* The canonical tree: the order of sums, and which of its nodes a host may sum alone. */
#include "collectives/tree.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
// clang-format off: needs the headers above
#include <cmocka.h>
// clang-format on

static uint64_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

static float value(uint64_t *state)
{
    static const float scales[] = {1e-6f, 0.01f, 1.0f, 300.0f, 1e7f};
    return ((float)(next(state) % 2000001) / 1e6f - 1.0f) * scales[next(state) % 5];
}

/* The definition: level by level, neighbours, an odd last one moves up. */
static float by_levels(const float *values, int n)
{
    float level[64];
    memcpy(level, values, (size_t)n * sizeof(float));
    while (n > 1) {
        int m = 0;
        for (int i = 0; i < n; i += 2) {
            level[m++] = i + 1 < n ? level[i] + level[i + 1] : level[i];
        }
        n = m;
    }
    return level[0];
}

#define COUNT 3000

static void order_is_the_tree(void **unused)
{
    (void)unused;
    uint64_t seed = 1;
    static float in[17][COUNT];
    static float out[COUNT];
    const void *ptr[17];
    for (int n = 1; n <= 17; n++) {
        for (int r = 0; r < n; r++) {
            for (int i = 0; i < COUNT; i++) {
                in[r][i] = value(&seed);
            }
            ptr[r] = in[r];
        }
        dt_tree_reduce(out, ptr, n, DT_SUM, DT_F32, COUNT);
        for (int i = 0; i < COUNT; i++) {
            float column[17];
            for (int r = 0; r < n; r++) {
                column[r] = in[r][i];
            }
            float want = by_levels(column, n);
            assert_memory_equal(&out[i], &want, sizeof(want));
        }
        /* in place, over each of the inputs, and at an odd offset */
        float keep[COUNT];
        int over = n / 2;
        memcpy(keep, in[over], sizeof(keep));
        dt_tree_reduce(in[over], ptr, n, DT_SUM, DT_F32, COUNT);
        assert_memory_equal(in[over], out, sizeof(out));
        memcpy(in[over], keep, sizeof(keep));
        for (int r = 0; r < n; r++) {
            ptr[r] = in[r] + 1001;
        }
        float part[COUNT - 1001];
        dt_tree_reduce(part, ptr, n, DT_SUM, DT_F32, COUNT - 1001);
        assert_memory_equal(part, out + 1001, sizeof(part));
    }
}

static void other_types_and_operations(void **unused)
{
    (void)unused;
    const double d[3][2] = {{1.5, -1}, {-4.25, 7}, {2, 7}};
    const int64_t l[3][2] = {{INT64_MAX, -5}, {1, 3}, {0, -9}};
    const void *pd[3] = {d[0], d[1], d[2]}, *pl[3] = {l[0], l[1], l[2]};
    double od[2];
    int64_t ol[2];
    dt_tree_reduce(od, pd, 3, DT_SUM, DT_F64, 2);
    assert_true(od[0] == -0.75 && od[1] == 13);
    dt_tree_reduce(od, pd, 3, DT_MAX, DT_F64, 2);
    assert_true(od[0] == 2 && od[1] == 7);
    dt_tree_reduce(od, pd, 3, DT_MIN, DT_F64, 2);
    assert_true(od[0] == -4.25 && od[1] == -1);
    dt_tree_reduce(ol, pl, 3, DT_SUM, DT_I64, 2);
    assert_true(ol[0] == INT64_MIN && ol[1] == -11);
    dt_tree_reduce(ol, pl, 3, DT_MIN, DT_I64, 2);
    assert_true(ol[0] == 0 && ol[1] == -9);
    /* bf16: 256 + 1 + 1 in float, rounded once, is 258; rounded each time it would stay 256 */
    const uint16_t b[3][1] = {{0x4380}, {0x3f80}, {0x3f80}};
    const void *pb[3] = {b[0], b[1], b[2]};
    uint16_t ob[1];
    dt_tree_reduce(ob, pb, 3, DT_SUM, DT_BF16, 1);
    assert_int_equal(ob[0], 0x4381);
    dt_tree_reduce(ob, pb, 1, DT_SUM, DT_BF16, 1);
    assert_int_equal(ob[0], 0x4380);
}

static void parts_are_the_largest_nodes(void **unused)
{
    (void)unused;
    struct dt_tree_part p[DT_TREE_PARTS_MAX];
    assert_int_equal(dt_tree_parts(8, 4, 4, p), 1); /* aligned powers of two: one buffer */
    assert_true(p[0].first == 4 && p[0].count == 4);
    assert_int_equal(dt_tree_parts(6, 0, 3, p), 2); /* three per host: two buffers */
    assert_true(p[0].first == 0 && p[0].count == 2 && p[1].first == 2 && p[1].count == 1);
    assert_int_equal(dt_tree_parts(6, 3, 3, p), 2);
    assert_true(p[0].first == 3 && p[0].count == 1 && p[1].first == 4 && p[1].count == 2);
    assert_int_equal(dt_tree_parts(7, 4, 3, p), 1); /* cut off at the end */
    assert_true(p[0].first == 4 && p[0].count == 3);
    assert_int_equal(dt_tree_parts(5, 0, 0, p), 0);
    for (int size = 1; size <= 130; size++) {
        for (int first = 0; first < size; first++) {
            for (int count = 1; first + count <= size; count++) {
                int n = dt_tree_parts(size, first, count, p), at = first;
                for (int i = 0; i < n; i++) {
                    assert_int_equal(p[i].first, at);
                    at += p[i].count;
                }
                assert_int_equal(at, first + count);
                assert_true(n <= 15); /* 2 log2(130) + 1 */
            }
        }
    }
}

/* All ways to cut up to 16 ranks in a row into hosts (bit i: a host ends after rank i): each
 * host sums its nodes, then the nodes are summed. The same bits as the plain tree. */
static void hosts_sum_their_nodes(void **unused)
{
    (void)unused;
    enum { N = 3 };
    uint64_t seed = 7;
    float in[16][N], partial[16][N], want[N], got[N];
    const void *ptr[16], *sums[16];
    for (int size = 1; size <= 16; size++) {
        for (int r = 0; r < size; r++) {
            for (int i = 0; i < N; i++) {
                in[r][i] = value(&seed);
            }
            ptr[r] = in[r];
        }
        dt_tree_reduce(want, ptr, size, DT_SUM, DT_F32, N);
        for (uint32_t cuts = 0; cuts < 1u << (size - 1); cuts++) {
            struct dt_tree_part parts[16 + DT_TREE_PARTS_MAX];
            int n = 0, first = 0;
            for (int r = 0; r < size; r++) {
                if (r + 1 == size || (cuts >> r & 1) != 0) {
                    n += dt_tree_parts(size, first, r + 1 - first, parts + n);
                    first = r + 1;
                }
            }
            for (int i = 0; i < n; i++) {
                dt_tree_reduce(partial[i], ptr + parts[i].first, parts[i].count, DT_SUM, DT_F32, N);
                sums[i] = partial[i];
            }
            dt_tree_merge(got, sums, parts, size, DT_SUM, DT_F32, N);
            assert_memory_equal(got, want, sizeof(want));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_is_the_tree),
        cmocka_unit_test(other_types_and_operations),
        cmocka_unit_test(parts_are_the_largest_nodes),
        cmocka_unit_test(hosts_sum_their_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
