/* The texts of --help: the commands on one screen, one command with all its options, or all of them. */
#ifndef DT_CMD_DTDATA_HELP_H
#define DT_CMD_DTDATA_HELP_H

#include <stdbool.h>

/* Prints to standard output: of `command` all options; of null every command, with the options that most uses need,
 * or with `all` every option. False: there is no such command, and nothing was printed. */
bool help_print(const char *command, bool all);

#endif
