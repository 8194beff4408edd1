#include "launcher/hosts/machine.h"

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

#include <sys/stat.h>
#include <xxhash.h>

uint64_t machine_id(void)
{
    struct dt_text boot;
    struct dt_error err;
    struct stat net;
    uint64_t id = 0;
    dt_text_init(&boot);
    if (dt_file_read("/proc/sys/kernel/random/boot_id", 256, &boot, &err) == 0 && boot.size >= 32 &&
        stat("/proc/self/ns/net", &net) == 0) {
        uint64_t space[2] = {(uint64_t)net.st_dev, (uint64_t)net.st_ino};
        dt_text_add(&boot, space, sizeof space);
        id = XXH3_64bits(boot.data, boot.size);
    }
    dt_text_clear(&boot);
    return id;
}
