/* Inside the launcher: the rows of the options and the parsers of their values. */
#ifndef DT_LAUNCHER_OPTIONS_OPTIONS_TABLE_H
#define DT_LAUNCHER_OPTIONS_OPTIONS_TABLE_H

#include "launcher/options/options.h"

enum option_family {
    OPTION_TORCH,      /* torchrun's, variable PET_<NAME> */
    OPTION_TORCH_ONLY, /* torchrun's, without a variable */
    OPTION_OURS        /* variable DTRUN_<NAME> */
};
enum option_arity { OPTION_VALUE, OPTION_FLAG, OPTION_MAYBE /* --help, --help=all; --status, --status=RUN_ID */ };

struct option_row {
    const char *name; /* with underscores */
    char letter;      /* short spelling, or 0 */
    enum option_arity arity;
    enum option_family family;
    const char *other_variable; /* asked after the row's own; or null */
    const char *fallback;       /* default as text, given to the parser; null: the parser is not
                                 * called */
    const char *shown;          /* placeholder of the value in the help */
    const char *help;           /* null: not for people */
    bool common;                /* on the first screen of the help */
    /* Fills in o; on failure err says "VALUE: must be ...". */
    int (*parse)(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
    size_t offset; /* of the member, for the general parsers */
    double lo, hi; /* their range */
};

extern const struct option_row option_rows[OPTION_COUNT];

/* The value of each row that was given, and where. */
struct given {
    const char *value[OPTION_COUNT];
    char spelled[OPTION_COUNT][72]; /* --redirects, -r, PET_REDIRECTS: for messages */
    int last;                       /* row that was given last */
};

/* The options before PROGRAM, into g, and for the agents of --hostfile into o->own_words; *first
 * is PROGRAM's place in argv. At --help and --version it ends, with o->action set. */
int option_read_words(struct options *o, struct given *g, int argc, char **argv, int *first, struct dt_error *err);
/* What was not given, from PET_NAME and DTRUN_NAME, or the row's other variable. */
void option_read_variables(struct options *o, struct given *g, char *const *env);
/* What the scheduler knows takes the place of options that were not given: hosts, our number,
 * where to meet, the run's name. Only where its own launcher started us on several hosts; a job
 * on one host is the same with and without a scheduler. Sets o->here. */
int option_read_cluster(struct options *o, struct given *g, char *const *env, struct dt_error *err);
/* accelerate's file and --num_processes: options that are not given are taken from them. Before variables. */
int option_read_accelerate(struct options *o, struct given *g, char *const *env, struct dt_error *err);
/* machine_rank of the file, which is the same file on all hosts: only where nothing else numbers this one. */
int option_read_accelerate_rank(struct options *o, struct given *g, struct dt_error *err);
/* The file's keys of training: to `train` as --config, to other programs as accelerate's variables. */
int option_pass_accelerate(struct options *o, const struct given *g, struct dt_error *err);
/* How what was chosen and what surrounds us fit together: warnings, and a refusal of a launcher
 * with several workers per task. */
int option_check_cluster(struct options *o, const struct given *g, char *const *env, struct dt_error *err);

/* The option with this name (either spelling) on a command line, or -1. What is known here is
 * named by its OPTION_... */
int option_find(const char *name);
/* PET_NAME or DTRUN_NAME into `out`; false for a row without a variable. */
bool option_variable(const struct option_row *row, char *out, size_t out_bytes);

/* General parsers: const char *, bool, int in lo..hi, seconds in lo..hi ("90", "1.5", "500ms",
 * "2m", "1h"). */
int option_parse_text(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
int option_parse_flag(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
int option_parse_int(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
int option_parse_number(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
int option_parse_seconds(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
/* One each. */
int option_parse_nnodes(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
int option_parse_nproc(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
int option_parse_mask(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
int option_parse_filter(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
int option_parse_role(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
int option_parse_run_id(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
int option_parse_ranks(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
int option_parse_list(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
int option_parse_signals(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
int option_parse_users(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
int option_parse_codes(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
int option_parse_ports(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
int option_parse_metrics(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
int option_parse_stdin(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
int option_parse_backend(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
int option_parse_conf(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
/* One of the words in row->shown, which are separated by "|"; kept as text. */
int option_parse_word(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
/* The same, but the member is a bool: true for the second word. */
int option_parse_second_word(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
/* NAME[=VALUE],... (exports.c). */
int option_parse_export(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);
/* Words that are accepted and change nothing. */
int option_parse_ignored(struct options *o, const struct option_row *row, const char *text, struct dt_error *err);

/* HOST[:PORT] as torchrun reads endpoints: brackets of IPv6 removed, *port -1 without one.
 * Strings live in the arena. */
int option_parse_endpoint(struct dt_arena *arena, const char *text, char **host, int *port, struct dt_error *err);
/* Entries nvidia0, nvidia7, ... of a folder; a container has those of its own GPUs only, by
 * their numbers on the host. */
int option_count_gpu_nodes(const char *folder);
/* The variables that a worker gets beside those of env, a line each, with ten blanks before it. */
struct env_worker;
int options_list_variables(const struct options *o, const struct env_worker *w, char *const *env, struct dt_text *out,
                           struct dt_error *err);
/* Appends a blank and the word as a shell would take it back. */
void options_quote(struct dt_text *out, const char *word);
/* text for a message: at most 60 bytes, control characters as '?'. `out` of at least 64 bytes;
 * returns out. */
const char *option_show(const char *text, char *out);
/* Appends a warning line. */
void option_warn(struct options *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
