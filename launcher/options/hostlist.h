/* Lists of hosts as schedulers and people write them. Pure: text in, names in order out. Every
 * reader bounds what it makes (a few bytes such as a[1-999999999] must not fill the memory) and
 * refuses names that could not be host names. */
#ifndef DT_LAUNCHER_OPTIONS_HOSTLIST_H
#define DT_LAUNCHER_OPTIONS_HOSTLIST_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>

#define HOSTLIST_MAX_HOSTS 65536
#define HOSTLIST_MAX_SLOTS 65536 /* of one host */
/* slots=N of a file for people: workers that are started on one host */
#define HOSTLIST_MAX_WORKERS 4096
#define HOSTLIST_MAX_NAME 255 /* bytes */

struct hostlist_host {
    char *name;
    int slots;   /* workers or tasks that belong there; 0: the text does not say */
    int *chosen; /* by hostlist_filter: the numbers of the slots that are left; null: it chose
                  * none */
};
struct hostlist {
    struct hostlist_host *hosts;
    size_t count, capacity;
};

void hostlist_init(struct hostlist *l);
void hostlist_clear(struct hostlist *l);

/* Each reader appends to l, which must be empty; on failure (DT_INVALID; the text says what is
 * wrong near what) l is empty again. */

/* SLURM: a[1-3,07-10]b[0-1],c. The last bracket of a name runs fastest; a number keeps the
 * leading zeros of its range's beginning. Separators are commas, blanks and newlines. */
int hostlist_read_slurm(struct hostlist *l, const char *text, struct dt_error *err);
/* A name per slot, between blanks, newlines or commas: LSB_HOSTS, LSB_DJOB_RANKFILE,
 * PBS_NODEFILE. A name that comes again is one slot more; order of first appearance. */
int hostlist_read_words(struct hostlist *l, const char *text, struct dt_error *err);
/* A name and a count in turn, "a 4 b 2" (LSB_MCPU_HOSTS). */
int hostlist_read_counts(struct hostlist *l, const char *text, struct dt_error *err);
/* What a file of hosts holds is text: a byte 0 would hide all that stands behind it. UTF-16 and
 * UTF-32 are refused by name; the readers of files, hostlist_read_words and
 * hostlist_read_hostfile, pass over a UTF-8 byte order mark. */
int hostlist_check_text(const struct dt_text *text, struct dt_error *err);
/* Lines "host slots=N" (DeepSpeed's), also "host" alone and Open MPI's "max_slots=N", which is
 * ignored; comments from #, empty lines. A host that comes twice is an error: DeepSpeed refuses
 * it too. Messages name the line. */
int hostlist_read_hostfile(struct hostlist *l, const char *text, struct dt_error *err);

/* Keeps the hosts and slots of NAME[:SLOT,...]@NAME..., DeepSpeed's --include, or all others
 * (--exclude). Names are as in the list; the order of the list stays. A host that is named twice
 * is named once with both its slots. Unlike the readers it leaves l as it is when it fails with
 * what was written; when no host is left, l is empty. */
int hostlist_filter(struct hostlist *l, const char *text, bool exclude, struct dt_error *err);

/* Takes one slot from the first host, which goes when it was its last. */
void hostlist_drop_first_slot(struct hostlist *l);

/* Index of a host: the same name in full, else the same up to the first dot where one of both
 * has none, in any case of letters; -1. */
int hostlist_find(const struct hostlist *l, const char *name);
/* SLURM's counts per node, "4(x2),3": the count of node `index`, or -1 when the text does not
 * say. */
int hostlist_count_at(const char *text, int index);

#endif
