/* covers: collectives worker/engine/world.c */
/* Communicators over several hosts, with ranks as processes (tests/lib/comm_processes.h): sums,
 * and what the others are told when one is killed. Ranks learn from the environment where they
 * are, as those of a launcher do. */
#include "tests/lib/comm_processes.h"

#include "worker/engine/world.h"

#include <string.h>

static struct world place; /* of this process */

static void set(const char *name, int value)
{
    char text[16];
    (void)snprintf(text, sizeof(text), "%d", value);
    (void)setenv(name, text, 1);
}

/* layout: one digit per rank, its host. */
static struct dt_comm *enter(int rank, int size, const void *arg)
{
    const char *layout = arg;
    struct dt_error err = {0};
    int local = 0, before = 0;
    for (int i = 0; i < size; i++) {
        local += layout[i] == layout[rank];
        before += i < rank && layout[i] == layout[rank];
    }
    set("RANK", rank);
    set("WORLD_SIZE", size);
    set("LOCAL_RANK", before);
    set("LOCAL_WORLD_SIZE", local);
    set("GROUP_RANK", layout[rank] - '0');
    set("GROUP_WORLD_SIZE", layout[size - 1] - '0' + 1);
    set("MASTER_PORT", port);
    (void)setenv("MASTER_ADDR", "127.0.0.1", 1);
    if (world_open(&place, &(struct world_options){.device = "cpu", .collective_timeout_s = PATIENCE_S, .threads = 1},
                   &err) != 0) {
        (void)fprintf(stderr, "rank %d: %s\n", rank, err.text);
        _exit(4);
    }
    NEED(strcmp(place.comm->ops->name, "tcp") == 0);
    return place.comm;
}

static void leave(struct dt_comm *c)
{
    (void)c;
    world_close(&place);
}

static void begin(const char *layout, void (*body)(struct dt_comm *c))
{
    processes_begin((int)strlen(layout), enter, layout, body, leave);
}

static void processes_sum(void **unused)
{
    (void)unused;
    static const char *const layouts[] = {"01", "001", "011222"};
    for (int i = 0; i < 3; i++) {
        begin(layouts[i], sums);
        for (int r = 0; r < (int)strlen(layouts[i]); r++) {
            assert_int_equal(end(r), 0);
        }
        processes_renew();
    }
}

/* A leader and one that is none, of either host. */
static void killed_rank_is_named(void **unused)
{
    (void)unused;
    for (int victim = 0; victim < 4; victim++) {
        char who[16];
        (void)snprintf(who, sizeof(who), "rank %d", victim);
        begin("0011", work);
        wait_for_count(victim, 20);
        kill_and_check(victim, 4, who);
        processes_renew();
    }
}

static void poll_notices_a_killed_rank(void **unused)
{
    (void)unused;
    begin("01", idle);
    wait_for_count(0, 1);
    wait_for_count(1, 1);
    kill_and_check(1, 2, "rank 1 on host 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(processes_sum, processes_setup, processes_teardown),
        cmocka_unit_test_setup_teardown(killed_rank_is_named, processes_setup, processes_teardown),
        cmocka_unit_test_setup_teardown(poll_notices_a_killed_rank, processes_setup, processes_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
