/* The table of kernels of one instruction set. */
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/plain.h"

extern const struct dt_kernels ISA(dt_kernels_table);
const struct dt_kernels ISA(dt_kernels_table) = {
    .name = DT_ISA_TEXT(DT_ISA),
#define ROW_any(row) .row = dt_plain_##row,
#define ROW_flows(row) .row = ISA(dt_##row),
#define ROW_masters(row) ROW_flows(row)
#define KERNEL(row, types) ROW_##types(row)
#include "kernels/rows.def"
#define CONVOLUTION(row) .row = ISA(dt_##row),
#include "kernels/convolutions.def"
};
