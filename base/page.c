#include "base/page.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VERSION = 2 };
_Static_assert(sizeof(struct dt_page) <= DT_PAGE_BYTES, "the page is one page");

static const char *const names[DT_PHASE_COUNT] = {"none", "start", "forward", "backward", "step", "evaluation", "save", "exit"};

const char *dt_phase_name(enum dt_phase phase)
{
    return (unsigned)phase < DT_PHASE_COUNT ? names[phase] : "unknown";
}

static void fill(struct dt_page *page, uint32_t round)
{
    page->magic = DT_PAGE_MAGIC;
    page->version = VERSION;
    page->round = round;
    atomic_store(&page->step, -1);
    atomic_store(&page->saved_step, -1);
    atomic_store(&page->learned_step, -1);
    atomic_store(&page->pulse_s, dt_now_s());
}

int dt_page_create(struct dt_page **out, int *fd, uint32_t round, struct dt_error *err)
{
    int memory = memfd_create("dtrun-page", MFD_CLOEXEC);
    if (memory < 0) {
        return dt_fail_errno(err, "memfd for a worker's page");
    }
    void *p = MAP_FAILED;
    if (ftruncate(memory, DT_PAGE_BYTES) == 0) {
        p = mmap(NULL, DT_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    }
    if (p == MAP_FAILED) {
        int code = errno;
        (void)dt_fail_errno(err, "a worker's page");
        if (code == EFBIG) {
            (void)dt_fail(err, DT_INVALID, "a worker's page: the limit of file sizes is below its %d bytes; raise it with ulimit -f", DT_PAGE_BYTES);
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
        return dt_fail_errno(err, "DTRUN_PAGE=%s: cannot open the page of this worker; is its dtrun still there?", path);
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
