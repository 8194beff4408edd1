/* What a fuzz target gives to driver.c. */
#ifndef DT_TESTS_FUZZ_DRIVER_H
#define DT_TESTS_FUZZ_DRIVER_H

#include <stddef.h>
#include <stdint.h>

/* Feeds one input; returns 0. Must not keep state between calls. The data is not NUL-terminated. */
int dt_fuzz(const uint8_t *data, size_t size);

/* A folder of this process alone, removed at its end. */
const char *dt_fuzz_folder(void);
/* Writes a file; aborts where it cannot. */
void dt_fuzz_write(const char *path, const void *data, size_t size);

#endif
