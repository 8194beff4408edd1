/* See the header. */
#include "cmd/dtdata/commands.h"

#include <stdio.h>

int command_fail(const struct dt_error *err, int code)
{
    (void)fprintf(stderr, "dtdata: %s\n", err->text);
    return code;
}

int command_usage(const char *fmt, ...)
{
    struct dt_error err;
    va_list args;
    va_start(args, fmt);
    (void)dt_fail_v(&err, DT_INVALID, fmt, args);
    va_end(args);
    (void)command_fail(&err, DT_EXIT_USAGE);
    (void)fprintf(stderr, "dtdata --help lists commands, dtdata COMMAND --help the options of one\n");
    return DT_EXIT_USAGE;
}
