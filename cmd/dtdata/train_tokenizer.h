/* dtdata train-tokenizer. */
#ifndef DT_CMD_DTDATA_TRAIN_TOKENIZER_H
#define DT_CMD_DTDATA_TRAIN_TOKENIZER_H

#include "base/error.h"

/* The command with its arguments (argv[0] is passed over). go_on: an error if a signal came. Returns
 * the exit code; *err is the error to say, if there is one (status DT_OK: none). */
int train_tokenizer(int argc, char **argv, int (*go_on)(struct dt_error *err), struct dt_error *err);

#endif
