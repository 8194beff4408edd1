/* `bench generate`: new ids by a GPT-2 of a size, with and without a cache, beside transformers'. */
#ifndef DT_CMD_BENCH_GENERATE_H
#define DT_CMD_BENCH_GENERATE_H

/* Prints the time of one more id for each of --batch rows behind a prompt; --peer asks
 * tests/peers/generate.py in turns. Returns an exit code. */
int bench_generate(int argc, char **argv);

#endif
