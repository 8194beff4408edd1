/* `bench tokenizer`: text to ids, beside the tokenizers library. */
#ifndef DT_CMD_BENCH_TOKENIZER_H
#define DT_CMD_BENCH_TOKENIZER_H

/* Encodes --text by --tokenizer in parts of whole lines, with one thread, and prints MB of text per
 * second of the processor. --peer asks tests/peers/tokenizers_speed.py in turns; without --tokenizer
 * it makes tokenizers with the patterns of GPT-2 and Llama 3, and texts, out of files of this machine.
 * Returns an exit code. */
int bench_tokenizer(int argc, char **argv);

#endif
