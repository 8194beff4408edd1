/* What --dry_run prints. */
#include "launcher/options_table.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

void options_quote(struct dt_text *out, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
    dt_text_puts(out, " ");
    if (word[0] != '\0' && word[strspn(word, plain)] == '\0') {
        dt_text_puts(out, word);
        return;
    }
    dt_text_puts(out, "'");
    for (; *word != '\0'; word++) {
        dt_text_add(out, *word == '\'' ? "'\\''" : word, *word == '\'' ? 4 : 1);
    }
    dt_text_puts(out, "'");
}

void options_describe(const struct options *o, struct dt_text *out)
{
    dt_text_puts(out, "command  ");
    if (o->entry != OPTIONS_ENTRY_PROGRAM) {
        dt_text_puts(out, o->entry == OPTIONS_ENTRY_MODULE ? " python3 -u -m" : " python3 -u");
    }
    options_quote(out, o->program);
    for (int i = 0; i < o->arg_count; i++) {
        options_quote(out, o->args[i]);
    }
    dt_text_printf(out, "\nhosts     %d", o->nnodes_min);
    if (o->nnodes_max > o->nnodes_min) {
        dt_text_printf(out, " to %d", o->nnodes_max);
    }
    dt_text_printf(out, " (%s)\n", options_source(o, "nnodes"));
    dt_text_printf(out, "workers   %d", o->nproc);
    if (!isdigit((unsigned char)o->nproc_text[0])) {
        dt_text_printf(out, ", %s", o->nproc_text);
    }
    dt_text_printf(out, " (%s), role %s\n", options_source(o, "nproc_per_node"), o->role);
    dt_text_printf(out, "run id    %s\n", o->run_id);
    if (o->nnodes_max > 1) {
        dt_text_printf(out, "endpoint  %s port %d, %s\n", o->master_addr, o->master_port, o->rdzv_backend);
    } else if (o->master_port != 0) {
        dt_text_printf(out, "store     %s port %d\n", o->master_addr, o->master_port);
    } else if (o->port_hi != 0) {
        dt_text_printf(out, "store     %s, a free port from %d to %d\n", o->master_addr, o->port_lo, o->port_hi);
    } else {
        dt_text_printf(out, "store     %s, any free port\n", o->master_addr);
    }
    dt_text_printf(out, "restarts  %d (%s)\n", o->max_restarts, options_source(o, "max_restarts"));
    dt_text_printf(out, "stop      %g s between TERM and KILL (%s)\n", o->shutdown_timeout_s, options_source(o, "shutdown_timeout"));
    bool files = false;
    for (int i = 0; i < o->nproc; i++) {
        files = files || o->redirects[i] != 0 || o->tee[i] != 0;
    }
    dt_text_printf(out, "output    %s\n", files ? "to log files as --redirects and --tee say" : o->filtered ? "of some ranks only" : "inherited");
    dt_text_printf(out, "logs      %s (%s)\n", o->log_dir != NULL ? o->log_dir : "a new folder in the temporary one", options_source(o, "log_dir"));
    cluster_describe(&o->here, out);
}
