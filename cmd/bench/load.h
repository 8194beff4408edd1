/* Reading the weights of a Hugging Face folder. */
#ifndef DT_CMD_BENCH_LOAD_H
#define DT_CMD_BENCH_LOAD_H

/* Prints the rate of --folder's files, cold and warm, and the peak memory of rank 0. Under dtrun it is one
 * rank of --strategy. Returns an exit code. */
int bench_load(int argc, char **argv);

#endif
