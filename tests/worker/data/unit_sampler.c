/* covers: worker/data/sampler.c worker/data/randperm.c */
/* The order of samples: a permutation for every count, another one per seed and epoch, spread
 * evenly; that of PyTorch's DistributedSampler, sample by sample; and the one by length. */
#include "tests/lib/golden.h"
#include "worker/data/data.h"
#include "worker/data/randperm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <cmocka.h>

static void check_permutation(int64_t count, uint64_t seed, int64_t epoch)
{
    struct sampler s = {.sample_count = count, .seed = seed, .shuffle = true};
    unsigned char *seen = calloc((size_t)count, 1);
    assert_non_null(seen);
    for (int64_t i = 0; i < count; i++) {
        int64_t at = sampler_at(&s, epoch, i);
        assert_in_range(at, 0, count - 1);
        assert_int_equal(seen[at], 0);
        seen[at] = 1;
    }
    free(seen);
}

static void test_permutation(void **state)
{
    (void)state;
    for (int64_t count = 1; count < 300; count++) {
        check_permutation(count, 42, count % 5);
    }
    static const int64_t counts[] = {1023, 1024, 1025, 4096, 4097, 65536, 100003};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        check_permutation(counts[i], 7 + i, (int64_t)i);
    }
}

static void test_identity(void **state)
{
    (void)state;
    struct sampler s = {.sample_count = 100, .seed = 1};
    for (int64_t i = 0; i < 100; i++) {
        assert_int_equal(sampler_at(&s, 3, i), i);
    }
}

static void test_large(void **state)
{
    (void)state;
    struct sampler s = {.sample_count = (int64_t)1 << 40, .seed = 9, .shuffle = true};
    for (int64_t i = 0; i < 1000; i++) {
        assert_in_range(sampler_at(&s, 0, i * 1000003), 0, s.sample_count - 1);
    }
    s.sample_count = ((int64_t)1 << 40) + 1; /* the worst case of cycle walking */
    for (int64_t i = 0; i < 1000; i++) {
        assert_in_range(sampler_at(&s, 0, i), 0, s.sample_count - 1);
    }
}

/* How many positions two orders have in common; about one for independent permutations. */
static int common(const struct sampler *a, int64_t epoch_a, const struct sampler *b, int64_t epoch_b)
{
    int same = 0;
    for (int64_t i = 0; i < a->sample_count; i++) {
        same += sampler_at(a, epoch_a, i) == sampler_at(b, epoch_b, i);
    }
    return same;
}

static void test_orders_differ(void **state)
{
    (void)state;
    struct sampler a = {.sample_count = 1000, .seed = 1, .shuffle = true}, b = a, plain = a;
    b.seed = 2;
    plain.shuffle = false;
    assert_int_equal(common(&a, 0, &a, 0), 1000);
    assert_in_range(common(&a, 0, &a, 1), 0, 10);
    assert_in_range(common(&a, 0, &b, 0), 0, 10);
    assert_in_range(common(&a, 1, &b, 0), 0, 10);
    assert_in_range(common(&a, 0, &plain, 0), 0, 10);
}

/* Over many epochs each sample comes first about equally often: chi-squared with 15 degrees of
 * freedom. The seeds are fixed, so the outcome is too. */
static void test_uniform(void **state)
{
    (void)state;
    for (int64_t position = 0; position < 16; position += 5) {
        struct sampler s = {.sample_count = 16, .seed = 3, .shuffle = true};
        int counts[16] = {0};
        enum { EPOCHS = 16000 };
        for (int64_t epoch = 0; epoch < EPOCHS; epoch++) {
            counts[sampler_at(&s, epoch, position)]++;
        }
        double chi = 0;
        for (int i = 0; i < 16; i++) {
            double d = counts[i] - EPOCHS / 16.0;
            chi += d * d / (EPOCHS / 16.0);
        }
        assert_true(chi < 45); /* p about 1e-4 */
    }
}

/* The order is part of the checkpoint: it must not change from version to version. */
static void test_fixed(void **state)
{
    (void)state;
    struct sampler s = {.sample_count = 10, .seed = 42, .shuffle = true};
    char text[11] = "";
    for (int64_t i = 0; i < 10; i++) {
        text[i] = (char)('0' + sampler_at(&s, 0, i));
    }
    assert_string_equal(text, "1364207598");
}

/* ---- the order of PyTorch ---- */

static int64_t number(const cJSON *row, const char *key)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(row, key);
    assert_true(cJSON_IsNumber(v));
    return (int64_t)v->valuedouble;
}

static bool flag(const cJSON *row, const char *key)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(row, key));
}

static const cJSON *array(const cJSON *row, const char *key)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(row, key);
    assert_true(cJSON_IsArray(v));
    return v;
}

static uint32_t checksum(uint32_t crc, int64_t value)
{
    return (uint32_t)crc32(crc, (const unsigned char *)&value, sizeof value);
}

static void test_randperm(void **state)
{
    (void)state;
    cJSON *json = golden_json("tests/golden/numbers/orders.json");
    const cJSON *row;
    cJSON_ArrayForEach(row, array(json, "randperm"))
    {
        struct mt19937 g;
        int64_t count = number(row, "n");
        uint32_t *out = malloc((size_t)count * sizeof *out), crc = 0;
        assert_non_null(out);
        mt19937_seed(&g, (uint64_t)number(row, "seed"));
        randperm(&g, count, out);
        const cJSON *head = array(row, "head");
        for (int i = 0; i < cJSON_GetArraySize(head); i++) {
            assert_int_equal(out[i], (int64_t)cJSON_GetArrayItem(head, i)->valuedouble);
        }
        for (int64_t i = 0; i < count; i++) {
            crc = checksum(crc, out[i]);
        }
        assert_int_equal(crc, (uint32_t)number(row, "crc32"));
        free(out);
    }
    cJSON_Delete(json);
}

static struct sampler open_distributed(const cJSON *row, bool shuffle)
{
    struct sampler s = {.sample_count = number(row, "n"),
                        .seed = (uint64_t)number(row, "seed"),
                        .shuffle = shuffle,
                        .order = ORDER_DISTRIBUTED};
    struct dt_error err;
    assert_int_equal(sampler_check(&s, &err), 0);
    size_t bytes = sampler_bytes(&s);
    assert_true(bytes <= 64 + 8 * (size_t)s.sample_count);
    void *memory = bytes > 0 ? calloc(1, bytes) : NULL;
    assert_true(bytes == 0 || memory != NULL);
    sampler_use(&s, memory);
    return s;
}

/* Number i of a rank's list. PyTorch fills the lists up from the epoch's begin; our epochs end there. */
static int64_t listed(const struct sampler *s, const cJSON *row, int64_t rank, int64_t i)
{
    int64_t position = i * number(row, "N") + rank;
    return sampler_at(s, number(row, "epoch"), position % s->sample_count);
}

static void test_distributed(void **state)
{
    (void)state;
    cJSON *json = golden_json("tests/golden/numbers/sampler.json");
    const cJSON *row, *list;
    int compared = 0;
    cJSON_ArrayForEach(row, array(json, "rows"))
    {
        struct sampler s = open_distributed(row, flag(row, "shuffle"));
        int64_t rank = 0;
        cJSON_ArrayForEach(list, array(row, "ranks"))
        {
            for (int i = 0; i < cJSON_GetArraySize(list); i++, compared++) {
                assert_int_equal(listed(&s, row, rank, i), (int64_t)cJSON_GetArrayItem(list, i)->valuedouble);
            }
            rank++;
        }
        free(s.memory);
    }
    assert_true(compared > 300);
    cJSON_ArrayForEach(row, array(json, "large"))
    {
        struct sampler s = open_distributed(row, true);
        uint32_t crc = 0, first = 0;
        for (int64_t rank = 0; rank < number(row, "N"); rank++) {
            for (int64_t i = 0; i < number(row, "per_rank"); i++) {
                crc = checksum(crc, listed(&s, row, rank, i));
            }
            first = rank == 0 ? crc : first;
        }
        assert_int_equal(first, (uint32_t)number(row, "crc32_rank0"));
        assert_int_equal(crc, (uint32_t)number(row, "crc32_all_ranks"));
        free(s.memory);
    }
    cJSON_Delete(json);
}

/* Every sample comes once in an epoch, wherever a run was stopped and at whatever number of ranks it
 * went on; the memory holds this epoch and the next one, in any order of questions. */
static void test_stops_and_other_ranks(void **state)
{
    (void)state;
    enum { COUNT = 997 };
    struct sampler s = {.sample_count = COUNT, .seed = 3, .shuffle = true, .order = ORDER_DISTRIBUTED};
    void *memory = calloc(1, sampler_bytes(&s));
    assert_non_null(memory);
    for (int64_t epoch = 0; epoch < 6; epoch++) {
        unsigned char seen[COUNT] = {0};
        int64_t position = 0, ranks = 1;
        while (position + ranks <= COUNT) {
            if (position % 7 == 0) { /* a new process */
                sampler_use(&s, memory);
            }
            for (int64_t rank = 0; rank < ranks; rank++) {
                seen[sampler_at(&s, epoch, position + rank)]++;
                (void)sampler_at(&s, epoch + 1, rank);
            }
            position += ranks;
            ranks = 1 + (ranks * 5 + epoch) % 8;
            ranks = position + ranks > COUNT ? COUNT - position > 0 ? COUNT - position : 1 : ranks;
        }
        assert_int_equal(position, COUNT);
        for (int i = 0; i < COUNT; i++) {
            assert_int_equal(seen[i], 1);
        }
    }
    free(memory);
}

static void test_most(void **state)
{
    (void)state;
    struct dt_error err;
    struct sampler s = {.sample_count = RANDPERM_MOST, .shuffle = true, .order = ORDER_DISTRIBUTED};
    assert_int_equal(sampler_check(&s, &err), 0);
    s.sample_count++;
    assert_int_equal(sampler_check(&s, &err), -1);
    assert_non_null(strstr(err.text, "data.sampler: distributed orders at most 214748363 samples, and there are "
                                     "214748364; use permutation"));
    s.order = ORDER_PERMUTATION;
    assert_int_equal(sampler_check(&s, &err), 0);
    assert_int_equal(sampler_bytes(&s), 0);
    s = (struct sampler){.sample_count = 10, .order = ORDER_DISTRIBUTED}; /* no shuffle */
    assert_int_equal(sampler_bytes(&s), 0);
    assert_int_equal(sampler_at(&s, 1, 7), 7);
}

/* ---- by length ---- */

static int64_t length_of(const struct data_source *s, int64_t sample)
{
    return ((const int64_t *)s->state)[sample];
}

static const struct data_ops lengths_only = {.name = "lengths", .length = length_of};

static void *open_groups(struct sampler *s)
{
    struct dt_error err;
    assert_int_equal(sampler_check(s, &err), 0);
    void *memory = calloc(1, sampler_bytes(s));
    assert_non_null(memory);
    sampler_use(s, memory);
    return memory;
}

static void test_groups(void **state)
{
    (void)state;
    cJSON *json = golden_json("tests/golden/numbers/orders.json");
    const cJSON *row;
    int64_t lengths[64];
    cJSON_ArrayForEach(row, array(json, "groups"))
    {
        const cJSON *order = array(row, "order");
        struct data_source source = {.ops = &lengths_only, .state = lengths};
        struct sampler s = {.sample_count = cJSON_GetArraySize(order),
                            .seed = (uint64_t)number(row, "seed"),
                            .shuffle = true,
                            .lengths = &source,
                            .group = number(row, "global_batch"),
                            .window = number(row, "window") / number(row, "global_batch")};
        for (int i = 0; i < s.sample_count; i++) {
            lengths[i] = (int64_t)cJSON_GetArrayItem(array(row, "lengths"), i)->valuedouble;
        }
        void *memory = open_groups(&s);
        for (int i = 0; i < s.sample_count; i++) {
            assert_int_equal(sampler_at(&s, number(row, "epoch"), i),
                             (int64_t)cJSON_GetArrayItem(order, i)->valuedouble);
        }
        free(memory);
    }
    cJSON_Delete(json);
}

/* Any number of samples, also fewer than a group: each comes once, a whole group has its lengths from one
 * place of the sorted window, and another start in the middle finds the same order. */
static void test_groups_are_alike(void **state)
{
    (void)state;
    static const int64_t counts[] = {2, 7, 8, 9, 399, 400, 401, 2003};
    static int64_t lengths[2003];
    struct data_source source = {.ops = &lengths_only, .state = lengths};
    for (int64_t i = 0; i < 2003; i++) {
        lengths[i] = 1 + i * 7919 % 512;
    }
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        struct sampler s = {.sample_count = counts[c], .seed = 5, .shuffle = true, .lengths = &source, .window = 50};
        unsigned char seen[2003] = {0};
        void *memory = open_groups(&s);
        sampler_regroup(&s, 8);
        for (int64_t i = 0; i < s.sample_count; i++) {
            int64_t at = sampler_at(&s, 1, i), first = sampler_at(&s, 1, i / 8 * 8);
            seen[at]++;
            assert_true(lengths[at] <= lengths[first]);
            assert_true(i / 8 == s.sample_count / 8 || s.sample_count < 400 || lengths[first] - lengths[at] <= 40);
            if (i % 100 == 0) {
                sampler_use(&s, memory);
                assert_int_equal(sampler_at(&s, 1, i), at);
            }
        }
        for (int64_t i = 0; i < s.sample_count; i++) {
            assert_int_equal(seen[i], 1);
        }
        free(memory);
    }
}

static void test_groups_most(void **state)
{
    (void)state;
    struct dt_error err;
    struct data_source source = {.ops = &lengths_only};
    struct sampler s = {
        .sample_count = RANDPERM_MOST + 1, .shuffle = true, .lengths = &source, .group = 8, .window = 50};
    assert_int_equal(sampler_check(&s, &err), -1);
    assert_non_null(strstr(err.text, "data.group_by_length orders at most 214748363 samples"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_permutation),
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_orders_differ),
        cmocka_unit_test(test_uniform),
        cmocka_unit_test(test_fixed),
        cmocka_unit_test(test_randperm),
        cmocka_unit_test(test_distributed),
        cmocka_unit_test(test_stops_and_other_ranks),
        cmocka_unit_test(test_most),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_groups_are_alike),
        cmocka_unit_test(test_groups_most),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
