/* bench NAME [options]: measures one thing and prints one JSON line per case. To add a
 * benchmark: a function, and a row here; its options are checked, and shown by --help, as the
 * row spells them. */
#include "base/bench.h"
#include "base/text.h"
#include "cmd/bench/collectives.h"
#include "cmd/bench/decode.h"
#include "cmd/bench/first.h"
#include "cmd/bench/generate.h"
#include "cmd/bench/kernels.h"
#include "cmd/bench/load.h"
#include "cmd/bench/offload.h"
#include "cmd/bench/start.h"
#include "cmd/bench/step.h"
#include "cmd/bench/store.h"
#include "cmd/bench/tokenizer.h"
#include "cmd/bench/floor.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *help, *options;
    int (*run)(int argc, char **argv);
} benches[] = {
    {"collectives", "sums and copies between ranks, by size; under dtrun one rank of it, otherwise so many threads",
     "--ranks=1..256 --hosts=1..256 --op=NAME --min=1..1073741824 --max=1..1073741824 --factor=2..1024 --seconds=S "
     "--heap --no-floor "
     "--peer --peers=FOLDER",
     bench_collectives},
    {"data", "images from files to samples, and token shards to batches, on one core",
     "--width=8..8192 --height=8..8192 --repeats=1..101 --folder=PATH --script=PATH --peer", bench_data},
    {"first", "one sum under dtrun: the worker of start", "--file=FILE --kill", bench_first},
    {"floor", "each kernel of a training step, and the step, against what the machine allows",
     "--device=NAME --job=FILE --size=L6C384 --batch=1..65536 --positions=1..65536 --vocab=2..65536 "
     "--micro-steps=1..1024 "
     "--level=none|cheap|mlp|block "
     "--dtype=fp32|bf16 --steps=1..500 --copy=1..16384 --square=1..32768 --threads=1..1024 --repeats=1..101",
     bench_floor},
    {"generate", "new ids by train --generate, with and without a cache",
     "--size=L6C384 --vocab=2..1048576 --batch=1..4096 --prompt=1..65536 --ids=2..65536 --threads=1..1024 "
     "--repeats=1..101 --script=PATH --cache-only --peer",
     bench_generate},
    {"kernels", "each kernel against a copy of as many bytes",
     "--device=NAME --kernel=NAME --dtype=fp32|bf16 --rows=1..16777216 --cols=1..1048576 --vocab=1..1048576 "
     "--parameters=1..2147483648 "
     "--positions=1..1048576 --head=1..256 --copy=1..16384 --square=1..32768 --threads=1..1024 --repeats=1..101",
     bench_kernels},
    {"load", "the weights of a Hugging Face folder; under dtrun one rank of it",
     "--folder=PATH --strategy=NAME --dtype=fp32|bf16 --repeats=1..101", bench_load},
    {"offload", "a step whose optimizer state rests in files, against its computation and the disk",
     "--folder=PATH --size=L6C384 --batch=1..65536 --positions=1..65536 --dtype=fp32|bf16 --strategy=NAME "
     "--ranks=1..64 "
     "--threads=1..1024 --buffers=2..64 --steps=4..500 --repeats=1..21",
     bench_offload},
    {"start", "dtrun from command to end", "--nproc=LIST --agents=0..5000 --repeats=1..101 --dtrun=PATH --peer",
     bench_start},
    {"step", "training steps of train",
     "--ranks=1..64 --threads=1..1024 --strategy=LIST --model=NAME --size=L6C384 --dtype=fp32|bf16 --steps=4..500 "
     "--repeats=1..21 --script=PATH "
     "--peer",
     bench_step},
    {"store", "requests, connections, wake-ups",
     "--ops=1..10000000 --clients=1..60000 --repeats=1..101 --script=PATH --peer", bench_store},
    {"tokenizer", "text to ids, one thread", "--tokenizer=PATH --text=FILE --repeats=1..101 --script=PATH --peer",
     bench_tokenizer},
};

static void print_help(FILE *out)
{
    struct dt_text text;
    dt_text_init(&text);
    dt_text_puts(&text, "usage: bench NAME [options]\n"
                        "One JSON line per case: value is the median, floor what the machine allows,\n"
                        "peer another system measured in the same run.\n\n");
    for (size_t i = 0; i < sizeof benches / sizeof *benches; i++) {
        dt_text_printf(&text, "  %-13s", benches[i].name);
        dt_text_wrap(&text, benches[i].help, 15);
        dt_text_printf(&text, "%15s", "");
        dt_text_wrap(&text, benches[i].options, 15);
    }
    (void)fputs(dt_text_str(&text), out);
    dt_text_clear(&text);
}

int main(int argc, char **argv)
{
    (void)signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is an error of write */
    /* of one benchmark, too */
    if (argc > 1 && argc < 4 && (strcmp(argv[argc - 1], "--help") == 0 || strcmp(argv[argc - 1], "-h") == 0)) {
        print_help(stdout);
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        return printf("bench %s\n", DT_VERSION) < 0;
    }
    for (size_t i = 0; argc > 1 && i < sizeof benches / sizeof *benches; i++) {
        struct dt_error err;
        if (strcmp(argv[1], benches[i].name) != 0) {
            continue;
        }
        if (dt_bench_check(argc - 1, argv + 1, benches[i].options, &err) != 0) {
            (void)fprintf(stderr, "bench: %s\n", err.text);
            return DT_EXIT_USAGE;
        }
        return benches[i].run(argc - 1, argv + 1);
    }
    if (argc > 1) {
        (void)fprintf(stderr, "bench: %s: no such benchmark\n", argv[1]);
    }
    print_help(stderr);
    return DT_EXIT_USAGE;
}
