#include "base/error.h"

#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

enum dt_status dt_status_of(long number)
{
    return number > DT_OK && number <= DT_USAGE ? (enum dt_status)number : DT_INTERNAL;
}

uint32_t dt_digest(const char *text)
{
    uint32_t digest = 2166136261u; /* FNV-1a */
    for (; *text != '\0'; text++) {
        digest = (digest ^ (unsigned char)*text) * 16777619u;
    }
    return digest;
}

int dt_fail_v(struct dt_error *err, enum dt_status status, const char *fmt, va_list args)
{
    if (err == NULL) {
        return -1;
    }
    err->status = status;
    err->blame = (struct dt_blame){0};
    err->device = 0;
    (void)vsnprintf(err->text, sizeof err->text, fmt, args);
    /* the text may contain names of files, tensors and peers, and goes to terminals and logs */
    dt_text_make_visible(err->text, sizeof err->text);
    err->digest = dt_digest(err->text);
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
    struct rlimit limit;
    if (code == EFBIG && getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        char bytes[32];
        used = strlen(err->text);
        (void)snprintf(err->text + used, sizeof err->text - used,
                       "; files may have %s here: raise the limit with ulimit -f",
                       dt_text_bytes((double)limit.rlim_cur, bytes, sizeof bytes));
    }
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

/* ---- the rank to blame ---- */

int dt_blame(struct dt_error *err, enum dt_fault fault, int rank)
{
    if (err != NULL) {
        err->blame.fault = fault;
        err->blame.rank = rank;
    }
    return -1;
}

int dt_blame_heard(struct dt_error *err, const struct dt_blame *theirs, int teller, int host)
{
    if (err == NULL) {
        return -1;
    }
    err->blame = *theirs;
    if (theirs->told == DT_TOLD_NOT) {
        err->blame.told = host < 0 ? DT_TOLD_BY_RANK : DT_TOLD_BY_HOST;
        err->blame.teller = teller;
        err->blame.host = host < 0 ? 0 : host;
    }
    return -1;
}

const char *dt_blame_words(const struct dt_blame *blame, const char *text, int own, char *out, size_t out_bytes)
{
    char before[32] = "", after[48] = "";
    if (blame->fault == DT_FAULT_FAILED && blame->rank != own) {
        (void)snprintf(before, sizeof before, "rank %d: ", blame->rank);
    }
    if (blame->told != DT_TOLD_NOT) {
        bool host = blame->told == DT_TOLD_BY_HOST;
        (void)snprintf(after, sizeof after, host ? " (told by host %d)" : " (noticed by rank %d)",
                       host ? blame->host : blame->teller);
    }
    size_t around = strlen(before) + strlen(after), room = out_bytes > around ? out_bytes - around - 1 : 0;
    (void)snprintf(out, out_bytes, "%s%.*s%s", before, (int)room, text, after);
    return out;
}

const char *dt_error_words(const struct dt_error *err, char out[DT_WORDS_BYTES])
{
    return dt_blame_words(&err->blame, err->text, -1, out, DT_WORDS_BYTES);
}

void dt_blame_write(const struct dt_blame *b, char out[DT_BLAME_BYTES])
{
    (void)snprintf(out, DT_BLAME_BYTES, "%d %d %d %d %d", (int)b->fault, b->rank, (int)b->told, b->teller, b->host);
}

size_t dt_blame_read(const char *text, struct dt_blame *out)
{
    int fault, rank, told, teller, host, size = 0;
    if (sscanf(text, "%9d %9d %9d %9d %9d%n", &fault, &rank, &told, &teller, &host, &size) != 5) {
        return 0;
    }
    *out = (struct dt_blame){(enum dt_fault)fault, rank, (enum dt_told)told, teller, host};
    return dt_blame_valid(out) ? (size_t)size : 0;
}

bool dt_blame_valid(const struct dt_blame *b)
{
    return (int)b->fault >= 0 && b->fault < DT_FAULT_COUNT && (int)b->told >= 0 && b->told < DT_TOLD_COUNT &&
           b->rank >= 0 && b->teller >= 0 && b->host >= 0;
}
