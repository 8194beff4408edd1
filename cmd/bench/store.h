/* bench store: what the store costs. */
#ifndef DT_CMD_BENCH_STORE_H
#define DT_CMD_BENCH_STORE_H

/* Options: --ops N, --clients N, --repeats N, --peer (PyTorch's server beside ours,
 * interleaved). Returns the exit code. */
int bench_store(int argc, char **argv);

#endif
