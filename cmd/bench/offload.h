/* `bench offload`: a step whose optimizer state rests in files, beside the larger of its computation and of what the
 * disk takes for the same bytes. */
#ifndef DT_CMD_BENCH_OFFLOAD_H
#define DT_CMD_BENCH_OFFLOAD_H

/* Runs `dtrun train` on random tokens, alternately with all state in memory and with offload.optimizer nvme, and in
 * between reads and writes as many bytes of files in the same folder, both at a time and nothing else. Prints the
 * three (medians; the floor of the offloaded step is the larger of the other two) and the peak memory beside the
 * plan's. Returns an exit code. */
int bench_offload(int argc, char **argv);

#endif
