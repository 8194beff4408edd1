#include "kernels/peak.h"

#include "base/text.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* NVIDIA's data sheets: 1e12 FLOP/s, dense; GiB of memory, its GB/s; GB/s to other GPUs of the host, to
 * other hosts, and to the host's memory as copies of pinned memory reach it, each way. The first row whose words are all in the name is taken. Rates are stated, not
 * computed from multiprocessors and clock: under such a load the clock is below its maximum, by an amount
 * that differs between forms (SXM, PCIe). */
static const struct {
    const char *words[2]; /* the second may be null */
    int sm_count;         /* of the whole GPU */
    double bf16, fp32, memory, memory_rate, link, network, host;
} table[] = {
    {{"B300", NULL}, 148, 2250, 75, 288, 8000, 900, 100, 110},
    {{"B200", NULL}, 148, 2250, 75, 180, 8000, 900, 50, 55},
    {{"H200", "NVL"}, 132, 835.5, 60, 141, 4800, 450, 50, 55},
    {{"H200", NULL}, 132, 989.4, 66.9, 141, 4800, 450, 50, 55},
    {{"GH200", NULL}, 132, 989.4, 66.9, 96, 4000, 450, 50, 450},
    {{"H100", "PCIe"}, 114, 756.5, 51.2, 80, 2000, 55, 50, 55},
    {{"H100", "NVL"}, 132, 835.5, 60, 94, 3900, 300, 50, 55},
    {{"H100", NULL}, 132, 989.4, 66.9, 80, 3350, 450, 50, 55},
    {{"A100", "40GB"}, 108, 312, 19.5, 40, 1555, 300, 25, 25},
    {{"A100", NULL}, 108, 312, 19.5, 80, 2039, 300, 25, 25},
    {{"A30", NULL}, 56, 165, 10.3, 24, 933, 25, 12.5, 25},
    {{"A40", NULL}, 84, 149.7, 37.4, 48, 696, 25, 12.5, 25},
    {{"A10", NULL}, 72, 125, 31.2, 24, 600, 25, 12.5, 25},
    {{"L40S", NULL}, 142, 362, 91.6, 48, 864, 25, 25, 25},
    {{"L40", NULL}, 142, 181, 90.5, 48, 864, 25, 25, 25},
    {{"L4", NULL}, 58, 121, 30.3, 24, 300, 25, 12.5, 25},
    {{"RTX 5090", NULL}, 170, 209.5, 104.8, 32, 1792, 50, 12.5, 55},
    {{"RTX 4090", NULL}, 128, 165.2, 82.6, 24, 1008, 25, 12.5, 25},
    {{"RTX 3090", NULL}, 82, 71, 35.6, 24, 936, 25, 12.5, 25},
};

/* The driver's total for each GiB of the data sheet. */
#define USABLE_BYTES (0.99 * 0x1p30)

/* FLOP per clock of one multiprocessor; a multiplication and an addition count as two. GeForce
 * cards add up in F32 at half the rate. */
static const struct {
    int major, minor;
    double bf16, bf16_geforce, fp32;
} rates[] = {{8, 0, 2048, 2048, 128},  {8, 6, 1024, 512, 256},  {8, 7, 1024, 1024, 256},
             {8, 9, 1024, 512, 256},   {9, 0, 4096, 4096, 256}, {10, 0, 8192, 8192, 256},
             {10, 3, 8192, 8192, 256}, {12, 0, 1024, 512, 256}, {12, 1, 1024, 512, 256}};

/* True if the name contains `word` as a whole word: "L4" is not in "L40S". */
static bool has_word(const char *name, const char *word)
{
    size_t size = strlen(word);
    for (const char *at = strstr(name, word); at != NULL; at = strstr(at + 1, word)) {
        /* strchr also matches NUL, the end of the name */
        bool begins = at == name || strchr(" -", at[-1]) != NULL, ends = strchr(" -", at[size]) != NULL;
        if (begins && ends) {
            return true;
        }
    }
    return false;
}

double dt_peak_flops(const char *name, int major, int minor, int sm_count, double clock_hz, enum dt_dtype type)
{
    if (!dt_dtype_half(type) && type != DT_F32) {
        return 0;
    }
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (has_word(name, table[i].words[0]) && (table[i].words[1] == NULL || has_word(name, table[i].words[1]))) {
            return (dt_dtype_half(type) ? table[i].bf16 : table[i].fp32) * 1e12 * sm_count / table[i].sm_count;
        }
    }
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        if (rates[i].major == major && rates[i].minor == minor) {
            double bf16 = strstr(name, "GeForce") != NULL ? rates[i].bf16_geforce : rates[i].bf16;
            return (dt_dtype_half(type) ? bf16 : rates[i].fp32) * sm_count * clock_hz;
        }
    }
    return 0;
}

/* The same letters and digits, in any case? */
static bool same_name(const char *a, const char *b)
{
    for (;; a++, b++) {
        a += strspn(a, " -_");
        b += strspn(b, " -_");
        if (*a == 0 || *b == 0 || tolower((unsigned char)*a) != tolower((unsigned char)*b)) {
            return *a == *b;
        }
    }
}

bool dt_gpu_sheet(const char *name, struct dt_gpu_sheet *out, struct dt_text *known)
{
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        char full[32];
        (void)snprintf(full, sizeof full, "%s%s%s", table[i].words[0], table[i].words[1] != NULL ? " " : "",
                       table[i].words[1] != NULL ? table[i].words[1] : "");
        if (same_name(name, full)) {
            *out = (struct dt_gpu_sheet){.bf16_flops = table[i].bf16 * 1e12,
                                         .fp32_flops = table[i].fp32 * 1e12,
                                         .memory_bytes = table[i].memory * USABLE_BYTES,
                                         .memory_bytes_per_s = table[i].memory_rate * 1e9,
                                         .link_bytes_per_s = table[i].link * 1e9,
                                         .network_bytes_per_s = table[i].network * 1e9,
                                         .host_bytes_per_s = table[i].host * 1e9};
            (void)snprintf(out->name, sizeof out->name, "%s", full);
            return true;
        }
        if (known != NULL) {
            dt_text_printf(known, "%s%s", known->size > 0 ? ", " : "", full);
        }
    }
    return false;
}
