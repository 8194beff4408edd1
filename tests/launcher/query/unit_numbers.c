/* covers: launcher/query/numbers.c */
/* The table of numbers: what JSON and metrics show of a snapshot, and what they leave out while
 * it is not known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "launcher/query/numbers.h"

#include <math.h>
#include <string.h>

static void a_rank_shows_what_is_known(void **state)
{
    (void)state;
    struct rank_numbers n = {.rank = 3, .local_rank = 1, .pid = 7, .host = "a\"b", .running = true, .up_s = 2};
    struct dt_text out;
    dt_text_init(&out);
    n.known = RANK_RUNS;
    numbers_rank_json(&n, &out);
    assert_string_equal(dt_text_str(&out), "{\"rank\":3,\"host\":\"a\\\"b\",\"local_rank\":1,\"pid\":7,"
                                           "\"running\":true,\"up_s\":2.0}");
    n.known |= RANK_GPU;
    n.page.gpu.busy = -1; /* not known */
    n.page.gpu.memory_total_bytes = 3e10;
    n.page.gpu.clock_mhz = n.page.gpu.clock_max_mhz = n.page.gpu.temperature = n.page.gpu.power_w = -1;
    dt_text_reset(&out);
    numbers_rank_json(&n, &out);
    assert_non_null(strstr(dt_text_str(&out), ",\"gpu\":{\"bus\":\"\",\"memory_bytes\":0,"
                                              "\"memory_total_bytes\":3e+10,\"slowed_by\":\"\"}}"));
    n.running = false; /* of its page nothing is true any more */
    n.exit_code = -9;
    n.known = RANK_ENDED | RANK_OUTPUT;
    dt_text_reset(&out);
    numbers_rank_json(&n, &out);
    assert_string_equal(dt_text_str(&out), "{\"rank\":3,\"host\":\"a\\\"b\",\"local_rank\":1,\"pid\":7,"
                                           "\"running\":false,\"exit_code\":-9}");
    dt_text_clear(&out);
}

/* A metric's head comes once, before its values; units are those of Prometheus. */
static void metrics_stand_together(void **state)
{
    (void)state;
    struct rank_numbers n[2] = {{.rank = 0, .known = RANK_LEARNED}, {.rank = 1, .known = RANK_LEARNED | RANK_GPU}};
    struct dt_text out;
    dt_text_init(&out);
    n[0].page.loss = NAN;
    n[1].page.loss = 2.5;
    n[0].page.tokens_per_s = 7;
    n[0].page.samples_per_s = n[1].page.tokens_per_s = -1;
    n[1].page.samples_per_s = 8;
    n[1].page.gpu.clock_mhz = 1500;
    n[1].page.gpu.temperature = -1;
    numbers_rank_metrics(n, 2, &out);
    const char *text = dt_text_str(&out);
    assert_non_null(strstr(text, "# TYPE dtrun_worker_loss gauge\n"
                                 "dtrun_worker_loss{rank=\"0\",local_rank=\"0\"} NaN\n"
                                 "dtrun_worker_loss{rank=\"1\",local_rank=\"0\"} 2.5\n"));
    assert_non_null(strstr(text, "dtrun_worker_gpu_clock_hertz{rank=\"1\",local_rank=\"0\"} 1500000000\n"));
    assert_non_null(strstr(text, "dtrun_worker_tokens_per_second{rank=\"0\",local_rank=\"0\"} 7\n"));
    assert_non_null(strstr(text, "dtrun_worker_samples_per_second{rank=\"1\",local_rank=\"0\"} 8\n"));
    assert_null(strstr(text, "} -1\n"));
    assert_null(strstr(text, "temperature"));
    assert_null(strstr(text, "dtrun_worker_step"));
    dt_text_clear(&out);
}

/* Keys and metrics are unique, and each metric has a help text and a kind that its name tells. */
static void rows_are_sound(void **state)
{
    (void)state;
    for (enum numbers_table table = NUMBERS_JOB; table <= NUMBERS_GPU; table++) {
        size_t count;
        const struct number *rows = numbers_rows(table, &count);
        for (size_t i = 0; i < count; i++) {
            const struct number *n = &rows[i];
            assert_true(n->key != NULL || n->metric != NULL || n->column.heading != NULL);
            assert_true((n->metric == NULL) == (n->help == NULL));
            if (n->metric != NULL) {
                size_t size = strlen(n->metric);
                assert_int_equal(n->counter, size > 6 && strcmp(n->metric + size - 6, "_total") == 0);
            }
            for (size_t k = 0; k < i; k++) {
                assert_false(n->key != NULL && rows[k].key != NULL && strcmp(n->key, rows[k].key) == 0);
                assert_false(n->metric != NULL && rows[k].metric != NULL && strcmp(n->metric, rows[k].metric) == 0);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_shows_what_is_known),
        cmocka_unit_test(metrics_stand_together),
        cmocka_unit_test(rows_are_sound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
