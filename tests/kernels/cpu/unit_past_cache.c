/* covers: kernels/cpu/past_cache.c kernels/cpu/past_cache.h */
#include "kernels/cpu/past_cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 400, EDGE = 64, GUARD = 0x5a };

/* Every place in a cache line, and sizes up to several lines; nothing beside them is written. */
static void test_copy(void **unused)
{
    (void)unused;
    static uint8_t from[MOST + EDGE];
    static _Alignas(64) uint8_t to[MOST + 3 * EDGE];
    for (size_t i = 0; i < sizeof from; i++) {
        from[i] = (uint8_t)(i * 7 + 1);
    }
    for (size_t place = 0; place < EDGE; place++) {
        for (size_t size = 0; size <= MOST; size += size < 70 ? 1 : 13) {
            memset(to, GUARD, sizeof to);
            dt_copy_past_cache(to + place, from + place % 5, size);
            assert_memory_equal(to + place, from + place % 5, size);
            for (size_t i = 0; i < sizeof to; i++) {
                assert_true((i >= place && i < place + size) || to[i] == GUARD);
            }
        }
    }
}

static void test_widen(void **unused)
{
    (void)unused;
    static uint8_t from[2 * MOST + 1];
    static _Alignas(64) float to[MOST + EDGE];
    for (int64_t i = 0; i < MOST; i++) { /* all kinds of values, NaN and infinity among them */
        uint16_t h = (uint16_t)(i % 7 == 0 ? 0x7f80 + i % 3 : i * 331);
        memcpy(from + 1 + 2 * i, &h, sizeof h);
    }
    for (int64_t place = 0; place < 16; place++) {
        for (int64_t count = 0; count <= MOST; count += count < 40 ? 1 : 17) {
            memset(to, GUARD, sizeof to);
            dt_widen_past_cache(to + place, from + 1, count);
            for (int64_t i = 0; i < MOST + EDGE; i++) {
                uint32_t bits, guard;
                uint16_t h = 0;
                bool inside = i >= place && i < place + count;
                memset(&guard, GUARD, sizeof guard);
                memcpy(&bits, to + i, sizeof bits);
                memcpy(&h, from + 1 + 2 * (inside ? i - place : 0), sizeof h);
                assert_int_equal(bits, inside ? (uint32_t)h << 16 : guard);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_copy), cmocka_unit_test(test_widen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
