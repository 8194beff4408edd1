/* bench floor: what the kernels of a training step take, beside what the machine allows. */
#ifndef DT_CMD_BENCH_FLOOR_H
#define DT_CMD_BENCH_FLOOR_H

int bench_floor(int argc, char **argv);

#endif
