/* bench start: how long it takes from the command until N processes have run. */
#ifndef DT_CMD_BENCH_START_H
#define DT_CMD_BENCH_START_H

/* Options: --nproc LIST (1,2,8,64), --repeats N, --dtrun PATH, --peer (torchrun beside it).
 * Returns the exit code. */
int bench_start(int argc, char **argv);

/* Path of dtrun beside this program; the caller frees. */
char *bench_find_dtrun(void);

#endif
