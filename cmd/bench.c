/* bench NAME [options]: measures one thing and prints one JSON line per case. To add a benchmark: a function, and a row here. */
#include "collectives/bench_collectives.h"
#include "collectives/bench_first.h"
#include "launcher/bench_start.h"
#include "launcher/bench_step.h"
#include "launcher/bench_store.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *help;
    int (*run)(int argc, char **argv);
} benches[] = {
    {"collectives", "sums and copies between ranks, by size: --ranks N or under dtrun  --op NAME  --max BYTES", bench_collectives},
    {"first", "one sum under dtrun, the worker of start: --file FILE  --kill", bench_first},
    {"start", "dtrun from command to end: --nproc 1,2,8,64  --repeats N  --dtrun PATH  --peer", bench_start},
    {"step", "training steps of train: --ranks N  --strategy LIST  --size L6C384  --steps N  --repeats N  --peer", bench_step},
    {"store", "requests, connections, wake-ups: --ops N  --clients N  --repeats N  --peer", bench_store},
};

static void print_help(FILE *out)
{
    (void)fprintf(
        out, "usage: bench NAME [options]\nOne JSON line per case: value is the median, floor what the machine allows, peer another system.\n\n");
    for (size_t i = 0; i < sizeof benches / sizeof *benches; i++) {
        (void)fprintf(out, "  %-12s %s\n", benches[i].name, benches[i].help);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        print_help(stdout);
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        return printf("bench %s\n", DT_VERSION) < 0;
    }
    for (size_t i = 0; argc > 1 && i < sizeof benches / sizeof *benches; i++) {
        if (strcmp(argv[1], benches[i].name) == 0) {
            return benches[i].run(argc - 1, argv + 1);
        }
    }
    if (argc > 1) {
        (void)fprintf(stderr, "bench: %s: no such benchmark\n", argv[1]);
    }
    print_help(stderr);
    return 2;
}
