/* How long each worker takes from its start until it is ready for the others: most of a slow
 * launch is what the program loads before (interpreter, libraries on a shared file system), and
 * one rank's is everybody's. Ours say it on their page when all communicators are open; of any
 * other program the first word to the store counts (init_process_group), where it comes from
 * this machine. */
#include "base/clock.h"
#include "base/log.h"
#include "launcher/job/run_parts.h"

enum { NAMED = 32 };

static void on_ping(void *user, int pid)
{
    struct worker *one = run_worker_of(user, (pid_t)pid);
    if (one != NULL && one->contact_s <= 0) {
        one->contact_s = dt_now_s();
    }
}

void run_starts_open(struct run *r)
{
    store_server_on_ping(hosts_store(r->hosts), on_ping, r);
}

/* Negative: it never was. */
static double ready_after_s(const struct worker *one)
{
    struct dt_page_look page;
    dt_page_read(one->page, dt_now_s(), &page);
    double ready_s = page.ready_s > 0 ? page.ready_s : one->contact_s;
    return ready_s > one->start_s && one->start_s > 0 ? ready_s - one->start_s : -1;
}

void run_starts_say(struct run *r)
{
    struct dt_text line, fields;
    int known = 0, slowest = 0;
    dt_text_init(&line);
    dt_text_init(&fields);
    for (int i = 0; i < r->workers.count; i++) {
        double after_s = ready_after_s(&r->workers.list[i]);
        known += after_s >= 0;
        slowest = after_s > ready_after_s(&r->workers.list[slowest]) ? i : slowest;
        dt_text_printf(&fields, after_s >= 0 ? "%s%.3f" : "%snull", i > 0 ? "," : "", after_s);
        if (i < NAMED) {
            dt_text_printf(&line, after_s >= 0 ? " rank %d %.3f s," : " rank %d never,", r->place.rank + i, after_s);
        }
    }
    if (known > 0) {
        dt_log(DT_LOG_INFO, "agent", "round %d from start to init:%s slowest rank %d", r->place.round,
               dt_text_str(&line), r->place.rank + slowest);
        run_event(r, "start_to_init", "\"round\":%d,\"first_rank\":%d,\"seconds\":[%s]", r->place.round, r->place.rank,
                  dt_text_str(&fields));
    }
    dt_text_clear(&line);
    dt_text_clear(&fields);
}
