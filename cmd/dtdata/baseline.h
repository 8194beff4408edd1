/* The compressors that a byte model must beat: bits per byte of gzip -9 and of an interpolated
 * byte n-gram model, on the same held-out bytes. */
#ifndef DT_CMD_DTDATA_BASELINE_H
#define DT_CMD_DTDATA_BASELINE_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

/* Bits per byte of `gzip -9 < bytes` (deflate level 9 with gzip's header and trailer). */
int baseline_gzip(const uint8_t *bytes, size_t size, double *bits_per_byte, struct dt_error *err);
/* Bits per byte on `val` of an order-byte n-gram model (1 to 4 bytes, the last one predicted)
 * counted on `train`, the orders interpolated by Witten and Bell's rule (Chen and Goodman 1998,
 * section 2.4), down to a uniform distribution. The first bytes of val have shorter contexts. */
int baseline_ngram(const uint8_t *train, size_t train_size, const uint8_t *val, size_t val_size, int order,
                   double *bits_per_byte, struct dt_error *err);

#endif
