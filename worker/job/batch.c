#include "worker/job/batch.h"

#include <inttypes.h>

static void show(const struct batch_number *n, struct dt_text *out)
{
    dt_text_printf(out, "%s %" PRId64 " (%s), ", n->name, n->value,
                   n->given     ? n->source
                   : n->is_auto ? "auto, derived"
                                : "derived");
}

static int refuse(const struct batch_identity *b, int64_t unit, struct dt_text *why)
{
    const char *ranks = b->ranks == 1 ? "" : "s";
    bool fixed = b->micro.given && b->steps.given, less = !fixed && b->all.value < unit;
    int64_t below = fixed ? unit : b->all.value / unit * unit, above = below + unit;
    const struct batch_number *const factors[] = {&b->micro, &b->steps};
    dt_text_printf(why, "%" PRId64 " %s ", b->all.value, less ? "is less than" : "!=");
    for (int i = 0; i < 2; i++) { /* nothing is left for one that is derived where all is less */
        if (!less || factors[i]->given) {
            dt_text_printf(why, "%" PRId64 " * ", factors[i]->value);
        }
    }
    dt_text_printf(why, "%" PRId64, b->ranks);
    if (b->sample != 1) {
        dt_text_printf(why, " * %" PRId64, b->sample);
    }
    dt_text_puts(why, ": ");
    for (int i = 0; i < 2; i++) {
        if (!less || factors[i]->given) {
            show(factors[i], why);
        }
    }
    dt_text_printf(why, "%" PRId64 " rank%s", b->ranks, ranks);
    if (b->sample != 1) {
        dt_text_printf(why, ", %" PRId64 " tokens a sample", b->sample);
    }
    dt_text_printf(why, "; write %" PRId64, below > 0 ? below : above);
    if (below > 0 && !fixed) {
        dt_text_printf(why, " or %" PRId64, above);
    }
    int64_t of_rank = unit / b->ranks;
    bool one = b->micro.given || b->steps.given || !less; /* that may be removed */
    if ((fixed || less) && b->all.value > 0 && b->all.value % of_rank == 0) {
        dt_text_printf(why, ", %sstart %" PRId64 " rank%s", one ? "" : "or ", b->all.value / of_rank,
                       b->all.value == of_rank ? "" : "s");
    }
    dt_text_puts(why, one ? ", or remove one of them" : "");
    return -1;
}

int batch_solve(struct batch_identity *b, struct dt_text *why)
{
    int64_t unit = b->micro.value * b->steps.value * b->ranks * b->sample;
    if (!b->all.given) {
        b->all.value = unit;
        return 0;
    }
    int64_t samples = b->all.value / b->sample;
    if (!b->micro.given) {
        b->micro.value = samples / b->ranks / b->steps.value;
    } else if (!b->steps.given) {
        b->steps.value = samples / b->micro.value / b->ranks;
    }
    return b->micro.value * b->steps.value * b->ranks * b->sample == b->all.value ? 0 : refuse(b, unit, why);
}
