#include "tests/lib/schedules.h"

#include "base/text.h"
#include "tests/lib/cluster.h"

#include <stdio.h>
#include <stdlib.h>

long long schedule_setting(const char *name, long long fallback)
{
    long long value;
    return getenv(name) != NULL && dt_parse_int64(getenv(name), &value) ? value : fallback;
}

int schedule_count_codes(int count, int code)
{
    int n = 0;
    for (int i = 0; i < count; i++) {
        n += cluster_agent(i).code == code;
    }
    return n;
}

void schedule_list_left(int count, char *out, size_t out_bytes)
{
    size_t used = (size_t)snprintf(out, out_bytes, "no end:");
    for (int i = 0; i < count && used < out_bytes; i++) {
        struct cluster_agent a = cluster_agent(i);
        const struct member *m = a.member;
        if (!a.finished || count <= 8) {
            used += (size_t)snprintf(out + used, out_bytes - used, " %d:%s/%d/round %d/term %llu%s", i,
                                     a.finished ? "done"
                                     : !a.alive ? "dead"
                                                : agent_state_name(a.state),
                                     (int)m->role, m->record.round, (unsigned long long)m->record.term,
                                     m->waiting ? "/waits" : "");
        }
    }
}
