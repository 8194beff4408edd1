/* Checks of GPUs. Hosts without a driver are no finding; of what a GPU does not answer nothing
 * is said. What concerns one GPU names it by its number on the host, as nvidia-smi counts; one
 * that CUDA_VISIBLE_DEVICES hides can only be a warning. */
#include "cmd/doctor/checks.h"

#include "base/gpu/nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1024.0 * 1024.0)
#define HELD_BYTES (512 * MIB) /* what is in use above it, a job will miss */

enum { LINES = 8 }; /* of one check about single GPUs; the others are counted */

static double value_of(const struct facts *f, int gpu, const char *name)
{
    char fact[64];
    (void)snprintf(fact, sizeof fact, "gpu%d.%s", gpu, name);
    return facts_number(f, fact, -1);
}

static const char *text_of(const struct facts *f, int gpu, const char *name, char *out, size_t out_bytes)
{
    char fact[64];
    (void)snprintf(fact, sizeof fact, "gpu%d.%s", gpu, name);
    return facts_get(f, fact, out, out_bytes);
}

static int count_of(const struct doctor_view *v, int host)
{
    int count = (int)facts_number(view_host(v, host), "gpu_count", 0);
    return count > 0 && count <= DT_NVML_GPUS ? count : 0;
}

static int count_all(const struct doctor_view *v)
{
    int all = 0;
    for (int h = 0; h < v->host_count; h++) {
        all += count_of(v, h);
    }
    return all;
}

static bool is_visible(const struct facts *f, int gpu)
{
    return value_of(f, gpu, "visible") >= 0;
}

/* "a: GPU 3 (0000:3b:00.0)"; on one host without its name. */
static void name_gpu(const struct doctor_view *v, int host, int gpu, char *out, size_t out_bytes)
{
    char bus[32];
    const char *where = text_of(view_host(v, host), gpu, "bus", bus, sizeof bus);
    bool several = v->host_count > 1;
    (void)snprintf(out, out_bytes, "%s%sGPU %d%s%s%s", several ? v->hosts[host].name : "", several ? ": " : "", gpu,
                   where != NULL && bus[0] != '\0' ? " (" : "", bus, where != NULL && bus[0] != '\0' ? ")" : "");
}

/* Lines of one check about single GPUs. */
struct lines {
    const struct doctor_view *v;
    struct doctor_report *r;
    int said;
};

static void say_gpu(struct lines *l, int host, int gpu, enum doctor_level level, const char *advice, const char *fmt,
                    ...) __attribute__((format(printf, 6, 7)));
static void say_gpu(struct lines *l, int host, int gpu, enum doctor_level level, const char *advice, const char *fmt,
                    ...)
{
    char name[128], text[400];
    va_list args;
    if (++l->said > LINES) {
        return;
    }
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    name_gpu(l->v, host, gpu, name, sizeof name);
    bool hidden = level == DOCTOR_FAIL && !is_visible(view_host(l->v, host), gpu);
    doctor_say(l->r, hidden ? DOCTOR_WARN : level, advice, "%s: %s%s", name, text,
               hidden ? " (not visible to this job)" : "");
}

/* The line when no GPU had one of its own. */
static void say_rest(struct lines *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say_rest(struct lines *l, const char *fmt, ...)
{
    char text[400];
    va_list args;
    if (l->said > LINES) {
        doctor_say(l->r, DOCTOR_WARN, "doctor --json on each of their hosts says all", "%d more findings of this kind",
                   l->said - LINES);
    } else if (l->said == 0) {
        va_start(args, fmt);
        (void)vsnprintf(text, sizeof text, fmt, args);
        va_end(args);
        doctor_say(l->r, DOCTOR_OK, NULL, "%s", text);
    }
}

/* ---- which are here ---- */

static void describe_host(const struct doctor_view *v, int host, struct dt_text *out)
{
    const struct facts *f = view_host(v, host);
    char name[96], last[96] = "";
    int count = count_of(v, host), alike = 0;
    for (int i = 0; i <= count; i++) {
        name[0] = '\0';
        if (i < count && (text_of(f, i, "name", name, sizeof name) == NULL || name[0] == '\0')) {
            (void)snprintf(name, sizeof name, "GPU that does not answer");
        }
        if (alike > 0 && (i == count || strcmp(name, last) != 0)) {
            dt_text_printf(out, "%s%d x %s", out->size > 0 ? ", " : "", alike, last);
            alike = 0;
        }
        memcpy(last, name, sizeof last);
        alike++;
    }
    int seen = (int)facts_number(f, "gpus_visible", count);
    if (seen != count) {
        dt_text_printf(out, "; %d visible", seen);
    }
}

static bool check_variable(const struct doctor_view *v, struct doctor_report *r, int host)
{
    const struct facts *f = view_host(v, host);
    char variable[160], problem[256];
    int seen = (int)facts_number(f, "gpus_visible", -1);
    if (facts_get(f, "gpu_variable", variable, sizeof variable) == NULL) {
        return false;
    }
    if (variable[0] == '\0') {
        doctor_say(r, DOCTOR_INFO, NULL, "CUDA_VISIBLE_DEVICES is empty: none of %d is seen, train computes on the CPU",
                   count_of(v, host));
        return true;
    }
    if (facts_get(f, "gpu_variable_problem", problem, sizeof problem) == NULL) {
        return false;
    }
    doctor_say(r, seen > 0 ? DOCTOR_WARN : DOCTOR_FAIL,
               seen > 0 ? "those after it are not seen; correct the list"
                        : "no GPU is seen; correct the list, or unset it",
               "CUDA_VISIBLE_DEVICES=%s: %s", variable, problem);
    return true;
}

void check_gpus(const struct doctor_view *v, struct doctor_report *r)
{
    struct lines l = {.v = v, .r = r};
    struct dt_text text;
    bool said = false;
    dt_text_init(&text);
    for (int h = 0; h < v->host_count; h++) {
        const struct facts *f = view_host(v, h);
        int seen = (int)facts_number(f, "gpus_visible", 0), by_cuda = (int)facts_number(f, "gpus_cuda", -1);
        dt_text_reset(&text);
        describe_host(v, h, &text);
        if (count_of(v, h) > 0) {
            doctor_say(r, DOCTOR_INFO, NULL, "%s%s%s", v->host_count > 1 ? v->hosts[h].name : "",
                       v->host_count > 1 ? ": " : "", dt_text_str(&text));
            said = true;
        }
        bool named = check_variable(v, r, h);
        said = said || named;
        for (int i = 0; i < count_of(v, h); i++) {
            char error[256];
            if (text_of(f, i, "error", error, sizeof error) != NULL) {
                say_gpu(&l, h, i, DOCTOR_FAIL, NULL, "%s", error);
                named = true;
            }
        }
        if (by_cuda >= 0 && by_cuda < seen && !named) {
            doctor_say(r, DOCTOR_FAIL,
                       "see whether the container or the job's control group has all of their /dev/nvidiaN",
                       "%s: CUDA sees %d of %d GPUs", v->hosts[h].name, by_cuda, seen);
        }
    }
    if (!said) {
        doctor_say(r, DOCTOR_INFO, NULL, "none visible");
    }
    dt_text_clear(&text);
}

/* ---- versions ---- */

static void print_cuda(int version, char out[16])
{
    (void)snprintf(out, 16, "%d.%d", version / 1000, version % 1000 / 10);
}

void check_gpu_driver(const struct doctor_view *v, struct doctor_report *r)
{
    struct dt_text text;
    char error[300], cuda[16], built[16];
    bool well = true;
    dt_text_init(&text);
    for (int h = 0; h < v->host_count; h++) {
        const struct facts *f = view_host(v, h);
        int driver = (int)facts_number(f, "gpu_cuda", -1), toolkit = (int)facts_number(f, "gpu_toolkit", 0);
        if (facts_get(f, "gpu_driver_error", error, sizeof error) != NULL) {
            doctor_say(r, DOCTOR_FAIL, NULL, "%s: %s", v->hosts[h].name, error);
            well = false;
            continue;
        }
        print_cuda(driver, cuda);
        print_cuda(toolkit, built);
        /* within one major number CUDA serves newer programs, too */
        if (driver > 0 && toolkit > 0 && driver / 1000 < toolkit / 1000) {
            doctor_say(r, DOCTOR_FAIL,
                       "install a newer driver, or build with the CUDA toolkit that it serves (make CUDA=PREFIX)",
                       "%s: the driver is made for CUDA %s, this program for %s", v->hosts[h].name, cuda, built);
            well = false;
        } else if (driver > 0 && toolkit == 0) {
            doctor_say(r, DOCTOR_WARN, "build it where nvcc is, else train computes on the CPU",
                       "this program was built without CUDA");
            well = false;
        }
        if (facts_get(f, "gpu_cuda_trouble", error, sizeof error) != NULL) {
            doctor_say(r, DOCTOR_FAIL, "see whether nvidia-smi and the kernel's log (dmesg) say more", "%s: %s",
                       v->hosts[h].name, error);
            well = false;
        }
    }
    if (well && count_all(v) > 0) {
        int different = view_values(v, "gpu_driver", &text);
        dt_text_puts(&text, ", CUDA ");
        print_cuda((int)view_least(v, "gpu_cuda", NULL), cuda);
        print_cuda((int)view_least(v, "gpu_toolkit", NULL), built);
        dt_text_printf(&text, "%s; built with %s", cuda, built);
        doctor_say(r, different > 1 ? DOCTOR_WARN : DOCTOR_OK,
                   different > 1 ? "install the same driver on all hosts" : NULL, "%s", dt_text_str(&text));
    }
    dt_text_clear(&text);
}

/* The file that all hosts have it from; empty where it is not said, or not the same one. */
static const char *file_of(const struct doctor_view *v, const char *fact, char *out, size_t out_bytes)
{
    char key[64], other[400];
    (void)snprintf(key, sizeof key, "%s_file", fact);
    out[0] = '\0';
    for (int h = 0; h < v->host_count; h++) {
        if (count_of(v, h) == 0 || facts_get(view_host(v, h), key, other, sizeof other) == NULL) {
            continue;
        }
        if (out[0] != '\0' && strcmp(out, other) != 0) {
            out[0] = '\0';
            break;
        }
        (void)snprintf(out, out_bytes, "%s", other);
    }
    return out;
}

/* One library of all hosts, as "NCCL 2.28.9 (FILE)"; per_major: how its number is made. False: a
 * line was said. */
static bool add_library(const struct doctor_view *v, struct doctor_report *r, const char *fact, const char *name,
                        long per_major, const char *without, struct dt_text *out)
{
    char text[32], first[32] = "", file[400], key[64];
    for (int h = 0; h < v->host_count; h++) {
        if (count_of(v, h) == 0 || facts_get(view_host(v, h), fact, text, sizeof text) == NULL) {
            continue;
        }
        if (strcmp(text, "missing") == 0) {
            (void)snprintf(key, sizeof key, "%s_why", fact);
            bool said = facts_get(view_host(v, h), key, file, sizeof file) != NULL;
            doctor_say(r, DOCTOR_WARN, without, "%s: %s%s", v->hosts[h].name, said ? file : name,
                       said ? "" : " is missing");
            return false;
        }
        if (first[0] != '\0' && strcmp(first, text) != 0) {
            doctor_say(r, DOCTOR_WARN,
                       "install the same on all hosts: sums may differ in the last bit, and ranks may not understand "
                       "each other",
                       "%s has different versions (%s, %s)", name, first, text);
            return false;
        }
        (void)snprintf(first, sizeof first, "%s", text);
    }
    long version = strtol(first, NULL, 10);
    if (version > 0) {
        dt_text_printf(out, "%s%s %ld.%ld.%ld", out->size > 0 ? ", " : "", name, version / per_major,
                       version % per_major / 100, version % 100);
        if (file_of(v, fact, file, sizeof file)[0] != '\0') {
            dt_text_printf(out, " (%s)", file);
        }
    }
    return true;
}

void check_gpu_libraries(const struct doctor_view *v, struct doctor_report *r)
{
    struct dt_text text;
    if (count_all(v) == 0) {
        return;
    }
    dt_text_init(&text);
    bool well = add_library(v, r, "gpu_cublaslt", "cuBLASLt", 10000,
                            "matrix products run a slower kernel: install it (libcublas), or LD_LIBRARY_PATH", &text);
    well = add_library(v, r, "gpu_cudnn", "cuDNN", 10000,
                       "attention runs kernels of our own; install it (libcudnn9), or LD_LIBRARY_PATH", &text) &&
           well;
    well = add_library(v, r, "gpu_nccl", "NCCL", 10000,
                       "GPUs of several hosts need it: install it (libnccl2), or LD_LIBRARY_PATH", &text) &&
           well;
    int toolkit = (int)view_least(v, "gpu_toolkit", NULL), lt = (int)view_least(v, "gpu_cublaslt", NULL);
    if (toolkit > 0 && lt > 0 && lt / 10000 != toolkit / 1000) {
        doctor_say(r, DOCTOR_WARN, "install that of the same CUDA",
                   "cuBLASLt is of CUDA %d, this program was built with %d", lt / 10000, toolkit / 1000);
        well = false;
    }
    if (text.size > 0 || well) {
        doctor_say(r, DOCTOR_OK, NULL, "%s", text.size > 0 ? dt_text_str(&text) : "not known");
    }
    dt_text_clear(&text);
}

/* ---- how they are set up ---- */

void check_gpu_modes(const struct doctor_view *v, struct doctor_report *r)
{
    struct lines l = {.v = v, .r = r};
    bool asleep = false;
    if (count_all(v) == 0) {
        return;
    }
    for (int h = 0; h < v->host_count; h++) {
        for (int i = 0; i < count_of(v, h); i++) {
            const struct facts *f = view_host(v, h);
            double mode = value_of(f, i, "compute_mode");
            if (mode == 2) {
                say_gpu(&l, h, i, DOCTOR_FAIL, "nvidia-smi -c 0", "compute mode prohibited: no program may use it");
            } else if (mode == 3 && value_of(f, i, "memory_used") >= 0) {
                char users[256];
                bool used = text_of(f, i, "processes", users, sizeof users) != NULL;
                say_gpu(&l, h, i, used ? DOCTOR_FAIL : DOCTOR_INFO,
                        used ? "end it, use another GPU, or nvidia-smi -c 0" : NULL,
                        "compute mode exclusive process%s%s", used ? ", and in use by " : ": ranks cannot share it",
                        used ? users : "");
            }
            if (value_of(f, i, "mig") == 1) {
                say_gpu(&l, h, i, DOCTOR_WARN,
                        "a process sees one part only: give each rank its own (CUDA_VISIBLE_DEVICES=MIG-..., "
                        "--virtual_local_rank), or nvidia-smi -mig 0",
                        "cut into parts by MIG");
            }
            asleep = asleep || value_of(f, i, "persistence") == 0;
        }
    }
    if (asleep) {
        doctor_say(r, DOCTOR_WARN, "nvidia-smi -pm 1, or the service nvidia-persistenced",
                   "persistence mode is off: each start takes seconds longer");
        return;
    }
    say_rest(&l, "whole, for all programs, awake");
}

void check_gpu_memory(const struct doctor_view *v, struct doctor_report *r)
{
    struct lines l = {.v = v, .r = r};
    char size[32], used_text[32], users[256];
    double total = -1;
    if (count_all(v) == 0) {
        return;
    }
    for (int h = 0; h < v->host_count; h++) {
        for (int i = 0; i < count_of(v, h); i++) {
            const struct facts *f = view_host(v, h);
            double used = value_of(f, i, "memory_used"), all = value_of(f, i, "memory_total");
            total = total < 0 || (all >= 0 && all < total) ? all : total;
            bool named = text_of(f, i, "processes", users, sizeof users) != NULL;
            if (used > HELD_BYTES) {
                say_gpu(&l, h, i, DOCTOR_WARN,
                        named ? "end them, or use other GPUs"
                              : "a program that ended badly, or one of another container: nvidia-smi, "
                                "and who has its /dev/nvidiaN open (fuser -v)",
                        "%s of %s used%s%s", dt_text_bytes(used, used_text, sizeof used_text),
                        dt_text_bytes(all, size, sizeof size), named ? " by " : "",
                        named ? users : " by nobody who is known");
            }
        }
    }
    say_rest(&l, "%s%s, free", total >= 0 ? dt_text_bytes(total, size, sizeof size) : "not known",
             count_all(v) > 1 ? " each" : "");
}

/* ---- errors ---- */

static void check_ecc(struct lines *l, int h, int i)
{
    const struct facts *f = view_host(l->v, h);
    double now = value_of(f, i, "ecc_uncorrected"), retired = value_of(f, i, "retired_pages"),
           rows = value_of(f, i, "remapped_rows");
    if (value_of(f, i, "remap_failed") > 0) {
        say_gpu(l, h, i, DOCTOR_FAIL, "have the card replaced", "no spare row is left for one with errors (ECC)");
    } else if (now > 0) {
        say_gpu(l, h, i, DOCTOR_FAIL, "nvidia-smi --gpu-reset; when they come again, have the card replaced",
                "%.0f memory errors that could not be corrected (ECC)", now);
    } else if (value_of(f, i, "remap_pending") > 0 || value_of(f, i, "retired_pending") > 0) {
        say_gpu(l, h, i, DOCTOR_WARN, "nvidia-smi --gpu-reset while nothing runs there",
                "memory with errors is taken out at the next reset");
    } else if (retired >= 60) { /* NVIDIA's limit for a replacement */
        say_gpu(l, h, i, DOCTOR_FAIL, "have the card replaced", "%.0f pages retired", retired);
    } else if (rows >= 8) {
        say_gpu(l, h, i, DOCTOR_WARN, "watch it: few spare rows may be left", "%.0f rows of memory remapped", rows);
    }
}

static void check_xids(struct lines *l, int h, int i)
{
    char bus[32], all[2100], numbers[200] = "", *rest = all;
    const char *text = NULL;
    bool ends = false;
    if (text_of(view_host(l->v, h), i, "bus", bus, sizeof bus) == NULL ||
        facts_get(view_host(l->v, h), "gpu_xids", all, sizeof all) == NULL) {
        return;
    }
    for (char *word; (word = strsep(&rest, " ")) != NULL;) {
        size_t n = strlen(bus);
        if (strncmp(word, bus, n) == 0 && word[n] == '=') {
            int xid = atoi(word + n + 1);
            size_t size = strlen(numbers);
            (void)snprintf(numbers + size, sizeof numbers - size, "%s%d", size > 0 ? ", " : "", xid);
            text = dt_nvml_xid_text(xid) != NULL ? dt_nvml_xid_text(xid) : text;
            ends = ends || dt_nvml_xid_ends_gpu(xid);
        }
    }
    if (numbers[0] != '\0') {
        say_gpu(l, h, i, DOCTOR_WARN,
                ends ? "dmesg | grep Xid; if it was not reset since, nvidia-smi --gpu-reset"
                     : "dmesg | grep Xid says when, and for whom",
                "Xid %s in the kernel's log%s%s%s", numbers, text != NULL ? " (" : "", text != NULL ? text : "",
                text != NULL ? ")" : "");
    }
}

void check_gpu_errors(const struct doctor_view *v, struct doctor_report *r)
{
    struct lines l = {.v = v, .r = r};
    bool without = false;
    if (count_all(v) == 0) {
        return;
    }
    for (int h = 0; h < v->host_count; h++) {
        for (int i = 0; i < count_of(v, h); i++) {
            check_ecc(&l, h, i);
            check_xids(&l, h, i);
            without = without || value_of(view_host(v, h), i, "ecc") == 0;
        }
    }
    say_rest(&l, "none%s", without ? "; ECC is off, so some are not seen" : "");
}

/* ---- speed ---- */

void check_gpu_clocks(const struct doctor_view *v, struct doctor_report *r)
{
    struct lines l = {.v = v, .r = r};
    double least = -1, most = -1;
    if (count_all(v) == 0) {
        return;
    }
    for (int h = 0; h < v->host_count; h++) {
        for (int i = 0; i < count_of(v, h); i++) {
            const struct facts *f = view_host(v, h);
            char why[160];
            double clock = value_of(f, i, "clock"), max = value_of(f, i, "clock_max"),
                   throttle = value_of(f, i, "throttle");
            least = least < 0 || (max >= 0 && max < least) ? max : least;
            most = max > most ? max : most;
            if (throttle > 0 && dt_nvml_throttle_text((int64_t)throttle, true, why, sizeof why)[0] != '\0') {
                say_gpu(&l, h, i, DOCTOR_WARN, "look at cooling and power of the host; it sets the pace for all ranks",
                        "slowed down by %s: %.0f of %.0f MHz, %.0f C", why, clock, max, value_of(f, i, "temperature"));
            }
        }
    }
    if (least > 0 && most > least * 1.05) {
        doctor_say(r, DOCTOR_WARN, "the slowest GPU sets the pace", "highest clocks from %.0f to %.0f MHz", least,
                   most);
        return;
    }
    say_rest(&l, least > 0 ? "up to %.0f MHz, not slowed down" : "not known", least);
}

void check_gpu_links(const struct doctor_view *v, struct doctor_report *r)
{
    struct lines l = {.v = v, .r = r};
    double pairs = 0, linked = 0;
    if (count_all(v) == 0) {
        return;
    }
    for (int h = 0; h < v->host_count; h++) {
        const struct facts *f = view_host(v, h);
        char apart[256];
        for (int i = 0; i < count_of(v, h); i++) {
            double width = value_of(f, i, "pcie_width"), width_max = value_of(f, i, "pcie_width_max"),
                   down = value_of(f, i, "nvlinks_down");
            if (width > 0 && width < width_max) {
                say_gpu(&l, h, i, DOCTOR_WARN, "reseat the card, or see which slot it is in",
                        "PCIe with %.0f of %.0f lanes", width, width_max);
            }
            if (down > 0 && value_of(f, i, "nvlinks_up") >= 0) {
                say_gpu(&l, h, i, DOCTOR_WARN,
                        "nvidia-smi nvlink -s; bridges, switches and the fabric manager (systemctl status "
                        "nvidia-fabricmanager)",
                        "%.0f of %.0f NVLinks are down", down, down + value_of(f, i, "nvlinks_up"));
            }
        }
        if (facts_get(f, "gpu_pairs_apart", apart, sizeof apart) != NULL) {
            l.said++;
            doctor_say(r, DOCTOR_WARN,
                       "what they send goes through host memory: iommu=pt, and no ACS on the bridges between them",
                       "%s: GPUs that cannot read each other's memory: %s", v->hosts[h].name, apart);
        }
        pairs += facts_number(f, "gpu_pairs", 0);
        linked += facts_number(f, "gpu_pairs_nvlink", 0);
    }
    say_rest(&l,
             pairs == 0        ? "one GPU a host"
             : linked == pairs ? "all pairs of a host by NVLink"
                               : "all pairs of a host reach each other; %.0f of %.0f by NVLink",
             linked, pairs);
}
