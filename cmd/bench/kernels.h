/* bench kernels: what each kernel reaches of the bandwidth of a copy. */
#ifndef DT_CMD_BENCH_KERNELS_H
#define DT_CMD_BENCH_KERNELS_H

int bench_kernels(int argc, char **argv);

#endif
