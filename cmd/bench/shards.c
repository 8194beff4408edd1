/* Token shards in a folder of their own, read as a training job reads them: opened (which reads all and compares
 * the checksum), then every sample once, in a shuffled order. MB of ids per second of the processor. */
#include "cmd/bench/shards.h"

#include "base/bench.h"
#include "base/file.h"
#include "base/text.h"
#include "worker/data/data.h"
#include "worker/data/shards.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    TOKENS = 32 << 20,
    LENGTH = 1024,
    ROWS = 16,
    AT_ONCE = 4096,
    VOCABULARY = 50257,
    REPEATS_MOST = 101,
    MEASURES = 2
};

static double cpu_s(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

int bench_write_shards(const char *folder, int64_t tokens, struct dt_error *err)
{
    const struct shard_form form = {
        .tokenizer = "bench", .document_end = 0, .vocabulary = VOCABULARY, .shard_tokens = tokens / 4};
    struct shard_writer *w;
    static int32_t ids[AT_ONCE];
    uint64_t random = 1;
    int rc = shard_writer_open(&w, folder, "train", &form, false, err);
    if (rc != 0) {
        return -1;
    }
    for (int64_t n = 0; rc == 0 && n < tokens; n += AT_ONCE) {
        for (int i = 0; i < AT_ONCE; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            ids[i] = (int32_t)((random >> 33) % VOCABULARY);
        }
        rc = shard_writer_add(w, ids, AT_ONCE, err);
    }
    rc = rc == 0 && shard_writer_finish(w, err) == 0 ? shard_writer_commit(w, err) : -1;
    shard_writer_close(w, false);
    return rc;
}

/* Seconds of the processor for opening, and for reading all samples. */
static int read_all(const char *glob, double took[MEASURES], struct dt_error *err)
{
    static int32_t ids[ROWS * LENGTH], labels[ROWS * LENGTH];
    const struct batch_layout layout = batch_tokens(ROWS, LENGTH, 0, "vocab_size");
    struct data_source s;
    double begin = cpu_s();
    if (data_open(&s, glob, "auto", &layout, err) != 0) {
        return -1;
    }
    took[0] = cpu_s() - begin;
    struct sampler order = {.sample_count = s.sample_count, .seed = 1, .shuffle = true};
    struct batch b = {.layout = &layout, .at = {ids, labels}, .samples = ROWS};
    int rc = 0;
    begin = cpu_s();
    for (int64_t at = 0; rc == 0 && at + ROWS <= s.sample_count; at += ROWS) {
        rc = data_batch(&s, &order, 0, at, 0, 1, &b, err);
    }
    took[1] = cpu_s() - begin;
    data_close(&s);
    return rc;
}

int bench_shards(size_t repeats, struct dt_error *err)
{
    static const char *const names[MEASURES] = {"shards opened, checksum compared", "shards to batches, shuffled"};
    char folder[] = "/tmp/dtrun-bench-XXXXXX";
    double rates[MEASURES][REPEATS_MOST], took[MEASURES] = {0};
    if (mkdtemp(folder) == NULL) {
        return dt_fail_errno(err, "%s", folder);
    }
    char *glob = dt_format("%s/train-*.bin", folder);
    int rc = bench_write_shards(folder, TOKENS, err);
    for (size_t i = 0; rc == 0 && i < repeats; i++) {
        rc = read_all(glob, took, err);
        for (int m = 0; m < MEASURES; m++) {
            rates[m][i] = 2.0 * TOKENS / 1e6 / (took[m] > 0 ? took[m] : 1e-6);
        }
    }
    for (int m = 0; rc == 0 && m < MEASURES; m++) {
        dt_bench_print(&(struct dt_bench_case){.bench = "data", .name = names[m], .unit = "MB/s"}, rates[m], repeats);
    }
    free(glob);
    (void)dt_file_remove_tree(folder, NULL);
    return rc;
}
