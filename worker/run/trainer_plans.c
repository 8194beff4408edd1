/* Chooses how the device computes the job's products, attention and convolutions. A device with several
 * ways to compute a product measures them at the start of a run, on rank 0 for all ranks. Attention and
 * convolutions are chosen alike, but each rank makes its plans itself. */
#include "worker/run/trainer.h"

#include "base/clock.h"
#include "worker/engine/matmul_shapes.h"

#include <math.h>
#include <string.h>

static void tick(void *context)
{
    dt_page_pulse(((struct world *)context)->page);
}

/* Rank 0: measures what is new. */
static int choose(struct trainer *t, const struct matmul_shapes *all, struct dt_error *err)
{
    struct world *w = t->world;
    struct dt_error why;
    int measured = 0;
    double begin_s = dt_now_s();
    if (w->device->ops->plans->choose(w->compute, all->each, all->count, tick, w, &measured, &why, err) != 0) {
        return -1;
    }
    if (why.status != DT_OK) {
        observers_say(&t->observers, "train: products are not measured: %s", why.text);
    } else if (measured > 0) {
        observers_say(&t->observers, "train: %d of %d products measured in %.1f s, once for this kind of GPU", measured,
                      all->count, dt_now_s() - begin_s);
    }
    return 0;
}

/* All ranks compute products as rank 0 chose. */
static int choose_together(struct trainer *t, const struct matmul_shapes *all, struct dt_error *err)
{
    struct world *w = t->world;
    const struct dt_device_plans *plans = w->device->ops->plans;
    struct dt_text text;
    struct dt_error failure;
    dt_text_init(&text);
    bool failed = t->rank == 0 && choose(t, all, &failure) != 0;
    if (t->rank == 0 && !failed) {
        plans->tell(w->device, all->each, all->count, &text);
    }
    int rc = trainer_share(t, "train/products", &text, failed ? &failure : NULL, INFINITY, err);
    /* rank 0 too: what its file says of other products nobody else has */
    if (rc == 0 && !plans->take(w->device, dt_text_str(&text), t->rank != 0 && w->local_rank == 0)) {
        observers_note(
            &t->observers,
            "train: rank %d has another GPU, driver or cublasLt than rank 0: products are computed by its own plans",
            t->rank);
    }
    dt_text_clear(&text);
    return rc;
}

/* Chooses the ways of attention. */
static int choose_attention(struct trainer *t, const struct dt_attention_list *all, struct dt_error *err)
{
    struct world *w = t->world;
    struct dt_error why;
    int measured = 0;
    double begin_s = dt_now_s();
    if (w->device->ops->plans->choose_attention(w->compute, all, tick, w, &measured, &why, err) != 0) {
        return -1;
    }
    if (why.status != DT_OK) {
        observers_say(&t->observers, "train: attention is not measured: %s", why.text);
    } else if (measured > 0) {
        observers_say(&t->observers, "train: attention measured in %.1f s, once for this kind of GPU",
                      dt_now_s() - begin_s);
    }
    return 0;
}

static int choose_attention_together(struct trainer *t, const struct matmul_shapes *of, struct dt_error *err)
{
    struct world *w = t->world;
    const struct dt_device_plans *plans = w->device->ops->plans;
    const struct dt_attention_list all = {of->attention, of->attention_count, of->attention_backward,
                                          of->attention_backward_count};
    struct dt_text text;
    struct dt_error failure;
    dt_text_init(&text);
    bool failed = t->rank == 0 && choose_attention(t, &all, &failure) != 0;
    if (t->rank == 0 && !failed) {
        plans->tell_attention(w->device, &all, &text);
    }
    int rc = trainer_share(t, "train/attention", &text, failed ? &failure : NULL, INFINITY, err);
    if (rc == 0 && text.size > 0 &&
        !plans->take_attention(w->device, dt_text_str(&text), t->rank != 0 && w->local_rank == 0)) {
        observers_note(
            &t->observers,
            "train: rank %d has another GPU, driver or cuDNN than rank 0: attention is computed by its own plans",
            t->rank);
    }
    dt_text_clear(&text);
    return rc;
}

static struct dt_convolution_list convolutions_of(const struct matmul_shapes *all)
{
    return (struct dt_convolution_list){all->convolution,         all->convolution_count,
                                        all->convolution_input,   all->convolution_input_count,
                                        all->convolution_weights, all->convolution_weights_count};
}

/* Chooses the ways of convolutions. */
static int choose_convolutions(struct trainer *t, const struct dt_convolution_list *all, struct dt_error *err)
{
    struct world *w = t->world;
    struct dt_error why;
    int measured = 0;
    double begin_s = dt_now_s();
    if (w->device->ops->plans->choose_convolutions(w->compute, all, tick, w, &measured, &why, err) != 0) {
        return -1;
    }
    if (why.status != DT_OK) {
        observers_say(&t->observers, "train: convolutions are not measured: %s", why.text);
    } else if (measured > 0) {
        observers_say(&t->observers, "train: %d convolutions measured in %.1f s, once for this kind of GPU", measured,
                      dt_now_s() - begin_s);
    }
    return 0;
}

static int choose_convolutions_together(struct trainer *t, const struct matmul_shapes *of, struct dt_error *err)
{
    struct world *w = t->world;
    const struct dt_device_plans *plans = w->device->ops->plans;
    const struct dt_convolution_list all = convolutions_of(of);
    struct dt_text text;
    struct dt_error failure;
    dt_text_init(&text);
    bool failed = t->rank == 0 && choose_convolutions(t, &all, &failure) != 0;
    if (t->rank == 0 && !failed) {
        plans->tell_convolutions(w->device, &all, &text);
    }
    int rc = trainer_share(t, "train/convolutions", &text, failed ? &failure : NULL, INFINITY, err);
    if (rc == 0 && text.size > 0 &&
        !plans->take_convolutions(w->device, dt_text_str(&text), t->rank != 0 && w->local_rank == 0)) {
        observers_note(
            &t->observers,
            "train: rank %d has another GPU, driver or cuDNN than rank 0: convolutions are computed by its own plans",
            t->rank);
    }
    dt_text_clear(&text);
    return rc;
}

static int make_convolutions_ready(struct trainer *t, const struct matmul_shapes *all, struct dt_error *err)
{
    struct world *w = t->world;
    const struct dt_convolution_list list = convolutions_of(all);
    const char *by = "nothing";
    double begin_s = dt_now_s();
    if (all->convolution_count == 0) {
        return 0;
    }
    if (w->device->ops->plans->convolutions(w->device, &list, tick, w, &by, err) != 0) {
        return -1;
    }
    observers_note(&t->observers, "train: convolutions by %s: ready after %.1f s", by, dt_now_s() - begin_s);
    return 0;
}

/* Each rank for itself: plans, and what attention needs beside memory. */
static int make_ready(struct trainer *t, const struct matmul_shapes *all, struct dt_error *err)
{
    struct world *w = t->world;
    const struct dt_device_plans *plans = w->device->ops->plans;
    const char *forward = "nothing", *backward = "nothing";
    double begin_s = dt_now_s();
    if (plans->ready(w->compute, all->each, all->count, tick, w, err) != 0) {
        return -1;
    }
    observers_note(&t->observers, "train: %d products ready after %.1f s", all->count, dt_now_s() - begin_s);
    begin_s = dt_now_s();
    for (int i = 0; i < all->attention_count; i++) {
        if (plans->attention(w->device, &all->attention[i], &forward, err) != 0) {
            return -1;
        }
        tick(w);
    }
    for (int i = 0; i < all->attention_backward_count; i++) {
        if (plans->attention_backward(w->device, &all->attention_backward[i], &backward, err) != 0) {
            return -1;
        }
        tick(w);
    }
    if (all->attention_count > 0) {
        observers_note(&t->observers, "train: attention by %s, backward by %s: ready after %.1f s", forward, backward,
                       dt_now_s() - begin_s);
    }
    return make_convolutions_ready(t, all, err);
}

/* Collects the shapes of all micro-steps of a step. Collectives run beside some of these only. */
static void collect_all(const struct trainer *t, struct matmul_shapes *all)
{
    memset(all, 0, sizeof *all);
    for (int i = 0; i < 4; i++) {
        bool first = i % 2 == 0, last = i / 2 == 0;
        struct matmul_shapes_beside beside;
        for (int phase = PASS_FORWARD; phase <= PASS_EVAL; phase++) {
            beside.blocks[phase] =
                strategy_busy_sms(&t->strategy, t->world, (enum pass_phase)phase, false, first, last);
            beside.last[phase] = strategy_busy_sms(&t->strategy, t->world, (enum pass_phase)phase, true, first, last);
        }
        if ((first && last) || t->micro_steps > 1) {
            matmul_shapes_add(all, &t->chain, t->strategy.precision.grads, &beside);
        }
    }
}

int trainer_choose_plans(struct trainer *t, struct world *w, struct dt_error *err)
{
    const struct dt_device_plans *plans = w->device->ops->plans;
    struct matmul_shapes all;
    int rc = 0;
    t->world = w;
    if (plans == NULL) {
        return 0;
    }
    collect_all(t, &all);
    if (t->job->training.deterministic) {
        plans->none(w->device);
    } else {
        rc = choose_together(t, &all, err);
        rc = rc == 0 && all.attention_count > 0 ? choose_attention_together(t, &all, err) : rc;
        rc = rc == 0 && all.convolution_count > 0 ? choose_convolutions_together(t, &all, err) : rc;
    }
    rc = rc == 0 ? make_ready(t, &all, err) : rc;
    matmul_shapes_clear(&all);
    return rc;
}
