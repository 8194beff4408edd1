/* What agents say to each other, from hostile bytes: refused, or exactly what we would send for
 * what was understood, with every number in its range. */
#include "driver.h"

#include "launcher/rounds/message.h"

#include <stdlib.h>
#include <string.h>

static void must(bool holds)
{
    if (!holds) {
        abort();
    }
}

static void check_info(const struct peer_info *p)
{
    must(p->order >= -1 && p->order <= MESSAGE_STEP_MAX && p->port >= 0 && p->port <= 65535 && p->pid >= 0);
    must(dt_text_is_harmless(p->host, strlen(p->host), false) &&
         dt_text_is_harmless(p->address, strlen(p->address), false));
}

static void check_record(const struct record *r)
{
    must(r->term <= MESSAGE_TERM_MAX && r->round >= 0 && r->round <= MESSAGE_COUNT_MAX && r->restarts_used >= 0 &&
         r->restarts_used <= MESSAGE_COUNT_MAX && r->no_progress >= 0 && r->no_progress <= MESSAGE_COUNT_MAX);
    must(r->best_step >= -1 && r->best_saved >= -1 && r->oom_step >= -1 && r->next_order >= 0 &&
         r->next_order <= MESSAGE_STEP_MAX);
    must(r->members >= 0 && r->members <= COORDINATOR_MAX_NODES && r->code >= 0 && r->code <= 255);
    must(r->council_count >= 0 && r->council_count <= MESSAGE_COUNCIL && r->before_count >= 0 &&
         r->before_count <= MESSAGE_COUNCIL);
    for (int i = 0; i < r->council_count; i++) {
        check_info(&r->council[i]);
        must(r->council[i].id != 0);
    }
    for (int i = 0; i < r->before_count; i++) {
        check_info(&r->before[i]);
    }
}

/* What the job makes tables and variables of. */
static void check_start(const struct message *in)
{
    const struct place *p = &in->action.place;
    const struct record *r = &in->record;
    bool led = false;
    for (int i = 0; i < r->council_count; i++) {
        led = led || (r->council[i].id == r->leader && r->council[i].port > 0);
    }
    must(led && p->round == r->round && p->round > 0 && in->info.order >= 0);
    must(p->local_world_size > 0 && p->local_world_size <= MESSAGE_LOCAL_MAX && p->rank >= 0 && p->group_rank >= 0 &&
         p->role_rank >= 0);
    must((int64_t)p->rank + p->local_world_size <= p->world_size &&
         (int64_t)p->role_rank + p->local_world_size <= p->role_world_size);
    must(p->group_rank < p->group_world_size && p->group_world_size <= COORDINATOR_MAX_NODES && p->restarts_used >= 0);
    must(in->text[strspn(in->text, "0123456789,(x)")] == '\0');
}

static void check(const struct message *in)
{
    must(in->term <= MESSAGE_TERM_MAX && in->round >= 0 && in->round <= MESSAGE_COUNT_MAX && in->code >= 0 &&
         in->code <= 255);
    must(in->local_world_size >= 0 && in->local_world_size <= MESSAGE_LOCAL_MAX && in->members >= 0 &&
         in->members <= COORDINATOR_MAX_NODES);
    must(in->stamp >= 0 && in->stamp <= MESSAGE_TIME_MAX && in->echo >= 0 && in->echo <= MESSAGE_TIME_MAX &&
         in->wall_s >= 0);
    must(dt_text_is_harmless(in->text, strlen(in->text), in->kind == MESSAGE_JOIN) &&
         dt_text_is_harmless(in->role, strlen(in->role), false));
    check_info(&in->info);
    check_record(&in->record);
    must(in->event.kind <= EVENT_STOP && in->event.step >= -1 && in->event.saved_step >= -1 &&
         in->event.at_step >= -1 && in->event.round >= 0);
    must(in->event.step <= MESSAGE_STEP_MAX && in->event.local_world_size <= MESSAGE_LOCAL_MAX);
    if (in->kind == MESSAGE_ACTION && in->action.kind == ACTION_START) {
        check_start(in);
    }
    if (in->kind == MESSAGE_REDIRECT || in->kind == MESSAGE_PROBE || in->kind == MESSAGE_YIELD) {
        must(in->info.id != 0 && in->info.port > 0);
    }
    must(in->body_size <= MESSAGE_BODY_BYTES);
}

int dt_fuzz(const uint8_t *data, size_t size)
{
    static struct message m;
    struct dt_error err;
    struct dt_text again = {0};
    if (message_decode(&m, data, size, &err) != 0) {
        return 0;
    }
    check(&m);
    message_encode(&m, &again);
    if (again.size != size || memcmp(again.data, data, size) != 0) {
        abort(); /* two encodings of one message */
    }
    dt_text_clear(&again);
    return 0;
}
