/* covers: worker/data cmd/dtdata/corpus.c */
/* Token shards written and read, damaged in every way; batches per rank; safetensors batches;
 * collecting and holding out files. */
#include "base/file.h"
#include "base/text.h"
#include "tests/lib/folder.h"
#include "worker/data/data.h"
#include "worker/data/rows.h"
#include "cmd/dtdata/corpus.h"
#include "worker/data/shards.h"
#include "worker/data/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <zlib.h>
#include <cmocka.h>

static const char *in(const char *name)
{
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];
    (void)snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const void *data, size_t size)
{
    struct dt_error err = {0};
    if (dt_file_write(in(name), data, size, &err) != 0) {
        fail_msg("%s", err.text);
    }
}

/* A shard by hand: header and ids of 2 or 4 bytes. */
static void write_shard(const char *name, int32_t magic, int32_t version, int32_t count, const uint32_t *ids,
                        size_t id_count, int width)
{
    unsigned char *file = calloc(1, SHARD_HEADER_BYTES + id_count * 4 + 1);
    int32_t header[3] = {magic, version, count};
    assert_non_null(file);
    memcpy(file, header, sizeof header);
    for (size_t i = 0; i < id_count; i++) {
        memcpy(file + SHARD_HEADER_BYTES + i * (size_t)width, &ids[i], (size_t)width);
    }
    write_file(name, file, SHARD_HEADER_BYTES + id_count * (size_t)width);
    free(file);
}

/* What a model of tokens reads. */
static int open_tokens(struct data_source *s, const char *glob, const char *format, int64_t length,
                       struct dt_error *err)
{
    const struct batch_layout layout = batch_tokens(1, length, 0, "vocab_size");
    return data_open(s, glob, format, &layout, err);
}

static void read_sample(const struct data_source *s, int64_t sample, int32_t *ids, int32_t *labels)
{
    assert_int_equal(s->ops->read(s, sample, 0, &(struct batch){.layout = &s->layout, .at = {ids, labels}}, 0, NULL),
                     0);
}

static int64_t fill_batch(const struct data_source *s, const struct sampler *order, int64_t epoch, int64_t first,
                          int rank, int ranks, int64_t samples, int32_t *ids, int32_t *labels)
{
    struct batch b = {.layout = &s->layout, .samples = samples, .at = {ids, labels}};
    assert_int_equal(data_batch(s, order, epoch, first, rank, ranks, &b, NULL), 0);
    return b.weight;
}

static int open_writer(struct shard_writer **w, const char *dir, const char *prefix, int64_t shard_tokens,
                       bool overwrite, struct dt_error *err)
{
    const struct shard_form form = {.tokenizer = "bytes", .vocabulary = 256, .shard_tokens = shard_tokens};
    return shard_writer_open(w, dir, prefix, &form, overwrite, err);
}

static void refused(const char *name, const char *message)
{
    struct data_source s;
    struct dt_error err = {0};
    char expected[512];
    (void)snprintf(expected, sizeof expected, "%s/%s", folder, message);
    assert_int_equal(open_tokens(&s, in(name), "auto", 4, &err), -1);
    assert_string_equal(err.text, expected);
}

/* Ten ids 10..19 as one stream in shards of 4, 4, 2; T = 3 gives three samples. */
static void test_stream(void **state)
{
    (void)state;
    struct shard_writer *w = NULL;
    struct dt_error err = {0};
    assert_int_equal(open_writer(&w, in("stream"), "train", 4, false, &err), 0);
    shard_writer_source(w, "a \"quoted\" name");
    for (int32_t id = 10; id < 20; id++) {
        assert_int_equal(shard_writer_add(w, &id, 1, &err), 0);
    }
    assert_false(dt_file_exists(in("stream/train-00000.bin")));
    assert_int_equal(shard_writer_finish(w, &err), 0);
    assert_int_equal(shard_writer_commit(w, &err), 0);
    assert_int_equal(shard_writer_shards(w), 3);
    shard_writer_close(w, false);

    struct data_source s;
    int32_t ids[3], labels[3];
    /* the glob matches the JSON files too */
    assert_int_equal(open_tokens(&s, in("stream/train-*"), "auto", 3, &err), 0);
    assert_string_equal(s.ops->name, "tokens");
    assert_string_equal(s.tokenizer, "bytes");
    assert_int_equal(s.vocabulary, 256);
    assert_int_equal(s.token_count, 10);
    assert_int_equal(s.sample_count, 3);
    for (int32_t i = 0; i < 3; i++) {
        read_sample(&s, i, ids, labels);
        for (int32_t t = 0; t < 3; t++) {
            assert_int_equal(ids[t], 10 + 3 * i + t);
            assert_int_equal(labels[t], 11 + 3 * i + t);
        }
    }
    uint64_t hash = s.hash;
    data_close(&s);
    assert_int_equal(open_tokens(&s, in("stream/train-0000[01].bin"), "tokens", 3, &err), 0);
    assert_int_equal(s.sample_count, 2); /* 8 tokens: the last sample has no label after it
                                          * otherwise */
    assert_true(s.hash != hash);
    data_close(&s);
    assert_int_equal(open_writer(&w, in("stream"), "train", 4, false, &err), -1);
    assert_non_null(strstr(
        err.text, "stream/train-00000.bin: is there already; choose another folder with -o, or give --overwrite"));
    /* fewer shards than before: the old rest goes */
    int32_t id = 7;
    assert_int_equal(open_writer(&w, in("stream"), "train", 4, true, &err), 0);
    assert_int_equal(shard_writer_add(w, &id, 1, &err), 0);
    assert_int_equal(shard_writer_finish(w, &err), 0);
    assert_int_equal(shard_writer_commit(w, &err), 0);
    shard_writer_close(w, false);
    assert_true(dt_file_exists(in("stream/train-00000.bin")));
    assert_false(dt_file_exists(in("stream/train-00001.bin")));
    assert_false(dt_file_exists(in("stream/train-00002.bin.json")));
}

/* A shard of these ids under this name. */
static void put_shard(const char *name, const uint16_t *ids, int count)
{
    static char bytes[SHARD_HEADER_BYTES + 64];
    int32_t header[3] = {SHARD_MAGIC_U16, 1, count};
    struct dt_error err;
    memset(bytes, 0, sizeof bytes);
    memcpy(bytes, header, sizeof header);
    memcpy(bytes + SHARD_HEADER_BYTES, ids, (size_t)count * sizeof *ids);
    assert_int_equal(dt_file_write(in(name), bytes, SHARD_HEADER_BYTES + (size_t)count * sizeof *ids, &err), 0);
}

static void check_differ(const struct data_source *was, const char *glob, const char *expected)
{
    struct data_source now;
    struct dt_error err;
    struct dt_text what;
    dt_text_init(&what);
    assert_int_equal(open_tokens(&now, in(glob), "auto", 3, &err), 0);
    assert_int_equal(data_differ(was->files, was->file_count, &now, &what), *expected != 0);
    assert_string_equal(dt_text_str(&what), expected);
    assert_int_equal(data_content(was) == data_content(&now), *expected == 0);
    dt_text_clear(&what);
    data_close(&now);
}

/* Data are what is in the files, in their order; the first file that is not as it was has a
 * name. */
static void test_same_data(void **state)
{
    (void)state;
    static const uint16_t a[] = {1, 2, 3, 4}, b[] = {1, 2, 3, 5}, c[] = {1, 2, 3};
    struct data_source was;
    struct dt_error err;
    assert_int_equal(dt_file_mkdirs(in("same"), &err), 0);
    put_shard("same/x-0.bin", a, 4);
    put_shard("same/x-1.bin", b, 4);
    assert_int_equal(open_tokens(&was, in("same/x-*.bin"), "auto", 3, &err), 0);
    check_differ(&was, "same/x-*.bin", "");
    put_shard("same/y-8.bin", a, 4); /* renamed */
    put_shard("same/y-9.bin", b, 4);
    check_differ(&was, "same/y-*.bin", "");
    put_shard("same/z-7.bin", b, 4); /* in another order */
    put_shard("same/z-8.bin", a, 4);
    check_differ(&was, "same/z-*.bin", "z-7.bin stands where x-0.bin was");
    check_differ(&was, "same/x-0.bin", "x-1.bin is gone (1 file now, 2 then)");
    put_shard("same/x-2.bin", c, 3);
    check_differ(&was, "same/x-*.bin", "x-2.bin is new (3 files now, 2 then)");
    data_close(&was);
    assert_int_equal(unlink(in("same/x-2.bin")), 0);
    assert_int_equal(open_tokens(&was, in("same/x-*.bin"), "auto", 3, &err), 0);
    put_shard("same/x-1.bin", c, 3);
    check_differ(&was, "same/x-*.bin", "x-1.bin is not what it was");
    data_close(&was);
}

/* What exists is taken by its name, whatever letters are in it; the rest is a pattern. */
static void test_literal_names(void **state)
{
    (void)state;
    static const char *const folders[] = {"sp ace[1]", "st*r", "back\\slash"};
    const int32_t ids[] = {1, 2, 3, 4};
    struct dt_error err = {0};
    char path[128];
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        struct shard_writer *w = NULL;
        struct data_files f;
        assert_int_equal(open_writer(&w, in(folders[i]), "train[0]", 2, false, &err), 0);
        assert_int_equal(shard_writer_add(w, ids, 4, &err), 0);
        assert_int_equal(shard_writer_finish(w, &err), 0);
        assert_int_equal(shard_writer_commit(w, &err), 0);
        shard_writer_close(w, false);
        (void)snprintf(path, sizeof path, "%s/*.bin", folders[i]);
        assert_int_equal(data_files_open(&f, in(path), false, &err), 0);
        assert_int_equal(f.count, 2);
        data_files_close(&f);
        (void)snprintf(path, sizeof path, "%s/train[0]-00001.bin", folders[i]);
        assert_int_equal(data_files_open(&f, in(path), false, &err), 0);
        assert_int_equal(f.count, 1);
        assert_string_equal(data_base_name(f.paths[0]), "train[0]-00001.bin");
        data_files_close(&f);
    }
    refused("sp ace[1]/none-*.bin",
            "sp ace[1]/none-*.bin: no such file; name texts, or token shards (dtdata tokenize makes them); a *, "
            "? or [ that is part of a name "
            "is written with \\ before it");
}

/* A commit that fails half way leaves the earlier run's shards. */
static void test_failed_overwrite(void **state)
{
    (void)state;
    struct shard_writer *w = NULL;
    struct dt_error err = {0};
    const int32_t before[] = {1, 2, 3, 4}, after[] = {5, 6, 7, 8};
    assert_int_equal(open_writer(&w, in("twice"), "train", 2, false, &err), 0);
    assert_int_equal(shard_writer_add(w, before, 4, &err), 0);
    assert_int_equal(shard_writer_finish(w, &err), 0);
    assert_int_equal(shard_writer_commit(w, &err), 0);
    shard_writer_close(w, false);
    assert_int_equal(open_writer(&w, in("twice"), "train", 2, true, &err), 0);
    assert_int_equal(shard_writer_add(w, after, 4, &err), 0);
    assert_int_equal(shard_writer_finish(w, &err), 0);
    assert_int_equal(unlink(in("twice/.unfinished/train-00001.bin")), 0);
    assert_int_equal(shard_writer_commit(w, &err), -1);
    shard_writer_close(w, false);
    struct data_source s;
    int32_t ids[3], labels[3];
    assert_int_equal(open_tokens(&s, in("twice/train-*.bin"), "tokens", 3, &err), 0);
    read_sample(&s, 0, ids, labels);
    assert_int_equal(ids[0], 1);
    assert_int_equal(labels[2], 4);
    data_close(&s);
    static const char *const names[] = {"twice/train-00000.bin", "twice/train-00000.bin.json", "twice/train-00001.bin",
                                        "twice/train-00001.bin.json", "twice/train-shards.json"};
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(unlink(in(names[i])), 0);
    }
    assert_int_equal(rmdir(in("twice")), 0); /* nothing else is there */
}

static void test_abandoned(void **state)
{
    (void)state;
    struct shard_writer *w = NULL;
    struct dt_error err = {0};
    int32_t ids[] = {1, 2, 3, 300};
    assert_int_equal(open_writer(&w, in("gone"), "val", 2, false, &err), 0);
    assert_int_equal(shard_writer_add(w, ids, 3, &err), 0);
    assert_int_equal(shard_writer_add(w, ids + 3, 1, &err), -1);
    assert_non_null(strstr(err.text, "id 300 does not fit into the vocabulary of 256"));
    shard_writer_close(w, false);
    assert_int_equal(rmdir(in("gone")), 0); /* nothing is left in it */
}

/* Sources with long names are listed as far as a reader takes them; all are counted. */
static void test_many_sources(void **state)
{
    (void)state;
    struct shard_writer *w = NULL;
    struct shard s;
    struct dt_error err = {0};
    const int32_t ids[] = {1, 2, 3};
    char name[1000];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    assert_int_equal(open_writer(&w, in("many"), "train", 8, false, &err), 0);
    for (int i = 0; i < 9000; i++) {
        shard_writer_source(w, name);
    }
    assert_int_equal(shard_writer_add(w, ids, 3, &err), 0);
    assert_int_equal(shard_writer_finish(w, &err), 0);
    assert_int_equal(shard_writer_commit(w, &err), 0);
    shard_writer_close(w, false);
    if (shard_open(&s, in("many/train-00000.bin"), &err) != 0) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(s.info.source_count, 9000);
    shard_close(&s);
}

/* Ids beyond 65535 make uint32 shards; the JSON has the tokenizer's hash and path. A writer that takes over complete
 * shards goes on behind them. */
static void test_wide_and_resumed(void **state)
{
    (void)state;
    const struct shard_form form = {.tokenizer = "wide",
                                    .tokenizer_path = "/there/tokenizer.json",
                                    .tokenizer_hash = 0xabc,
                                    .document_end = 69999,
                                    .vocabulary = 70000,
                                    .shard_tokens = 2};
    struct shard_writer *w = NULL;
    struct dt_error err = {0};
    const int32_t ids[] = {1, 69999, 65536, 5};
    assert_int_equal(shard_writer_open(&w, in("wide"), "train", &form, false, &err), 0);
    assert_int_equal(shard_writer_add(w, ids, 3, &err), 0);
    assert_int_equal(shard_writer_complete(w), 1);
    assert_int_equal(shard_writer_room(w), 1);
    shard_writer_close(w, true); /* as after a kill: one shard is complete */
    assert_int_equal(shard_writer_open(&w, in("wide"), "train", &form, false, &err), 0);
    assert_int_equal(shard_writer_resume(w, 1, &err), 0);
    assert_int_equal(shard_writer_tokens(w), 2);
    assert_int_equal(shard_writer_add(w, ids + 2, 2, &err), 0);
    assert_int_equal(shard_writer_finish(w, &err), 0);
    assert_int_equal(shard_writer_commit(w, &err), 0);
    shard_writer_close(w, false);
    for (int i = 0; i < 2; i++) {
        struct shard s;
        assert_int_equal(shard_open(&s, in(i == 0 ? "wide/train-00000.bin" : "wide/train-00001.bin"), &err), 0);
        assert_int_equal(s.width, 4);
        assert_int_equal(s.token_count, 2);
        assert_int_equal(shard_id(&s, 0), ids[2 * i]);
        assert_int_equal(shard_id(&s, 1), ids[2 * i + 1]);
        assert_int_equal(s.info.document_end, 69999);
        assert_string_equal(s.info.tokenizer_path, "/there/tokenizer.json");
        assert_int_equal(shard_check_tokenizer(&s.info, "x", "t", 0xabc, &err), 0);
        assert_int_equal(shard_check_tokenizer(&s.info, "x", "t", 0xabd, &err), -1);
        assert_string_equal(err.text, "x: made with tokenizer wide of hash 0000000000000abc, but that of t is "
                                      "0000000000000abd; give the tokenizer of the shards, or make them again");
        shard_close(&s);
    }
    /* a shard that was damaged meanwhile is not taken over */
    assert_int_equal(shard_writer_open(&w, in("worn"), "train", &form, false, &err), 0);
    assert_int_equal(shard_writer_add(w, ids, 2, &err), 0);
    shard_writer_close(w, true);
    FILE *f = fopen(in("worn/.unfinished/train-00000.bin"), "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, SHARD_HEADER_BYTES, SEEK_SET), 0);
    assert_int_equal(fputc(7, f), 7);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(shard_writer_open(&w, in("worn"), "train", &form, false, &err), 0);
    assert_int_equal(shard_writer_resume(w, 1, &err), -1);
    assert_non_null(strstr(err.text, "changed or damaged since it was written"));
    shard_writer_close(w, false);
}

static void write_set(const char *dir, int count, bool overwrite)
{
    static const int32_t ids[] = {1, 2, 3, 4, 5, 6};
    struct shard_writer *w = NULL;
    struct dt_error err = {0};
    assert_int_equal(open_writer(&w, dir, "train", 2, overwrite, &err), 0);
    assert_int_equal(shard_writer_add(w, ids, 2 * (size_t)count, &err), 0);
    assert_int_equal(shard_writer_finish(w, &err), 0);
    assert_int_equal(shard_writer_commit(w, &err), 0);
    shard_writer_close(w, false);
}

static void has_files(const char *pattern, size_t count)
{
    struct data_files f;
    struct dt_error err = {0};
    if (data_files_open(&f, in(pattern), false, &err) != 0) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(f.count, count);
    data_files_close(&f);
}

/* A set of shards that was copied in part is refused, whichever is missing and whichever are named. */
static void test_a_shard_is_missing(void **state)
{
    (void)state;
    static const char *const one[] = {"three/train-00000.bin", "three/train-00001.bin", "three/train-00002.bin"};
    char expected[512];
    write_set(in("three"), 3, false);
    has_files("three/train-*.bin", 3);
    has_files("three/train-0000[12].bin", 2); /* some of a whole set */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rename(in(one[i]), in("three/kept")), 0);
        (void)snprintf(
            expected, sizeof expected,
            "%s: is missing: 3 shards were made together, as %s/three/train-shards.json says; copy it, too, or "
            "remove %s/three/train-shards.json to do without it",
            one[i], folder, folder);
        refused("three/train-*.bin", expected);
        refused(one[(i + 1) % 3], expected);
        assert_int_equal(rename(in("three/kept"), in(one[i])), 0);
    }
    assert_int_equal(unlink(in(one[1])), 0);
    write_file("three/train-shards.json", "[3, 4", 5); /* of somebody else */
    has_files("three/train-*.bin", 2);
    write_set(in("three"), 3, true);
    has_files("three/train-*.bin", 3);
    write_set(in("three"), 1, true); /* a single one has no list, and that of before is gone */
    has_files("three/train-*.bin", 1);
    assert_int_equal(access(in("three/train-shards.json"), F_OK), -1);
}

static void test_bad_shards(void **state)
{
    (void)state;
    static const uint32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8};
    refused("none.bin", "none.bin: no such file; name texts, or token shards (dtdata tokenize makes them)");
    write_file("text.bin", "hello", 5);
    refused("text.bin",
            "text.bin: neither a token shard nor a safetensors file; make shards with dtdata tokenize; for ids "
            "without a header (nanoGPT) set data.format to \"nanogpt\"");
    write_shard("short.bin", SHARD_MAGIC_U16, 1, 9, ids, 8, 2);
    refused("short.bin", "short.bin: 1040 bytes, but 9 tokens need 1042: cut short or damaged; make it again");
    write_shard("version.bin", SHARD_MAGIC_U16, 2, 8, ids, 8, 2);
    refused("version.bin", "version.bin: version 2 of magic 20240520; we read version 1");
    write_shard("empty.bin", SHARD_MAGIC_U16, 1, 0, ids, 0, 2);
    refused("empty.bin", "empty.bin: holds no tokens (its header says 0)");
    write_shard("few.bin", SHARD_MAGIC_U16, 1, 4, ids, 4, 2);
    refused("few.bin", "few.bin: 4 tokens, too few for one sample of data.sequence_length 4 (and the label after it)");
    write_file("head.bin", &(int32_t[]){SHARD_MAGIC_U16, 1}, 8);
    refused("head.bin", "head.bin: 8 bytes, shorter than the header of a token shard (1024)");
    write_shard("huge.bin", SHARD_MAGIC_U32, 7, 1, &(uint32_t){0xff000000}, 1, 4);
    refused("huge.bin", "huge.bin: largest id 4278190080 is beyond any vocabulary (16777216): damaged; make it again");
    struct data_source s;
    struct dt_error err = {0};
    assert_int_equal(open_tokens(&s, folder, "auto", 4, &err), -1);
    assert_non_null(strstr(err.text, ": is a folder; name its files, for example "));
    assert_int_equal(open_tokens(&s, in("few.bin"), "arrow", 4, &err), -1);
    assert_string_equal(err.text, "data.format: arrow: unknown; use auto, tokens, nanogpt, rows, tensors, "
                                  "multiple_choice, imagefolder, idx, cifar10 or cifar100");
    write_shard("wide.bin", SHARD_MAGIC_U32, 7, 8, ids, 8, 4);
    assert_int_equal(open_tokens(&s, in("wide.bin"), "auto", 4, &err), 0);
    assert_int_equal(s.vocabulary, 9);
    assert_string_equal(s.tokenizer, "");
    data_close(&s);
}

static void test_bad_info(void **state)
{
    (void)state;
    static const uint32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8};
    write_shard("i.bin", SHARD_MAGIC_U16, 1, 8, ids, 8, 2);
#define INFO(text) write_file("i.bin.json", text, strlen(text))
    INFO("{\"tokens\": 9}");
    refused("i.bin", "i.bin.json: says 9 tokens, the shard has 8; make both again");
    INFO("{\"tokens\": 8, \"vocabulary\": 8}");
    refused("i.bin", "i.bin: largest id 8 does not fit into the vocabulary of 8; make it again");
    INFO("{\"tokens\": 8, \"vocabulary\": 8, \"max_id\": 8}");
    refused("i.bin", "i.bin.json: largest id 8 does not fit into the vocabulary of 8");
    INFO("{\"tokens\": 8, \"xxh3\": \"0000000000000000\"}");
    struct data_source s;
    struct dt_error err = {0};
    assert_int_equal(open_tokens(&s, in("i.bin"), "auto", 4, &err), -1);
    assert_non_null(strstr(err.text, ", but its JSON says 0000000000000000: changed or damaged; make it again"));
    INFO("{\"tokens\": ");
    refused("i.bin", "i.bin.json:1:12: the text ends here; expected a value");
    INFO("[]");
    refused("i.bin", "i.bin.json: not what dtdata writes beside a shard; remove it, or make the shard again");
    INFO("{\"tokenizer\": \"a\"}");
    write_shard("i2.bin", SHARD_MAGIC_U16, 1, 8, ids, 8, 2);
    write_file("i2.bin.json", "{\"tokenizer\": \"b\"}", 18);
    char message[256];
    (void)snprintf(message, sizeof message, "i2.bin: tokenizer b, but %s has a; make all shards with one", in("i.bin"));
    refused("i*.bin", message);
    struct data_source a = {.tokenizer = "a"}, b = {.tokenizer = "b"}, none = {.tokenizer = ""};
    struct job_data job = {.train.words = "t"};
    assert_int_equal(data_check(&job, &a, "t", &b, "data.val", "v", &err), -1);
    assert_string_equal(err.text, "data.val: v: tokenizer b, but t has a; make both with one");
    assert_int_equal(data_check(&job, &a, "t", &none, "data.val", "v", &err), 0);
    assert_int_equal(data_check(&job, &a, "t", NULL, NULL, NULL, &err), 0);
    job.tokenizer = "b";
    assert_int_equal(data_check(&job, &a, "t", NULL, NULL, NULL, &err), -1);
    assert_string_equal(err.text,
                        "data.tokenizer: is b, which is no file, and t has a; remove it, or make the shards again");
    assert_int_equal(data_check(&job, &none, "t", NULL, NULL, NULL, &err), 0);
    assert_int_equal(data_check(&job, NULL, NULL, &b, "data.val", "v", &err), 0); /* data.val alone */
    assert_int_equal(data_check(&job, NULL, NULL, &a, "data.val", "v", &err), -1);
    assert_string_equal(err.text,
                        "data.tokenizer: is b, which is no file, and v has a; remove it, or make the shards again");
}

/* Whatever the number of ranks, a global batch holds the same samples. */
static void test_batches(void **state)
{
    (void)state;
    enum { T = 4, SAMPLES = 10 };
    uint32_t tokens[T * SAMPLES + 1];
    for (uint32_t i = 0; i < T * SAMPLES + 1; i++) {
        tokens[i] = i;
    }
    write_shard("b.bin", SHARD_MAGIC_U16, 1, T * SAMPLES + 1, tokens, T * SAMPLES + 1, 2);
    struct data_source s;
    struct dt_error err = {0};
    assert_int_equal(open_tokens(&s, in("b.bin"), "auto", T, &err), 0);
    assert_int_equal(s.sample_count, SAMPLES);
    struct sampler order = {.sample_count = s.sample_count, .seed = 5, .shuffle = true};
    int32_t ids[6 * T], labels[6 * T];
    for (int ranks = 1; ranks <= 6; ranks++) {
        if (6 % ranks != 0) {
            continue;
        }
        for (int rank = 0; rank < ranks; rank++) {
            int64_t size = 6 / ranks;
            assert_int_equal(fill_batch(&s, &order, 2, 3, rank, ranks, size, ids, labels), size * T);
            for (int64_t b = 0; b < size; b++) {
                int64_t sample = sampler_at(&order, 2, 3 + b * ranks + rank);
                assert_int_equal(ids[b * T], sample * T);
                assert_int_equal(labels[b * T + T - 1], sample * T + T);
            }
        }
    }
    /* positions 9 and 11: one is beyond the end */
    assert_int_equal(fill_batch(&s, &order, 0, 8, 1, 2, 2, ids, labels), T);
    assert_int_equal(ids[T], 0);
    assert_int_equal(labels[T], -100);
    data_close(&s);
}

static void write_tensors(const char *name, enum dt_dtype type, int64_t rows, int64_t length, const void *ids,
                          const void *labels)
{
    int64_t shape[2] = {rows, length};
    struct st_entry entries[2] = {{"input_ids", type, 2, shape}, {"labels", type, 2, shape}};
    struct st_writer *w = NULL;
    struct dt_error err = {0};
    size_t bytes = (size_t)(rows * length) * dt_dtype_size(type);
    assert_int_equal(st_writer_open(&w, in(name), entries, labels != NULL ? 2 : 1, NULL, &err), 0);
    assert_int_equal(st_writer_data(w, ids, bytes, &err), 0);
    if (labels != NULL) {
        assert_int_equal(st_writer_data(w, labels, bytes, &err), 0);
    }
    assert_int_equal(st_writer_close(w, &err), 0);
}

/* A file of an encoder's rows: ids (2, 4), labels (2), and a mask or none. */
static void write_rows(const char *name, const int64_t *ids, const int64_t *mask, const int64_t *labels)
{
    int64_t shape[2] = {2, 4};
    struct st_entry entries[3] = {
        {"input_ids", DT_I64, 2, shape}, {"labels", DT_I64, 1, shape}, {"attention_mask", DT_I64, 2, shape}};
    struct st_writer *w = NULL;
    struct dt_error err = {0};
    assert_int_equal(st_writer_open(&w, in(name), entries, mask != NULL ? 3 : 2, NULL, &err), 0);
    assert_int_equal(st_writer_data(w, ids, 64, &err), 0);
    assert_int_equal(st_writer_data(w, labels, 16, &err), 0);
    if (mask != NULL) {
        assert_int_equal(st_writer_data(w, mask, 64, &err), 0);
    }
    assert_int_equal(st_writer_close(w, &err), 0);
}

/* Fields that a file lacks have their default; others follow from the mask and the ids. */
static void test_optional_and_derived(void **state)
{
    (void)state;
    static const int64_t ids[8] = {5, 6, 1, 1, 7, 1, 8, 9}, mask[8] = {1, 1, 0, 0, 1, 1, 1, 0}, labels[2] = {2, -100},
                         bad[8] = {1, 1, 2, 0, 1, 1, 1, 1};
    enum { IDS, MASK, SEGMENTS, TYPES, POSITIONS, LABELS };
    struct batch_layout l = {.count = 0};
    struct data_source s;
    struct dt_error err = {0};
    int32_t at[LABELS + 1][8];
    batch_add_encoder(&l, 2, 4, 10, 2);
    batch_add_positions(&l, 1);
    l.field[l.count++] = (struct batch_field){.name = "labels",
                                              .type = DT_I32,
                                              .dims = 1,
                                              .most = {2},
                                              .targets = true,
                                              .below = 3,
                                              .below_key = "num_labels"};
    write_rows("e1.safetensors", ids, mask, labels);
    write_rows("e2.safetensors", ids, NULL, labels);
    assert_int_equal(data_open(&s, in("e[12].safetensors"), "auto", &l, &err), 0);
    assert_int_equal(s.sample_count, 4);
    assert_int_equal(s.blank_count, 2);
    struct batch b = {.layout = &s.layout, .samples = 2};
    for (int k = 0; k <= LABELS; k++) {
        b.at[k] = at[k];
    }
    const struct sampler order = {.sample_count = 4};
    assert_int_equal(data_batch(&s, &order, 0, 0, 0, 1, &b, NULL), 0);
    assert_int_equal(b.weight, 1);
    assert_memory_equal(at[MASK], ((int32_t[]){1, 1, 0, 0, 1, 1, 1, 0}), sizeof at[0]);
    assert_memory_equal(at[SEGMENTS], ((int32_t[]){0, 0, -1, -1, 0, 0, 0, -1}), sizeof at[0]);
    assert_memory_equal(at[TYPES], ((int32_t[8]){0}), sizeof at[0]);
    assert_memory_equal(at[POSITIONS], ((int32_t[]){2, 3, 1, 1, 2, 1, 3, 4}), sizeof at[0]);
    assert_memory_equal(at[LABELS], ((int32_t[]){2, -100}), 2 * sizeof at[0][0]);
    assert_int_equal(data_batch(&s, &order, 0, 3, 0, 1, &b, NULL), 0); /* the last sample, and one beyond the end */
    assert_memory_equal(at[SEGMENTS], ((int32_t[8]){0}), sizeof at[0]);
    assert_memory_equal(at[POSITIONS], ((int32_t[]){2, 1, 3, 4, 2, 3, 4, 5}), sizeof at[0]);
    assert_int_equal(at[LABELS][1], -100);
    data_close(&s);
    write_rows("e3.safetensors", ids, bad, labels);
    assert_int_not_equal(data_open(&s, in("e3.safetensors"), "auto", &l, &err), 0);
    assert_non_null(strstr(err.text, "attention_mask: sample 1 has value 2; values are numbers from 0 to 1"));
    /* a model of tokens knows no mask: it takes one of 1 only */
    assert_int_not_equal(open_tokens(&s, in("e1.safetensors"), "auto", 4, &err), 0);
}

static void test_tensors(void **state)
{
    (void)state;
    static const int64_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8}, labels[8] = {1, -100, 3, 4, 5, 6, 9, -100};
    static const int32_t small[8] = {1, 2, 3, 4, 5, 6, 7, 8}, negative[4] = {1, 2, -3, 4};
    struct data_source s;
    struct dt_error err = {0};
    int32_t x[4], y[4];
    write_tensors("a.safetensors", DT_I64, 2, 4, ids, labels);
    write_tensors("b.safetensors", DT_I32, 2, 4, small, NULL);
    assert_int_equal(open_tokens(&s, in("[ab].safetensors"), "auto", 4, &err), 0);
    assert_string_equal(s.ops->name, "tensors");
    assert_int_equal(s.sample_count, 4);
    assert_int_equal(s.vocabulary, 10);
    read_sample(&s, 0, x, y);
    assert_memory_equal(x, ((int32_t[]){1, 2, 3, 4}), sizeof x);
    assert_memory_equal(y, ((int32_t[]){-100, 3, 4, -100}), sizeof y);
    read_sample(&s, 1, x, y);
    assert_memory_equal(y, ((int32_t[]){6, 9, -100, -100}), sizeof y);
    read_sample(&s, 3, x, y);
    assert_memory_equal(x, ((int32_t[]){5, 6, 7, 8}), sizeof x);
    assert_memory_equal(y, ((int32_t[]){6, 7, 8, -100}), sizeof y);
    data_close(&s);
    assert_int_equal(open_tokens(&s, in("a.safetensors"), "tensors", 5, &err), -1);
    assert_non_null(strstr(err.text, "rows of 4 tokens, but data.sequence_length is 5; set it to 4"));
    for (int i = 0; i < 5; i++) { /* 1, 2, 1, 2, 1 rows */
        write_tensors((const char *[]){"e0", "e1", "e2", "e3", "e4"}[i], DT_I64, 1 + i % 2, 4, ids, NULL);
    }
    assert_int_equal(open_tokens(&s, in("e?"), "tensors", 4, &err), 0);
    for (int i = 0; i < 7; i++) {
        read_sample(&s, i, x, y);
        assert_int_equal(x[0], i % 3 == 2 ? 5 : 1);
    }
    data_close(&s);
    write_tensors("c.safetensors", DT_I32, 1, 4, negative, NULL);
    refused("c.safetensors", "c.safetensors: input_ids: sample 1 has id -3; ids are numbers from 0 to 16777215");
    write_tensors("d.safetensors", DT_F32, 1, 4, small, NULL);
    refused("d.safetensors", "d.safetensors: input_ids is of type F32; must be I64 or I32");
    write_tensors("d.safetensors", DT_I32, 0, 4, small, NULL);
    refused("d.safetensors", "d.safetensors: input_ids is empty");
}

/* Rows of several files are of one tokenizer, as far as they say it. */
static void test_tensors_of_tokenizers(void **state)
{
    (void)state;
    static const int32_t ids[4] = {1, 2, 3, 4};
    const char *const names[] = {"gpt2", NULL, "gpt2", "bert"};
    const int64_t shape[2] = {1, 4};
    struct data_source s;
    struct dt_error err = {0};
    for (int i = 0; i < 4; i++) {
        const char *metadata[] = {"tokenizer", names[i], NULL, NULL};
        const char *const files[] = {"t0.safetensors", "t1.safetensors", "t2.safetensors", "t3.safetensors"};
        const struct st_entry entry = {"input_ids", DT_I32, 2, shape};
        struct st_writer *w = NULL;
        assert_int_equal(st_writer_open(&w, in(files[i]), &entry, 1, names[i] != NULL ? metadata : NULL, &err), 0);
        assert_int_equal(st_writer_data(w, ids, sizeof ids, &err), 0);
        assert_int_equal(st_writer_close(w, &err), 0);
    }
    assert_int_equal(open_tokens(&s, in("t[0-2].safetensors"), "tensors", 4, &err), 0);
    assert_string_equal(s.tokenizer, "gpt2");
    data_close(&s);
    assert_int_equal(open_tokens(&s, in("t[0-3].safetensors"), "tensors", 4, &err), -1);
    assert_non_null(
        strstr(err.text, "t3.safetensors: tokenizer bert, but a file before it has gpt2; make all with one"));
}

static void write_padded(const char *name, const int64_t *ids, const int64_t *mask, const int64_t *labels)
{
    int64_t shape[2] = {2, 4};
    struct st_entry entries[3] = {
        {"input_ids", DT_I64, 2, shape}, {"attention_mask", DT_I64, 2, shape}, {"labels", DT_I64, 2, shape}};
    struct st_writer *w = NULL;
    struct dt_error err = {0};
    assert_int_equal(st_writer_open(&w, in(name), entries, labels != NULL ? 3 : 2, NULL, &err), 0);
    assert_int_equal(st_writer_data(w, ids, 64, &err), 0);
    assert_int_equal(st_writer_data(w, mask, 64, &err), 0);
    if (labels != NULL) {
        assert_int_equal(st_writer_data(w, labels, 64, &err), 0);
    }
    assert_int_equal(st_writer_close(w, &err), 0);
}

/* Padding behind a row's tokens is no target of a model without a mask, whose tokens see none behind them; in other
 * places it is refused. */
static void test_padding(void **state)
{
    (void)state;
    static const int64_t ids[8] = {5, 6, 1, 1, 7, 1, 1, 1}, behind[8] = {1, 1, 0, 0, 1, 0, 0, 0},
                         before[8] = {1, 1, 1, 1, 0, 1, 1, 1}, own[8] = {-100, 9, -100, -100, -100, -100, -100, -100};
    struct data_source s;
    struct dt_error err = {0};
    int32_t x[4], y[4];
    write_padded("p1.safetensors", ids, behind, NULL);
    write_padded("p2.safetensors", ids, behind, own);
    assert_int_equal(open_tokens(&s, in("p[12].safetensors"), "auto", 4, &err), 0);
    assert_int_equal(s.blank_count, 2);
    read_sample(&s, 0, x, y);
    assert_memory_equal(y, ((int32_t[]){6, -100, -100, -100}), sizeof y);
    read_sample(&s, 1, x, y);
    assert_memory_equal(y, ((int32_t[]){-100, -100, -100, -100}), sizeof y);
    read_sample(&s, 2, x, y);
    assert_memory_equal(y, ((int32_t[]){9, -100, -100, -100}), sizeof y);
    data_close(&s);
    write_padded("p3.safetensors", ids, before, NULL);
    assert_int_equal(open_tokens(&s, in("p3.safetensors"), "auto", 4, &err), -1);
    assert_non_null(strstr(err.text, "attention_mask: sample 2 has masked tokens before others"));
    write_padded("p4.safetensors", ids, behind, ids);
    assert_int_equal(open_tokens(&s, in("p4.safetensors"), "auto", 4, &err), -1);
    assert_non_null(strstr(err.text, "labels: sample 1 has one for a masked token; give it -100"));
    struct batch_layout both = batch_tokens(1, 4, 0, "vocab_size"); /* tokens see those behind them */
    both.field[0].causal = false;
    assert_int_equal(data_open(&s, in("p1.safetensors"), "auto", &both, &err), -1);
    assert_non_null(strstr(err.text, "attention_mask: the model sees every token"));
}

/* A row's first label is judged by nothing, so it is no target. */
static void test_blank_rows(void **state)
{
    (void)state;
    enum { ROWS = 20, T = 3 };
    int64_t ids[ROWS * T], labels[ROWS * T];
    for (int i = 0; i < ROWS * T; i++) {
        int row = i / T, k = i % T;
        ids[i] = i;
        labels[i] = row % 3 == 0 && k > 0 ? -100 : i; /* rows 0, 3, ... 18 */
    }
    labels[5 * T + 1] = -100; /* one is left */
    write_tensors("blank-a.safetensors", DT_I64, ROWS, T, ids, NULL);
    write_tensors("blank-b.safetensors", DT_I64, ROWS, T, ids, labels);
    struct data_source s;
    struct dt_error err = {0};
    assert_int_equal(open_tokens(&s, in("blank-[ab].safetensors"), "auto", T, &err), 0);
    assert_int_equal(s.blank_count, 7);
    assert_string_equal(s.blank_path, in("blank-b.safetensors"));
    assert_int_equal(s.blank_row, 1);
    struct sampler order = {.sample_count = s.sample_count, .seed = 3, .shuffle = true};
    int32_t x[2 * T], y[2 * T];
    for (int64_t first = 0; first < s.sample_count; first++) {
        for (int rank = 0; rank < 3; rank++) {
            bool none = fill_batch(&s, &order, 1, first, rank, 3, 2, x, y) == 0;
            assert_int_equal(data_blank(&s, &order, 1, first, rank, 3, 2), none);
        }
    }
    data_close(&s);
    assert_int_equal(open_tokens(&s, in("blank-a.safetensors"), "auto", T, &err), 0);
    assert_true(s.blank_count == 0 && s.blank_path == NULL);
    data_close(&s);
}

/* A file of images with classes: "pixel_values" (rows, 2) and "labels" (rows). */
static void write_classes(const char *name, int64_t rows, const int32_t *labels)
{
    struct st_entry entries[2] = {{"pixel_values", DT_F32, 2, (int64_t[]){rows, 2}}, {"labels", DT_I32, 1, &rows}};
    struct st_writer *w = NULL;
    struct dt_error err = {0};
    float pixels[16] = {1, 2, 3, 4, 5, 6, 7, 8};
    assert_true(rows <= 8);
    assert_int_equal(st_writer_open(&w, in(name), entries, 2, NULL, &err), 0);
    assert_int_equal(st_writer_data(w, pixels, (size_t)rows * 2 * sizeof *pixels, &err), 0);
    assert_int_equal(st_writer_data(w, labels, (size_t)rows * sizeof *labels, &err), 0);
    assert_int_equal(st_writer_close(w, &err), 0);
}

static const struct batch_layout images = {2,
                                           {{.name = "pixel_values", .type = DT_F32, .dims = 2, .most = {1, 2}},
                                            {.name = "labels",
                                             .type = DT_I32,
                                             .dims = 1,
                                             .most = {1},
                                             .targets = true,
                                             .value = "class",
                                             .values = "classes",
                                             .below = 3,
                                             .below_key = "num_labels"}}};

static void test_classes(void **state)
{
    (void)state;
    struct data_source s;
    struct dt_error err = {0};
    char expected[512];
    write_classes("classes.safetensors", 4, (int32_t[]){0, 2, 7, -100});
    assert_int_equal(data_open(&s, in("classes.safetensors"), "auto", &images, &err), 0);
    assert_int_equal(s.blank_count, 1);
    assert_int_equal(data_check_range(&s, &(struct job){.evaluates = false}, "data.val", &err), -1);
    (void)snprintf(expected, sizeof expected,
                   "data.val: %s/classes.safetensors: labels: sample 3 has class 7, but the model has 3 classes; raise "
                   "model.num_labels to 8 or more",
                   folder);
    assert_string_equal(err.text, expected);
    /* a loaded model may have another head, but no other vocabulary */
    struct job loaded = {.model = {.load = "folder", .ops = model_find("bert")}};
    assert_int_equal(data_check_range(&s, &loaded, "data.val", &err), -1);
    assert_string_equal(err.text, expected);
    s.layout.field[1].below_key = "vocab_size";
    assert_int_equal(data_check_range(&s, &loaded, "data.val", &err), -1);
    assert_non_null(strstr(err.text, "but the model has 3 classes; a loaded model keeps its vocab_size: give data"));
    data_close(&s);
    write_classes("classes.safetensors", 4, (int32_t[]){0, 2, 1, -7});
    assert_int_equal(data_open(&s, in("classes.safetensors"), "auto", &images, &err), -1);
    (void)snprintf(expected, sizeof expected,
                   "%s/classes.safetensors: labels: sample 4 has class -7; classes are numbers from 0 to 2, and -100 "
                   "where there is no target",
                   folder);
    assert_string_equal(err.text, expected);
}

static void refused_images(const char *path, const char *why)
{
    struct data_source s;
    struct dt_error err = {0};
    assert_int_equal(data_open(&s, in(path), "auto", &images, &err), -1);
    if (strstr(err.text, why) == NULL || strstr(err.text, "dtdata") != NULL) {
        fail_msg("%s", err.text);
    }
}

/* Advice leads to files that the model can read: none to dtdata where it reads tensors, or where tensors
 * were meant. */
static void test_advice(void **state)
{
    (void)state;
    struct data_source s;
    struct dt_error err = {0};
    char wanted[512];
    write_file("words.bin", "hello", 5);
    refused_images("none.bin", "none.bin: no such file; name a folder of images by class, IDX, CIFAR or ");
    refused_images("words.bin", "words.bin: is no safetensors file, and no IDX or CIFAR file; the model reads these, "
                                "and folders of images by class");
    refused_images("images", "images: no such file; name a folder of images");
    assert_int_equal(mkdir(in("set"), 0755), 0);
    refused_images("set", "set: is a folder without folders of images, one for each class; ");
    assert_int_equal(mkfifo(in("pipe"), 0600), 0);
    refused_images("pipe", "pipe: is not a regular file; give safetensors files");
    assert_int_equal(open_tokens(&s, in("set"), "auto", 4, &err), -1);
    assert_non_null(strstr(err.text, "/set/train-*.bin"));
    write_file("set/a.safetensors", "", 0);
    assert_int_equal(open_tokens(&s, in("set"), "auto", 4, &err), -1);
    (void)snprintf(wanted, sizeof wanted, ": is a folder; name its files, for example %s/*.safetensors", in("set"));
    assert_non_null(strstr(err.text, wanted));
    assert_int_equal(open_tokens(&s, in("set/b.safetensors"), "auto", 4, &err), -1);
    assert_non_null(strstr(err.text, "b.safetensors: no such file; name safetensors files"));
    assert_int_equal(unlink(in("set/a.safetensors")), 0);
    assert_int_equal(rmdir(in("set")), 0);
    assert_int_equal(unlink(in("pipe")), 0);
}

/* A batch has the fields of its layout and no other. Without targets, its weight is the number
 * of its samples. */
static void test_layouts_without_labels(void **state)
{
    (void)state;
    struct data_source s;
    struct dt_error err = {0};
    struct batch_layout layout = images;
    layout.count = 1;
    write_classes("images.safetensors", 3, (int32_t[]){0, 2, 1});
    assert_int_equal(data_open(&s, in("images.safetensors"), "auto", &layout, &err), 0);
    assert_int_equal(s.blank_count, 0);
    struct sampler order = {.sample_count = s.sample_count};
    float pixels[4];
    struct batch b = {.layout = &s.layout, .samples = 2, .at = {pixels}};
    assert_int_equal(data_batch(&s, &order, 0, 2, 0, 1, &b, NULL), 0); /* one is beyond the end */
    assert_int_equal(b.weight, 1);
    assert_memory_equal(pixels, ((const float[]){5, 6, 0, 0}), sizeof pixels);
    data_close(&s);

    layout = batch_tokens(1, 3, 0, "vocab_size");
    layout.count = 1;
    int32_t ids[6];
    write_shard("ids.bin", SHARD_MAGIC_U16, 1, 4, (uint32_t[]){4, 5, 6, 7}, 4, 2);
    write_tensors("ids.safetensors", DT_I32, 1, 3, (int32_t[]){4, 5, 6}, NULL);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(data_open(&s, in(i == 0 ? "ids.bin" : "ids.safetensors"), "auto", &layout, &err), 0);
        order.sample_count = s.sample_count;
        b = (struct batch){.layout = &s.layout, .samples = 2, .at = {ids}};
        assert_int_equal(data_batch(&s, &order, 0, 0, 0, 1, &b, NULL), 0);
        assert_int_equal(b.weight, 1);
        assert_memory_equal(ids, ((const int32_t[]){4, 5, 6, 0, 0, 0}), sizeof ids);
        data_close(&s);
    }
    /* labels of the next position, of no ids that could stand in for them */
    layout = batch_tokens(1, 3, 0, "vocab_size");
    layout.field[0] = layout.field[1];
    layout.count = 1;
    assert_int_equal(data_open(&s, in("ids.safetensors"), "auto", &layout, &err), -1);
    assert_non_null(strstr(err.text, "no labels (n, T) of I64 or I32"));
}

static int collect(void *context, const unsigned char *text, size_t size, struct dt_error *err)
{
    (void)err;
    dt_text_add(context, text, size);
    return 0;
}

static void test_corpus(void **state)
{
    (void)state;
    struct dt_error err = {0};
    struct corpus c = {0};
    assert_int_equal(dt_file_mkdirs(in("text/sub"), &err), 0);
    write_file("text/b.txt", "second", 6);
    write_file("text/a.txt", "first", 5);
    write_file("text/sub/c.txt", "third", 5);
    write_file("text/.hidden", "no", 2);
    write_file("text/binary", "a\0b", 3);
    write_file("text/empty", "", 0);
    gzFile gz = gzopen(in("text/z.txt.gz"), "wb");
    assert_non_null(gz);
    assert_int_equal(gzputs(gz, "packed"), 6);
    assert_int_equal(gzclose(gz), Z_OK);
    assert_int_equal(symlink(".", in("text/loop")), 0);
    assert_int_equal(symlink("nowhere", in("text/dangling")), 0);
    assert_int_equal(corpus_add(&c, in("text"), &err), 0);
    assert_int_equal(c.count, 4);
    assert_int_equal(c.binary.count, 1);
    assert_string_equal(c.binary.first, in("text/binary"));
    assert_int_equal(c.empty.count, 1);
    assert_int_equal(c.again.count, 0);
    assert_string_equal(c.files[0].path, in("text/a.txt"));
    assert_string_equal(c.files[2].path, in("text/sub/c.txt"));
    struct dt_text text;
    dt_text_init(&text);
    struct corpus_left_out marks = {0};
    assert_int_equal(corpus_read(c.files[3].path, collect, &text, &marks, &err), 0);
    assert_string_equal(text.data, "packed");
    dt_text_reset(&text);
    assert_int_equal(corpus_read(c.files[1].path, collect, &text, &marks, &err), 0);
    assert_string_equal(text.data, "second");
    assert_int_equal(marks.count, 0);
    for (double fraction = 0.01; fraction < 1; fraction += 0.1) { /* never none, never all */
        size_t held_out = 0;
        for (size_t i = 0; i < c.count; i++) {
            c.files[i].held_out = false;
        }
        assert_int_equal(corpus_hold_out(&c, fraction, &err), 0);
        for (size_t i = 0; i < c.count; i++) {
            held_out += c.files[i].held_out;
        }
        assert_in_range(held_out, 1, c.count - 1);
    }
    corpus_close(&c);
    assert_int_equal(corpus_add(&c, in("text/missing"), &err), -1);
    assert_non_null(strstr(err.text, "text/missing: No such file or directory"));
    corpus_close(&c);
    assert_int_equal(corpus_add(&c, in("text/a.txt"), &err), 0);
    assert_int_equal(corpus_hold_out(&c, 0.5, &err), -1);
    corpus_close(&c);
    unsigned char packed[256]; /* cut short */
    FILE *f = fopen(in("text/z.txt.gz"), "rb");
    assert_non_null(f);
    size_t size = fread(packed, 1, sizeof packed, f);
    (void)fclose(f);
    write_file("cut.gz", packed, size - 6);
    dt_text_reset(&text);
    assert_int_equal(corpus_read(in("cut.gz"), collect, &text, &marks, &err), -1);
    assert_non_null(strstr(err.text, "cut.gz: damaged or cut short"));
    dt_text_clear(&text);
}

/* ---- what the kernel is asked for ---- */

enum { ASKED = 100000 };
static struct {
    uintptr_t begin, end;
} asked[ASKED];
static int asked_count;

/* In place of the C library's: the whole program's calls are noted. */
int madvise(void *at, size_t size, int advice)
{
    if (advice == MADV_WILLNEED && asked_count < ASKED) {
        asked[asked_count].begin = (uintptr_t)at;
        asked[asked_count++].end = (uintptr_t)at + size;
    }
    return (int)syscall(SYS_madvise, at, size, advice);
}

/* Where a file is mapped. */
static uintptr_t mapped_at(const char *path)
{
    char line[512];
    unsigned long begin = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    assert_non_null(maps);
    while (begin == 0 && fgets(line, sizeof line, maps) != NULL) {
        (void)(strstr(line, path) != NULL && sscanf(line, "%lx", &begin) == 1);
    }
    (void)fclose(maps);
    assert_true(begin != 0);
    return begin;
}

/* Every byte was asked for. */
static bool is_asked(const char *path, int64_t at, int64_t size)
{
    uintptr_t from = mapped_at(path) + (uintptr_t)at, end = from + (uintptr_t)size;
    for (int i = 0; i < asked_count && from < end; i++) { /* in order, as they were asked for */
        from = asked[i].begin <= from && from < asked[i].end ? asked[i].end : from;
    }
    return from >= end;
}

/* A sample in the middle, one over the end of a shard, the last one, each with its last label,
 * and nothing else; beyond the epoch there is nothing. */
static void test_expect(void **state)
{
    (void)state;
    enum { EACH = 1 << 20, LENGTH = 300000 }; /* more than the kernel brings at once */
    struct shard_writer *w = NULL;
    struct dt_error err = {0};
    assert_int_equal(open_writer(&w, in("expect"), "train", EACH, false, &err), 0);
    for (int i = 0; i < 2 * EACH; i++) {
        assert_int_equal(shard_writer_add(w, &(int32_t){(int32_t)(i % 251)}, 1, &err), 0);
    }
    assert_int_equal(shard_writer_finish(w, &err), 0);
    assert_int_equal(shard_writer_commit(w, &err), 0);
    shard_writer_close(w, false);
    const char *first = in("expect/train-00000.bin"), *second = in("expect/train-00001.bin");
    struct data_source s;
    assert_int_equal(open_tokens(&s, in("expect/*.bin"), "auto", LENGTH, &err), 0);
    assert_int_equal(s.sample_count, 6);
    struct sampler order = {.sample_count = s.sample_count};
    const struct {
        int64_t sample;
        int64_t in_first, first_bytes, in_second, second_bytes; /* ids from the shard's first one
                                                                 * on */
    } parts[] = {{1, LENGTH, 2 * (LENGTH + 1), 0, 0},
                 {3, 3 * LENGTH, 2 * (EACH - 3 * LENGTH), 0, 2 * (4 * LENGTH + 1 - EACH)},
                 {5, 0, 0, 5 * LENGTH - EACH, 2 * (LENGTH + 1)}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        asked_count = 0;
        /* of rank 1 of 10: that one; its next is beyond the epoch */
        assert_int_equal(data_expect(&s, &order, 0, parts[i].sample - 1, 1, 10, 2), 1);
        assert_true(is_asked(first, SHARD_HEADER_BYTES + 2 * parts[i].in_first, parts[i].first_bytes));
        assert_true(is_asked(second, SHARD_HEADER_BYTES + 2 * parts[i].in_second, parts[i].second_bytes));
        int64_t bytes = 0;
        for (int k = 0; k < asked_count; k++) {
            bytes += (int64_t)(asked[k].end - asked[k].begin);
        }
        assert_in_range(bytes, parts[i].first_bytes + parts[i].second_bytes,
                        parts[i].first_bytes + parts[i].second_bytes + 2 * 4096);
    }
    asked_count = 0;
    assert_int_equal(data_expect(&s, &order, 0, 500, 0, 1, 7), 7);
    assert_int_equal(asked_count, 0);
    assert_int_equal(data_expect(&s, &order, 0, 0, 0, 2, 3), 0); /* 0, 2, 4 */
    assert_true(is_asked(first, SHARD_HEADER_BYTES, 2 * (LENGTH + 1)));
    data_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_same_data),
        cmocka_unit_test(test_failed_overwrite),
        cmocka_unit_test(test_a_shard_is_missing),
        cmocka_unit_test(test_literal_names),
        cmocka_unit_test(test_abandoned),
        cmocka_unit_test(test_many_sources),
        cmocka_unit_test(test_wide_and_resumed),
        cmocka_unit_test(test_bad_shards),
        cmocka_unit_test(test_bad_info),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_tensors_of_tokenizers),
        cmocka_unit_test(test_padding),
        cmocka_unit_test(test_blank_rows),
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_optional_and_derived),
        cmocka_unit_test(test_layouts_without_labels),
        cmocka_unit_test(test_advice),
        cmocka_unit_test(test_corpus),
        cmocka_unit_test(test_expect),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
