/* The child writes a line per GPU, or `!` and what the trouble is. The four calls of the driver's
 * interface below have been the same since CUDA 4, and make no context on a device:
 * cudaGetDeviceProperties, which torchrun asks, reads the same attributes. */
#include "launcher/workers/gpus.h"

#include "base/text.h"
#include "launcher/workers/capture.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* cuda.h; the stub library is the one that programs are linked with where there is no driver */
enum { CUDA_NO_DEVICE = 100, CUDA_STUB_LIBRARY = 34, PCI_BUS = 33, PCI_DEVICE = 34, PCI_DOMAIN = 50 };
typedef int cuda_init(unsigned flags);
typedef int cuda_count(int *count);
typedef int cuda_get(int *device, int ordinal);
typedef int cuda_attribute(int *value, int attribute, int device);

/* ---- in the child ---- */

static void trouble(const char *call, int code)
{
    printf("!%s gave %d\n", call, code);
}

static void print_gpus(void *library)
{
    cuda_init *init = (cuda_init *)(uintptr_t)dlsym(library, "cuInit");
    cuda_count *count_of = (cuda_count *)(uintptr_t)dlsym(library, "cuDeviceGetCount");
    cuda_get *get = (cuda_get *)(uintptr_t)dlsym(library, "cuDeviceGet");
    cuda_attribute *attribute = (cuda_attribute *)(uintptr_t)dlsym(library, "cuDeviceGetAttribute");
    int count = 0, device, domain, bus, slot;
    if (init == NULL || count_of == NULL || get == NULL || attribute == NULL) {
        printf("!libcuda.so.1 lacks a call of CUDA's driver interface\n");
        return;
    }
    int code = init(0);
    if (code == CUDA_NO_DEVICE || code == CUDA_STUB_LIBRARY) {
        return;
    }
    if (code != 0) {
        trouble("cuInit", code);
        return;
    }
    code = count_of(&count);
    for (int i = 0; code == 0 && i < count; i++) {
        if ((code = get(&device, i)) == 0 && (code = attribute(&domain, PCI_DOMAIN, device)) == 0 &&
            (code = attribute(&bus, PCI_BUS, device)) == 0 && (code = attribute(&slot, PCI_DEVICE, device)) == 0) {
            printf("%04x:%02x:%02x.0\n", (unsigned)domain, (unsigned)bus, (unsigned)slot);
        }
    }
    if (code != 0) {
        trouble("CUDA's driver", code);
    }
}

static _Noreturn void child_main(int out_fd, pid_t parent)
{
    sigset_t none;
    (void)setsid();
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (getppid() != parent || dup2(out_fd, STDOUT_FILENO) < 0) {
        _exit(1);
    }
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library != NULL) { /* else this is no machine with GPUs of that make */
        print_gpus(library);
    }
    _exit(fflush(stdout) == 0 ? 0 : 1);
}

/* ---- here ---- */

static int read_lines(struct gpus *out, char *text, struct dt_error *err)
{
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        if (line[0] == '!') {
            (void)snprintf(out->trouble, sizeof out->trouble, "%s", line + 1);
            out->count = 0; /* those before it work, and nobody knows which worker gets them */
            return 0;
        }
        if (out->count == GPUS_MAX) {
            return dt_fail(err, DT_INVALID, "more than %d GPUs", GPUS_MAX);
        }
        (void)snprintf(out->address[out->count++], sizeof out->address[0], "%s", line);
    }
    return 0;
}

int gpus_read(struct gpus *out, int signal_fd, double limit_s, struct dt_error *err)
{
    int ends[2], status = 0;
    memset(out, 0, sizeof *out);
    if (pipe2(ends, O_CLOEXEC) != 0) {
        (void)dt_fail_errno(err, "no pipe");
        return DT_EXIT_TEMPORARY;
    }
    pid_t parent = getpid();
    (void)fflush(stdout); /* or the child would print it, too */
    pid_t pid = fork();
    if (pid == 0) {
        child_main(ends[1], parent);
    }
    (void)close(ends[1]);
    if (pid < 0) {
        (void)close(ends[0]);
        (void)dt_fail_errno(err, "cannot start a process");
        return DT_EXIT_TEMPORARY;
    }
    struct dt_text text;
    dt_text_init(&text);
    int code = capture(ends[0], signal_fd, pid, limit_s, NULL, 0, &text, &status);
    (void)close(ends[0]);
    if (code == CAPTURE_LATE) {
        (void)dt_fail(err, DT_TIMEOUT,
                      "the GPU driver gave no answer for %g s; see whether nvidia-smi does, or leave the option out",
                      limit_s);
        code = DT_EXIT_TEMPORARY;
    } else if (code == CAPTURE_GOING_ON && status != 0) {
        (void)snprintf(out->trouble, sizeof out->trouble, "libcuda.so.1 %s %d",
                       WIFSIGNALED(status) ? "crashed with signal" : "ended with",
                       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    } else if (code == CAPTURE_GOING_ON && text.size > 0 && read_lines(out, text.data, err) != 0) {
        code = DT_EXIT_USAGE;
    }
    dt_text_clear(&text);
    return code;
}
