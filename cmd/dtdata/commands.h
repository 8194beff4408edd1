/* The commands of dtdata, and how all of them fail. */
#ifndef DT_CMD_DTDATA_COMMANDS_H
#define DT_CMD_DTDATA_COMMANDS_H

#include "base/error.h"

/* argv[0] is the program; the exit code is returned. */
int run_tokenize(int argc, char **argv);
int run_encode(int argc, char **argv);
int run_decode(int argc, char **argv);
int run_inspect(int argc, char **argv);
int run_convert(int argc, char **argv);
int run_train_tokenizer(int argc, char **argv);

/* Says the error on standard error; returns the code. */
int command_fail(const struct dt_error *err, int code);
/* The same for wrong use, with a hint to --help; returns DT_EXIT_USAGE. */
int command_usage(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
