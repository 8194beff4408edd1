/* What a fuzz target gives to driver.c. */
#ifndef DT_TESTS_FUZZ_DRIVER_H
#define DT_TESTS_FUZZ_DRIVER_H

#include <stddef.h>
#include <stdint.h>

/* Feeds one input; returns 0. Must not keep state between calls. The data is not NUL-terminated. */
int dt_fuzz(const uint8_t *data, size_t size);

#endif
