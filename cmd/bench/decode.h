#ifndef DT_CMD_BENCH_DECODE_H
#define DT_CMD_BENCH_DECODE_H

/* bench data: images from files to batches. */
int bench_data(int argc, char **argv);

#endif
