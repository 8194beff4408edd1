/* A process that ends with success must leave nothing on its GPU: in a longer process the leak
 * would grow. A process that fails may leave what it cannot free any more. */
#include "tests/softgpu/runtime.h"
#include "tests/softgpu/softgpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void list(char *text, size_t size, int count, const char *what, size_t size_bytes)
{
    size_t used = strlen(text);
    if (count > 0 && size_bytes > 0) {
        (void)snprintf(text + used, size - used, "%s %d %s (%zu bytes)", used > 0 ? "," : "", count, what, size_bytes);
    } else if (count > 0) {
        (void)snprintf(text + used, size - used, "%s %d %s", used > 0 ? "," : "", count, what);
    }
}

static void look(int status, void *)
{
    char text[400] = "";
    size_t device, pinned, imported;
    int devices = softgpu_blocks(SOFTGPU_DEVICE, false, &device), pins = softgpu_blocks(SOFTGPU_PINNED, false, &pinned);
    int imports = softgpu_blocks(SOFTGPU_DEVICE, true, &imported);
    list(text, sizeof text, devices, "of device memory", device);
    list(text, sizeof text, pins, "of pinned memory", pinned);
    list(text, sizeof text, imports, "of another process's memory", imported);
    list(text, sizeof text, softgpu_regions(), "of registered memory", 0);
    list(text, sizeof text, softgpu_streams(), "streams", 0);
    list(text, sizeof text, softgpu_events(), "events", 0);
    if (status == 0 && text[0] != '\0') {
        (void)dprintf(STDERR_FILENO, "softgpu: not given back at exit:%s\n", text);
        syscall(SYS_exit_group, SOFTGPU_EXIT);
    }
}

__attribute__((constructor)) static void watch(void)
{
    (void)on_exit(look, nullptr);
}
