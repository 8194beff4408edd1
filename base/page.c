#include "base/page.h"

#include "base/clock.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VERSION = 6 };
#define LAST_STEP ((int64_t)1 << 53) /* also the largest whole number in JSON */
#define LONGEST_S 1e9
#define LARGEST 1e18 /* limit of byte counts, and of all other numbers of a GPU */
_Static_assert(sizeof(struct dt_page) <= DT_PAGE_BYTES, "the page is one page");

const char *dt_phase_name(enum dt_phase phase)
{
    switch (phase) {
    case DT_PHASE_NONE:
        return "none";
    case DT_PHASE_START:
        return "start";
    case DT_PHASE_FORWARD:
        return "forward";
    case DT_PHASE_BACKWARD:
        return "backward";
    case DT_PHASE_STEP:
        return "step";
    case DT_PHASE_EVAL:
        return "evaluation";
    case DT_PHASE_SAVE:
        return "save";
    case DT_PHASE_EXIT:
        return "exit";
    case DT_PHASE_COUNT:
        break;
    }
    return "unknown";
}

static void fill(struct dt_page *page, uint32_t round)
{
    page->magic = DT_PAGE_MAGIC;
    page->version = VERSION;
    page->round = round;
    atomic_store(&page->step, -1);
    atomic_store(&page->saved_step, -1);
    atomic_store(&page->learned_step, -1);
    atomic_store(&page->snapshot_step, -1);
    atomic_store(&page->begun_step, -1);
    atomic_store(&page->pulse_s, dt_now_s());
}

/* ---- reading a page ---- */

static int64_t whole(int64_t value, int64_t low)
{
    return value < low ? low : value > LAST_STEP ? LAST_STEP : value;
}

/* A number of seconds; 0 if it is out of range. */
static double seconds(double value)
{
    return value >= 0 && value <= LONGEST_S ? value : 0;
}

static double known(double value)
{
    return value >= 0 && value <= LARGEST ? value : -1;
}

static void text(char *out, const char *from, size_t out_bytes)
{
    memcpy(out, from, out_bytes);
    out[out_bytes - 1] = '\0';
    dt_text_make_harmless(out, false);
}

static void look_at_gpu(const struct dt_page_gpu *g, struct dt_page_look *out)
{
    int xid = atomic_load(&g->xid);
    out->gpu.busy = known(atomic_load(&g->busy));
    out->gpu.memory_bytes = known(atomic_load(&g->memory_bytes));
    out->gpu.memory_total_bytes = known(atomic_load(&g->memory_total_bytes));
    out->gpu.clock_mhz = known(atomic_load(&g->clock_mhz));
    out->gpu.clock_max_mhz = known(atomic_load(&g->clock_max_mhz));
    out->gpu.temperature = known(atomic_load(&g->temperature));
    out->gpu.power_w = known(atomic_load(&g->power_w));
    out->gpu.throttle = atomic_load(&g->throttle);
    out->gpu.xid = xid > 0 ? xid : 0;
    text(out->gpu.bus, g->bus, sizeof out->gpu.bus);
}

static void look_at_cause(const struct dt_page *page, struct dt_error *out)
{
    struct dt_blame blame = {(enum dt_fault)page->cause_fault, page->cause_rank, (enum dt_told)page->cause_told,
                             page->cause_teller, page->cause_host};
    text(out->text, page->note, sizeof out->text);
    out->status = out->text[0] != '\0' ? dt_status_of(page->cause_status) : DT_OK;
    out->digest = page->cause_digest;
    out->blame = dt_blame_valid(&blame) ? blame : (struct dt_blame){0};
}

void dt_page_read(const struct dt_page *page, double now_s, struct dt_page_look *out)
{
    *out =
        (struct dt_page_look){.step = -1, .saved_step = -1, .learned_step = -1, .snapshot_step = -1, .begun_step = -1};
    if (page == NULL) {
        return;
    }
    uint32_t phase = atomic_load(&page->phase);
    double ready_s = atomic_load(&page->ready_s);
    out->pulse_count = whole(atomic_load(&page->pulse_count), 0);
    out->known = out->pulse_count > 0;
    out->pulse_limit_s = (double)atomic_load(&page->pulse_limit_ms) / 1e3;
    out->pulse_age_s = seconds(now_s - atomic_load(&page->pulse_s));
    out->step = whole(atomic_load(&page->step), -1);
    out->micro_step = whole(atomic_load(&page->micro_step), 0);
    out->saved_step = whole(atomic_load(&page->saved_step), -1);
    out->learned_step = whole(atomic_load(&page->learned_step), -1);
    out->snapshot_step = whole(atomic_load(&page->snapshot_step), -1);
    out->begun_step = whole(atomic_load(&page->begun_step), -1);
    out->collective_count = whole(atomic_load(&page->collective_count), 0);
    out->phase = phase < DT_PHASE_COUNT ? (enum dt_phase)phase : DT_PHASE_NONE;
    out->in_collective = atomic_load(&page->in_collective) != 0;
    out->collective_age_s = seconds(now_s - atomic_load(&page->collective_s));
    out->save_age_s = seconds(now_s - atomic_load(&page->save_begin_s));
    out->save_s = seconds(atomic_load(&page->save_s));
    out->data_s = seconds(atomic_load(&page->data_s));
    out->compute_s = seconds(atomic_load(&page->compute_s));
    out->communication_s = seconds(atomic_load(&page->communication_s));
    out->loss = atomic_load(&page->loss);
    out->grad_norm = atomic_load(&page->grad_norm);
    out->lr = atomic_load(&page->lr);
    out->tokens_per_s = atomic_load(&page->tokens_per_s);
    out->samples_per_s = atomic_load(&page->samples_per_s);
    out->ready_s = ready_s > 0 && ready_s <= now_s ? ready_s : 0;
    text(out->collective_name, page->collective_name, sizeof out->collective_name);
    look_at_cause(page, &out->cause);
    look_at_gpu(&page->gpu, out);
}

/* ---- the shared memory ---- */

int dt_page_create(struct dt_page **out, int *fd, uint32_t round, struct dt_error *err)
{
    int memory = memfd_create("dtrun-page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory < 0) {
        return dt_fail_errno(err, "memfd for a worker's page");
    }
    void *p = MAP_FAILED;
    if (ftruncate(memory, DT_PAGE_BYTES) == 0 &&
        fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
        p = mmap(NULL, DT_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    }
    if (p == MAP_FAILED) {
        int code = errno;
        (void)dt_fail_errno(err, "a worker's page");
        if (code == EFBIG) {
            (void)dt_fail(err, DT_INVALID,
                          "a worker's page: the limit of file sizes is below its %d bytes; raise it with ulimit -f",
                          DT_PAGE_BYTES);
        }
        (void)close(memory);
        return -1;
    }
    fill(p, round);
    *out = p;
    *fd = memory;
    return 0;
}

int dt_page_attach(struct dt_page **out, struct dt_error *err)
{
    const char *path = getenv("DTRUN_PAGE");
    if (path == NULL || *path == 0) {
        void *p = mmap(NULL, DT_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) {
            return dt_fail_errno(err, "a page of memory");
        }
        fill(p, 0);
        *out = p;
        return 0;
    }
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        return dt_fail_errno(err, "DTRUN_PAGE=%s: cannot open the page of this worker; is its dtrun still there?",
                             path);
    }
    struct stat st;
    void *p = MAP_FAILED;
    if (fstat(fd, &st) == 0 && st.st_size == DT_PAGE_BYTES) {
        p = mmap(NULL, DT_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    (void)close(fd);
    if (p == MAP_FAILED) {
        return dt_fail(err, DT_INVALID, "DTRUN_PAGE=%s: is not a worker's page", path);
    }
    struct dt_page *page = p;
    if (page->magic != DT_PAGE_MAGIC || page->version != VERSION) {
        (void)munmap(p, DT_PAGE_BYTES);
        return dt_fail(err, DT_INVALID, "DTRUN_PAGE=%s: made by another version of dtrun", path);
    }
    *out = page;
    return 0;
}

void dt_page_close(struct dt_page *page, int fd)
{
    if (page != NULL) {
        (void)munmap(page, DT_PAGE_BYTES);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
}

void dt_page_set_cause(struct dt_page *page, const struct dt_error *why)
{
    _Static_assert(sizeof page->note == sizeof why->text, "a text of one is a text of the other");
    memcpy(page->note, why->text, sizeof page->note);
    page->note[sizeof page->note - 1] = '\0';
    page->cause_digest = why->digest;
    page->cause_status = (int32_t)why->status;
    page->cause_fault = (int32_t)why->blame.fault;
    page->cause_rank = why->blame.rank;
    page->cause_told = (int32_t)why->blame.told;
    page->cause_teller = why->blame.teller;
    page->cause_host = why->blame.host;
}

void dt_page_pulse(struct dt_page *page)
{
    atomic_store_explicit(&page->pulse_s, dt_now_s(), memory_order_relaxed);
    atomic_fetch_add_explicit(&page->pulse_count, 1, memory_order_relaxed);
}

void dt_page_phase(struct dt_page *page, enum dt_phase phase)
{
    atomic_store_explicit(&page->phase, (uint32_t)phase, memory_order_relaxed);
    dt_page_pulse(page);
}
