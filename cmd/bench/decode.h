#ifndef DT_CMD_BENCH_DECODE_H
#define DT_CMD_BENCH_DECODE_H

/* bench data: images and token shards from files to batches; --folder: shards from the disk alone. */
int bench_data(int argc, char **argv);

#endif
