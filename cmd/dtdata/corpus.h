/* Text files as they lie on a disk: collects them from files and folders, holds some out for
 * evaluation, streams their text. */
#ifndef DT_CMD_DTDATA_CORPUS_H
#define DT_CMD_DTDATA_CORPUS_H

#include "base/error.h"
#include "cmd/dtdata/source.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct corpus_file {
    char *path;         /* "-": standard input */
    int64_t size_bytes; /* on disk; compressed files count as they are */
    bool held_out;
    enum source_kind kind; /* by its name; SOURCE_JSON only of a file that was named itself: in folders of sources
                            * such files are text */
};

/* The input that is left out, and the place of the first of it: a path, or a path and a record. */
struct corpus_left_out {
    long long count;
    char first[512];
};

struct corpus_seen; /* which files are there */

struct corpus {
    struct corpus_file *files;
    size_t count;
    struct corpus_left_out binary, empty, again; /* files; again: there already, by another name or the same */
    struct corpus_seen *seen;
    const char *counts; /* a folder that is passed over inside another one, too; null: none */
    const char *output; /* the folder that the shards go to, passed over inside
                                       * other folders; null: none */
    bool output_met;
    bool names_only; /* files are listed without a look at what is in them: also binary and empty ones */
};

/* Adds a file, "-", or all files of a folder and the folders in it, sorted by name; hidden
 * names, links to folders, `output` and what stands beside token shards are passed over; binary
 * and empty files, and those that are there already, are left out and counted. A path that cannot
 * be read, or is a device, is an error. */
int corpus_add(struct corpus *c, const char *path, struct dt_error *err);
/* An error if there is no file. `paths` were added. */
int corpus_check(const struct corpus *c, char *const *paths, size_t count, struct dt_error *err);
/* Says on stderr that `option`, which is for records, has no effect, if it was given (not null) and all files are read
 * as text. `format`: that of all files, or SOURCE_AUTO. `hint` ends the sentence. */
void corpus_say_no_records(const struct corpus *c, enum source_kind format, const char *option, const char *hint);
/* Says on stderr, in the name of `who`, what was left out. */
void corpus_say_left_out(const struct corpus *c, const char *who);
/* True if the file can be read, and its first bytes, unpacked, are text. */
int corpus_is_text(const char *path, struct dt_error *err);
/* Holds out whole files until they make up `fraction` of all bytes (0 to 1, exclusive): at least
 * one file, never all. Which ones depends on their paths alone, through a hash. Needs two files. */
int corpus_hold_out(struct corpus *c, double fraction, struct dt_error *err);
/* Streams the text of a file, .gz unpacked: calls sink with pieces until it returns -1. A NUL
 * among the first bytes is an error, and so is the byte order mark of UTF-16 or UTF-32; that of
 * UTF-8 is left out and counted in `marks`. */
typedef int corpus_sink(void *context, const unsigned char *text, size_t size, struct dt_error *err);
int corpus_read(const char *path, corpus_sink *sink, void *context, struct corpus_left_out *marks,
                struct dt_error *err);
/* Reads a file of records and hands the text under `key`, or in the column of that name, to sink, one call per record;
 * empty lines are passed over. An error names the record. A line has at most 16 MiB.
 * A record whose text has an escape that no text has (NUL, half of a surrogate pair) is left out
 * and counted in `no_text`. A byte order mark may also stand before a later record, where files
 * were joined. */
int corpus_read_records(const char *path, enum source_kind kind, const char *key, corpus_sink *sink, void *context,
                        struct corpus_left_out *no_text, struct corpus_left_out *marks, struct dt_error *err);
void corpus_close(struct corpus *c);

#endif
