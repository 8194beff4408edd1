/* Many agents on this machine: how long they take to meet. */
#ifndef DT_CMD_BENCH_NODES_H
#define DT_CMD_BENCH_NODES_H

/* Agents without workers (links, membership, worker store): one leads in a process of its own,
 * the others share another one. Milliseconds from the beginning until all have been told to
 * start the first round, and from a failure until all have been told to start the next. Returns
 * 0, or -1 with a line on stderr. */
int bench_nodes(long count, double *first_ms, double *again_ms);
/* A port of loopback that was free a moment ago. */
int bench_free_port(void);

#endif
