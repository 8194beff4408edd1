/* The text of a file in blocks, most of which can be worked on by themselves: whole records of .jsonl, .csv and
 * .tsv, or a part of a text that ends where a character does. */
#ifndef DT_CMD_DTDATA_SOURCE_H
#define DT_CMD_DTDATA_SOURCE_H

#include "cmd/dtdata/csv.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* SOURCE_JSON: an array of objects; its blocks are lines as those of SOURCE_JSONL. */
enum source_kind { SOURCE_AUTO, SOURCE_TEXT, SOURCE_JSONL, SOURCE_CSV, SOURCE_TSV, SOURCE_JSON };
/* By name: .jsonl, .ndjson, .csv, .tsv, also with .gz or .zst behind; anything else is text. */
enum source_kind source_kind(const char *path);
/* True for NAME.json, also with .gz or .zst behind, which begins as an array of objects does. */
bool source_is_array(const char *path);
/* The form of SOURCE_CSV and SOURCE_TSV. */
const struct csv_form *source_csv_form(enum source_kind kind);

/* A place in a file, at which reading can begin. */
struct source_place {
    int64_t offset; /* bytes of what the file holds, unpacked */
    int64_t line;   /* number of lines before it */
};

struct text_block {
    struct source_place begin;
    bool first, last; /* the begin, the end of the file */
    bool joined;      /* the cut before it is no place for one: its ids depend on the block before */
    bool open;        /* the same of the cut behind it; all later blocks of the file are joined */
    bool marked;      /* a byte order mark before it was left out */
    bool too_long;    /* a record of more than DT_SCAN_BYTES, of which nothing is here */
    char *text;
    size_t size, capacity;
};
void block_clear(struct text_block *b);

struct source;
enum { SOURCE_BLOCK_BYTES = 1 << 18 };
/* The last place to cut text[0 .. size) at, so that both parts have the ids that they have in the whole; 0: none is
 * known. */
typedef size_t source_cut(const void *context, const char *text, size_t size);
/* cut: of texts; null: between any two characters. */
int source_open(struct source **out, const char *path, enum source_kind kind, source_cut *cut, const void *context,
                struct dt_error *err);
/* Before the first block: goes to the begin of a block of an earlier run. */
int source_seek(struct source *s, const struct source_place *to, struct dt_error *err);
/* The next block, in the memory of *b: 1, or 0 at the end. A file has at least one block. A NUL among the first
 * bytes is an error, and so is the byte order mark of UTF-16 or UTF-32, and packed data that is damaged. Of a CSV whose
 * quote is not closed within DT_SCAN_BYTES the line is a block. Where a block of records ends depends on its begin
 * alone. */
int source_next(struct source *s, struct text_block *b, struct dt_error *err);
/* The first record of a CSV or TSV, with its line break; empty before the first block, and for other files. */
const struct dt_text *source_header(const struct source *s);
void source_close(struct source *s);

#endif
