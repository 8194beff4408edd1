#include "base/error.h"

#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum dt_status dt_status_of(long number)
{
    return number > DT_OK && number <= DT_USAGE ? (enum dt_status)number : DT_INTERNAL;
}

int dt_fail_v(struct dt_error *err, enum dt_status status, const char *fmt, va_list args)
{
    if (err == NULL) {
        return -1;
    }
    err->status = status;
    (void)vsnprintf(err->text, sizeof err->text, fmt, args);
    dt_text_make_visible(err->text, sizeof err->text); /* names of files, tensors and peers are
                                                        * in it, and it goes to terminals and
                                                        * logs */
    return -1;
}

int dt_fail(struct dt_error *err, enum dt_status status, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    (void)dt_fail_v(err, status, fmt, args);
    va_end(args);
    return -1;
}

int dt_fail_errno(struct dt_error *err, const char *fmt, ...)
{
    int code = errno;
    enum dt_status status = code == ENOENT                     ? DT_NOT_FOUND
                            : code == ENOMEM                   ? DT_NO_MEMORY
                            : code == ENOSPC || code == EDQUOT ? DT_FULL
                                                               : DT_IO;
    if (err == NULL) {
        return -1;
    }
    va_list args;
    va_start(args, fmt);
    (void)dt_fail_v(err, status, fmt, args);
    va_end(args);
    size_t used = strlen(err->text);
    char reason[128];
    const char *text = strerror_r(code, reason, sizeof reason);
    (void)snprintf(err->text + used, sizeof err->text - used, ": %s", text);
    return -1;
}

int dt_wrap(struct dt_error *err, const char *fmt, ...)
{
    if (err == NULL) {
        return -1;
    }
    char inner[sizeof err->text];
    memcpy(inner, err->text, sizeof inner);
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    size_t used = strlen(err->text);
    (void)snprintf(err->text + used, sizeof err->text - used, ": %s", inner);
    dt_text_make_visible(err->text, sizeof err->text);
    return -1;
}
