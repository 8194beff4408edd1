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

static int64_t number_of(const struct field *f, const void *at)
{
    int i;
    memcpy(&i, at, sizeof i);
    return f->type == FIELD_I64 ? *(const int64_t *)at : i;
}

/* Every value is in the range of its row. */
static void check_fields(const struct field *f, const void *value)
{
    for (; f->type != FIELD_END; f++) {
        const char *at = (const char *)value + f->at;
        int count;
        switch (f->type) {
        case FIELD_TERM:
            must(*(const uint64_t *)(const void *)at <= (uint64_t)1 << 63);
            break;
        case FIELD_I64:
        case FIELD_INT:
            must(number_of(f, at) >= f->low && number_of(f, at) <= f->high);
            break;
        case FIELD_BOOL:
            must(at[0] == 0 || at[0] == 1);
            break;
        case FIELD_SECONDS:
            must(*(const double *)(const void *)at >= 0 && *(const double *)(const void *)at <= 1e12);
            break;
        case FIELD_NAME:
        case FIELD_LINE:
        case FIELD_LINES:
        case FIELD_CHARS:
            must(strnlen(at, f->bytes) < f->bytes && dt_text_is_harmless(at, strlen(at), f->type == FIELD_LINES));
            must(f->type != FIELD_CHARS || at[strspn(at, f->characters)] == '\0');
            break;
        case FIELD_BODY:
            must(((const struct field_body *)(const void *)at)->size <= MESSAGE_BODY_BYTES);
            break;
        case FIELD_STRUCT:
            check_fields(f->of, at);
            break;
        case FIELD_LIST:
            memcpy(&count, (const char *)value + f->count_at, sizeof count);
            must(count >= 0 && count <= f->high);
            for (int i = 0; i < count; i++) {
                check_fields(f->of, at + (size_t)i * f->bytes);
            }
            break;
        case FIELD_U64:
        case FIELD_CHECK:
        case FIELD_END:
            break;
        }
    }
}

/* What becomes the size of a table, whatever the rows say. */
static void check_record(const struct record *r)
{
    must(r->round >= 0 && r->history.restarts_used >= 0 && r->history.no_progress >= 0 && r->code >= 0 &&
         r->code <= 255);
    must(r->history.best_step >= -1 && r->history.best_saved >= -1 && r->history.oom_step >= -1 && r->next_order >= 0);
    must(r->members >= 0 && r->members <= COORDINATOR_MAX_NODES);
    must(r->council_count >= 0 && r->council_count <= MESSAGE_COUNCIL && r->before_count >= 0 &&
         r->before_count <= MESSAGE_COUNCIL);
    for (int i = 0; i < r->council_count + r->before_count; i++) {
        must((i < r->council_count ? r->council[i] : r->before[i - r->council_count]).id != 0);
    }
}

/* What the job makes tables and variables of. */
static void check_start(const struct message_action *in)
{
    const struct place *p = &in->action.place;
    const struct record *r = &in->record;
    bool led = false;
    for (int i = 0; i < r->council_count; i++) {
        led = led || (r->council[i].id == r->leader && r->council[i].port > 0);
    }
    must(led && p->round == r->round && p->round > 0 && in->order >= 0);
    must(p->local_world_size > 0 && p->local_world_size <= MESSAGE_LOCAL_MAX && p->rank >= 0 && p->group_rank >= 0 &&
         p->role_rank >= 0);
    must((int64_t)p->rank + p->local_world_size <= p->world_size &&
         (int64_t)p->role_rank + p->local_world_size <= p->role_world_size);
    must(p->group_rank < p->group_world_size && p->group_world_size <= COORDINATOR_MAX_NODES && p->restarts_used >= 0);
    must(in->sizes[strspn(in->sizes, "0123456789,(x)")] == '\0');
}

static void check(const struct message *in)
{
    check_fields(message_fields(in->kind), in);
    switch (in->kind) {
    case MESSAGE_JOIN:
        must(in->join.local_world_size > 0 && in->join.local_world_size <= MESSAGE_LOCAL_MAX);
        break;
    case MESSAGE_REFUSE:
        must(in->refuse.code >= 0 && in->refuse.code <= 255);
        break;
    case MESSAGE_REDIRECT:
    case MESSAGE_PROBE:
    case MESSAGE_YIELD:
        must(in->redirect.id != 0 && in->redirect.port > 0); /* the same place for all of them */
        break;
    case MESSAGE_EVENT:
        must(in->event.event.kind <= EVENT_STOP && in->event.event.round >= 0 && in->event.event.step >= -1 &&
             in->event.event.local_world_size >= 0 && in->event.event.local_world_size <= MESSAGE_LOCAL_MAX);
        break;
    case MESSAGE_ACTION:
        check_record(&in->action.record);
        if (in->action.action.kind == ACTION_START) {
            check_start(&in->action);
        }
        break;
    case MESSAGE_BEAT:
        must(in->beat.hosts >= 0 && in->beat.hosts <= COORDINATOR_MAX_NODES);
        break;
    case MESSAGE_PREPARE:
        check_record(&in->prepare.record);
        break;
    case MESSAGE_VOTE_ASK:
        check_record(&in->vote_ask.record);
        break;
    case MESSAGE_VOTE:
        check_record(&in->vote.record);
        break;
    case MESSAGE_KEEP:
        check_record(&in->keep.record);
        break;
    case MESSAGE_WITNESS:
        check_record(&in->witness.record);
        break;
    default:
        break;
    }
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
