/* Texts for numbers from NVML, and from the driver's lines in the kernel's log. */
#include "base/gpu/nvml.h"

#include <stdio.h>
#include <string.h>

/* From nvml.h, nvmlClocksThrottleReasons. Idle (bit 0) and clocks set by an application (bit 1)
 * slow no running work down. */
static const struct {
    unsigned bit;
    bool hardware; /* heat, or missing power */
    const char *text;
} reasons_table[] = {
    {0x4, false, "power limit"}, {0x8, true, "hardware slowdown"}, {0x10, false, "boost in step with other GPUs"},
    {0x20, true, "heat"},        {0x40, true, "heat (hardware)"},  {0x80, true, "power brake"},
};

const char *dt_nvml_throttle_text(int64_t reasons, bool hardware, char *out, size_t out_bytes)
{
    size_t size = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof reasons_table / sizeof reasons_table[0] && reasons > 0; i++) {
        if ((reasons & reasons_table[i].bit) != 0 && (reasons_table[i].hardware || !hardware) && size < out_bytes) {
            size += (size_t)snprintf(out + size, out_bytes - size, "%s%s", size > 0 ? ", " : "", reasons_table[i].text);
        }
    }
    return out;
}

/* The Xids that a job can meet, from "XID Errors" in NVIDIA's GPU deployment guides. */
static const struct {
    int xid;
    bool ends_gpu;
    const char *text;
} xids[] = {
    {13, false, "a kernel failed (graphics engine exception)"},
    {31, false, "a kernel used an address that is not there (MMU fault)"},
    {32, false, "invalid commands in a stream (push buffer)"},
    {38, false, "firmware error"},
    {43, false, "a kernel was stopped"},
    {45, false, "work was removed after an earlier error"},
    {48, true, "double-bit error of memory (ECC)"},
    {61, true, "internal microcontroller breakpoint"},
    {62, true, "internal microcontroller halt"},
    {63, false, "a row of memory is remapped, or a page retired, at the next reset"},
    {64, false, "a row of memory could not be remapped"},
    {69, false, "a kernel failed (graphics engine class error)"},
    {74, false, "NVLink error"},
    {79, true, "fell off the bus"},
    {92, false, "many single-bit errors of memory (ECC)"},
    {94, false, "an error of memory, contained: only programs that used it end"},
    {95, true, "an error of memory that was not contained"},
    {109, false, "a context switch timed out"},
    {119, true, "the GPU's own processor does not answer (GSP timeout)"},
    {120, true, "the GPU's own processor failed (GSP error)"},
    {121, false, "error on the link to the CPU (C2C)"},
    {136, false, "a link could not be trained"},
    {140, true, "an error of memory (ECC) that nothing recovered from"},
    {143, false, "the GPU could not be started"},
    {144, false, "NVLink error"},
    {145, false, "NVLink error"},
    {149, false, "NVLink error"},
    {154, false, "the GPU needs a reset or a restart of its host"},
};

const char *dt_nvml_xid_text(int xid)
{
    for (size_t i = 0; i < sizeof xids / sizeof xids[0]; i++) {
        if (xids[i].xid == xid) {
            return xids[i].text;
        }
    }
    return NULL;
}

bool dt_nvml_xid_ends_gpu(int xid)
{
    for (size_t i = 0; i < sizeof xids / sizeof xids[0]; i++) {
        if (xids[i].xid == xid) {
            return xids[i].ends_gpu;
        }
    }
    return false;
}

int dt_nvml_xid_of_line(const char *line, char bus[32])
{
    unsigned domain, number, slot;
    int xid = 0;
    const char *at = strstr(line, "NVRM: Xid (PCI:");
    if (at == NULL || sscanf(at, "NVRM: Xid (PCI:%8x:%4x:%4x): %9d", &domain, &number, &slot, &xid) != 4 || xid <= 0) {
        return 0;
    }
    (void)snprintf(bus, 32, "%04x:%02x:%02x.0", domain, number, slot);
    return xid;
}
