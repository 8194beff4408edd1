/* Runs a fuzz target without a fuzzing engine:  fuzz_X [-n COUNT] [-t SECONDS] [-s SEED] FILES...
 * First every file (and every file of a folder given) as it is, then COUNT mutations (default 1000) of them
 * from a seeded generator, so that a failure can be repeated; fewer where SECONDS end before. The target is
 * LLVMFuzzerTestOneInput-like, and must neither crash nor leak nor hang: run it with
 * SAN=address,undefined. When an input ends the program, by a signal, a sanitizer's report or
 * INPUT_S seconds without an end, it is written to PROGRAM-last.bin, beside the program; fixed,
 * it belongs into the corpus. */
#include "driver.h"

#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_BYTES 65536
#define MAX_INPUTS 4096
#define INPUT_S 60 /* one input may take; they take microseconds */

static struct input {
    uint8_t *data;
    size_t size;
} corpus[MAX_INPUTS];
static size_t corpus_count;

static uint8_t current[MAX_BYTES];
static size_t current_size;

static char folder[] = "/tmp/dt-fuzz-XXXXXX";

static void remove_folder(void)
{
    (void)dt_file_remove_tree(folder, NULL);
}

const char *dt_fuzz_folder(void)
{
    static bool made;
    if (!made && (mkdtemp(folder) == NULL || atexit(remove_folder) != 0)) {
        abort();
    }
    made = true;
    return folder;
}

void dt_fuzz_write(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    if (f == NULL || fwrite(data, 1, size, f) != size || fclose(f) != 0) {
        abort();
    }
}

/* xorshift64*: repeatable on every machine. */
static uint64_t state = 1;
static uint64_t next_random(void)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 2685821657736338717ull;
}
static size_t below(size_t n)
{
    return n == 0 ? 0 : (size_t)(next_random() % n);
}

static char last_path[4096];

static void save_current(void)
{
    int fd = open(last_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd >= 0) {
        (void)!write(fd, current, current_size);
        (void)close(fd);
    }
    static const char said[] = "the input is in ";
    (void)!write(STDERR_FILENO, said, sizeof said - 1);
    (void)!write(STDERR_FILENO, last_path, strlen(last_path));
    (void)!write(STDERR_FILENO, "\n", 1);
}

static void on_crash(int number)
{
    save_current();
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

#ifdef DT_SANITIZED
/* A sanitizer tells what it found and then aborts, instead of an exit that nothing here would
 * notice. */
const char *__asan_default_options(void);
const char *__ubsan_default_options(void);

const char *__asan_default_options(void)
{
    return "abort_on_error=1";
}
const char *__ubsan_default_options(void)
{
    return "abort_on_error=1:print_stacktrace=1";
}
static const int crashes[] = {SIGABRT, SIGALRM};
#else
static const int crashes[] = {SIGABRT, SIGALRM, SIGSEGV, SIGBUS, SIGFPE};
#endif

static void add_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        perror(path);
        exit(2);
    }
    uint8_t *data = malloc(MAX_BYTES);
    if (data == NULL || corpus_count == MAX_INPUTS) {
        (void)fprintf(stderr, "%s: too many inputs\n", path);
        exit(2);
    }
    size_t size = fread(data, 1, MAX_BYTES, f);
    (void)fclose(f);
    corpus[corpus_count++] = (struct input){data, size};
}

static void add_path(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
        add_file(path);
        return;
    }
    struct dirent **names = NULL;
    int n = scandir(path, &names, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char child[4096];
        int length = snprintf(child, sizeof child, "%s/%s", path, names[i]->d_name);
        if (names[i]->d_name[0] != '.' && length > 0 && (size_t)length < sizeof child) {
            add_file(child);
        }
        free(names[i]);
    }
    free(names);
}

/* One change: flip, overwrite, insert, remove, repeat a piece, or splice in a piece of another
 * input. */
static void mutate_once(void)
{
    static const uint8_t interesting[] = {0,   1,   9,   10,  13,  32,  '"',  '\\', '-',  '=',
                                          ':', ',', '0', '9', '[', '{', 0x7f, 0x80, 0xc2, 0xff};
    size_t at = below(current_size + 1);
    size_t n = 1 + below(16);
    switch (below(6)) {
    case 0:
        if (current_size > 0) {
            current[at % current_size] ^= (uint8_t)(1u << below(8));
        }
        break;
    case 1:
        if (current_size > 0) {
            current[at % current_size] = interesting[below(sizeof interesting)];
        }
        break;
    case 2:
        if (current_size < MAX_BYTES) {
            memmove(current + at + 1, current + at, current_size - at);
            current[at] = interesting[below(sizeof interesting)];
            current_size++;
        }
        break;
    case 3:
        if (n > current_size - at) {
            n = current_size - at;
        }
        memmove(current + at, current + at + n, current_size - at - n);
        current_size -= n;
        break;
    case 4:
        if (n > current_size - at) {
            n = current_size - at;
        }
        if (current_size + n <= MAX_BYTES) {
            memmove(current + at + n, current + at, current_size - at);
            current_size += n;
        }
        break;
    default: {
        const struct input *other = &corpus[below(corpus_count)];
        size_t from = below(other->size + 1);
        n = below(other->size - from + 1);
        if (current_size + n <= MAX_BYTES) {
            memmove(current + at + n, current + at, current_size - at);
            if (n > 0) {
                memcpy(current + at, other->data + from, n);
            }
            current_size += n;
        }
    }
    }
}

/* A copy of its own size, so that the address sanitizer sees a read past its end. */
static void try_current(void)
{
    uint8_t *exact = malloc(current_size > 0 ? current_size : 1);
    if (exact == NULL) {
        exit(2);
    }
    memcpy(exact, current, current_size);
    (void)alarm(INPUT_S);
    (void)dt_fuzz(exact, current_size);
    (void)alarm(0);
    free(exact);
}

int main(int argc, char **argv)
{
    long count = 1000, seconds = 0, done = 0;
    const time_t start = time(NULL);
    uint64_t seed = 1;
    int option;
    while ((option = getopt(argc, argv, "n:s:t:")) != -1) {
        if (option == 'n') {
            count = strtol(optarg, NULL, 10);
        } else if (option == 't') {
            seconds = strtol(optarg, NULL, 10);
        } else if (option == 's') {
            seed = strtoull(optarg, NULL, 10);
        } else {
            (void)fprintf(stderr, "usage: %s [-n COUNT] [-t SECONDS] [-s SEED] FILES...\n", argv[0]);
            return 2;
        }
    }
    state = seed * 0x9E3779B97F4A7C15ull + 1;
    (void)snprintf(last_path, sizeof last_path, "%s-last.bin", argv[0]);
    for (size_t i = 0; i < sizeof crashes / sizeof *crashes; i++) {
        (void)signal(crashes[i], on_crash);
    }
    for (int i = optind; i < argc; i++) {
        add_path(argv[i]);
    }
    if (corpus_count == 0) {
        corpus[corpus_count++] = (struct input){calloc(1, 1), 0};
    }
    for (size_t i = 0; i < corpus_count; i++) {
        current_size = corpus[i].size;
        memcpy(current, corpus[i].data, current_size);
        try_current();
    }
    for (; done < count && (seconds == 0 || time(NULL) - start < seconds); done++) {
        const struct input *base = &corpus[below(corpus_count)];
        current_size = base->size;
        memcpy(current, base->data, current_size);
        for (size_t changes = 1 + below(8); changes > 0; changes--) {
            mutate_once();
        }
        try_current();
    }
    for (size_t i = 0; i < corpus_count; i++) {
        free(corpus[i].data);
    }
    (void)printf("%s: %zu inputs, %ld mutations, seed %llu: ok\n", argv[0], corpus_count, done,
                 (unsigned long long)seed);
    return 0;
}
