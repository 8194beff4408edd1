/* doctor: what this host, or this job, would stumble on. Options in, exit code out. */
#include "base/error.h"
#include "cmd/doctor/run.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static const char usage[] = "usage: doctor [--json]\n"
                            "       dtrun [options] doctor [--json]\n"
                            "Looks at what training stumbles on: launch choices, versions, CPUs, memory,\n"
                            "GPUs, limits, names, ports; under dtrun also at the store, at messages of all\n"
                            "sizes between the hosts and at sums across the real ranks. One line per check:\n"
                            "ok, info, warn or fail, what, finding; and what to do about it.\n"
                            "\n"
                            "  --json             one JSON object per line and check\n"
                            "  --help, --version\n"
                            "\n"
                            "Exit codes: 0 nothing failed, 1 something did (under dtrun 100: no restart),\n"
                            "2 wrong option, 111 the store or other ranks are gone.\n";

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {"version", no_argument, NULL, 'v'}, {0}};
    bool json = false;
    (void)signal(SIGPIPE, SIG_IGN);
    for (int o = 0; (o = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (o == 'h') {
            return fputs(usage, stdout) < 0;
        }
        if (o == 'v') {
            return printf("doctor %s\n", DT_VERSION) < 0;
        }
        if (o != 'j') {
            (void)fputs("doctor: see doctor --help\n", stderr);
            return DT_EXIT_USAGE;
        }
        json = true;
    }
    if (optind < argc) {
        (void)fprintf(stderr, "doctor: %s: it takes no arguments; see doctor --help\n", argv[optind]);
        return DT_EXIT_USAGE;
    }
    return doctor_run(json, environ);
}
