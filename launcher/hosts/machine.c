#include "launcher/hosts/machine.h"

#include "base/proc.h"

#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

uint64_t machine_id(void)
{
    char parts[DT_BOOT_ID_BYTES + 2 * sizeof(uint64_t)];
    struct stat net;
    size_t size = strlen(dt_proc_boot_id(parts));
    if (size < 32 || stat("/proc/self/ns/net", &net) != 0) {
        return 0;
    }
    parts[size++] = '\n';
    (void)memcpy(parts + size, (uint64_t[2]){(uint64_t)net.st_dev, (uint64_t)net.st_ino}, 2 * sizeof(uint64_t));
    return XXH3_64bits(parts, size + 2 * sizeof(uint64_t));
}
