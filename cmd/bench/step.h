/* `bench step`: training steps of the real program, beside PyTorch's on the same model. */
#ifndef DT_CMD_BENCH_STEP_H
#define DT_CMD_BENCH_STEP_H

/* For each strategy: runs `dtrun --nproc_per_node=RANKS train` on random tokens and prints
 * tokens per second of all ranks (median over steps, first ones left out). --peer interleaves
 * tests/peers/step.py. Returns an exit code. */
int bench_step(int argc, char **argv);

#endif
