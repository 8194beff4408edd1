/* covers: worker/data/shards_foreign.c worker/data/shards.c worker/data/tokens.c */
/* Token shards of Megatron and nanoGPT: read as they are, by mark or by name; damaged in every way;
 * beyond 2^31 ids. */
#include "base/file.h"
#include "base/text.h"
#include "tests/lib/folder.h"
#include "worker/data/data.h"
#include "worker/data/shards.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
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

/* The parts of an index; each test changes one. */
struct index {
    char magic[9];
    int64_t version;
    unsigned char type;
    int64_t sequences, entries;
    int32_t lengths[4];
    int64_t places[4], documents[4];
    bool modes;
    size_t cut; /* bytes that are missing at the end */
};

static void write_index(const char *name, const struct index *x)
{
    char bytes[256];
    size_t at = 0, n = (size_t)x->sequences < 4 ? (size_t)x->sequences : 4;
    size_t m = (size_t)x->entries < 4 ? (size_t)x->entries : 4;
    const struct {
        const void *from;
        size_t size;
    } parts[] = {{x->magic, 9},      {&x->version, 8},      {&x->type, 1},
                 {&x->sequences, 8}, {&x->entries, 8},      {x->lengths, n * 4},
                 {x->places, n * 8}, {x->documents, m * 8}, {"\0\0\0", x->modes ? n : 0}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        memcpy(bytes + at, parts[i].from, parts[i].size);
        at += parts[i].size;
    }
    write_file(name, bytes, at - x->cut);
}

/* Ten ids in three sequences and two documents. */
static struct index ten(unsigned char type, int64_t width)
{
    return (struct index){.magic = "MMIDIDX\0",
                          .version = 1,
                          .type = type,
                          .sequences = 3,
                          .entries = 3,
                          .lengths = {4, 1, 5},
                          .places = {0, 4 * width, 5 * width},
                          .documents = {0, 2, 3}};
}

static int open_source(struct data_source *s, const char *glob, const char *format, int64_t length,
                       struct dt_error *err)
{
    const struct batch_layout layout = batch_tokens(1, length, 0, "vocab_size");
    return data_open(s, glob, format, &layout, err);
}

/* Checks that the source is the stream of ids 10, 11, ..., 19. */
static void check_ten(const char *glob, const char *format)
{
    struct data_source s;
    struct dt_error err = {0};
    int32_t ids[3], labels[3];
    if (open_source(&s, glob, format, 3, &err) != 0) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(s.token_count, 10);
    assert_int_equal(s.sample_count, 3);
    assert_int_equal(s.vocabulary, 20);
    for (int32_t i = 0; i < 3; i++) {
        (void)s.ops->read(&s, i, 0, &(struct batch){.layout = &s.layout, .at = {ids, labels}}, 0, &err);
        for (int32_t t = 0; t < 3; t++) {
            assert_int_equal(ids[t], 10 + 3 * i + t);
            assert_int_equal(labels[t], 11 + 3 * i + t);
        }
    }
    data_close(&s);
}

static void write_ten(const char *name, size_t width)
{
    char bytes[80] = {0};
    for (size_t i = 0; i < 10; i++) {
        bytes[i * width] = (char)(10 + i);
    }
    write_file(name, bytes, 10 * width);
}

static void test_megatron(void **state)
{
    (void)state;
    static const struct {
        unsigned char type;
        size_t width;
    } types[] = {{1, 1}, {2, 1}, {3, 2}, {4, 4}, {5, 8}, {8, 2}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        struct index x = ten(types[i].type, (int64_t)types[i].width);
        x.modes = i % 2 == 1;
        write_ten("text_document.bin", types[i].width);
        write_index("text_document.idx", &x);
        check_ten(in("text_document.bin"), "auto");
        check_ten(in("text_document*"), "tokens"); /* the index is no shard */
    }
}

static void refused_index(const struct index *x, const char *message)
{
    struct data_source s;
    struct dt_error err = {0};
    write_ten("bad.bin", 2);
    write_index("bad.idx", x);
    assert_int_equal(open_source(&s, in("bad.bin"), "auto", 3, &err), -1);
    if (strstr(err.text, message) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", message, err.text);
    }
}

static void test_bad_index(void **state)
{
    (void)state;
    struct index x = ten(8, 2);
    x.version = 2;
    refused_index(&x, "bad.idx: not an index of version 1");
    x = ten(7, 4);
    refused_index(&x, "bad.idx: type 7 of the ids: only integers");
    x = ten(9, 2);
    refused_index(&x, "bad.idx: type 9 of the ids");
    x = ten(8, 2);
    x.cut = 1;
    refused_index(&x, "bad.idx: 3 sequences and 3 document entries do not make 93 bytes: cut short or damaged");
    x = ten(8, 2);
    x.sequences = INT64_MAX / 4;
    refused_index(&x, "cut short or damaged");
    x = ten(8, 2);
    x.entries = -1;
    refused_index(&x, "cut short or damaged");
    x = ten(8, 2);
    x.lengths[1] = -1;
    refused_index(&x, "bad.idx: sequence 2 has -1 ids");
    x = ten(8, 2);
    x.lengths[2] = 6;
    refused_index(&x, "bad.idx: sequence 3 has 6 ids, more than the 20 bytes of");
    x = ten(8, 2);
    x.places[2] = 8;
    refused_index(&x, "bad.idx: sequence 3 begins at byte 8, and the one before it ends at 10");
    x = ten(8, 2);
    x.lengths[2] = 4;
    refused_index(&x, "bad.bin: 20 bytes, but");
    x = ten(8, 2);
    x.documents[2] = 2;
    refused_index(&x, "bad.idx: document entry 3 is 2, not a sequence from 2 to 3");
    x = ten(8, 2);
    x.documents[1] = 4;
    refused_index(&x, "bad.idx: document entry 2 is 4");
    x = ten(4, 4); /* 20 bytes hold 5 ids of 4 bytes */
    refused_index(&x, "bad.idx: sequence 3 has 5 ids, more than the 20 bytes");
    write_index("alone.idx", &x);
    struct data_source s;
    struct dt_error err = {0};
    assert_int_equal(open_source(&s, in("alone.idx"), "tokens", 3, &err), -1);
    assert_non_null(strstr(err.text, "alone.idx: "));
}

/* A negative id is damage, in every type that has a sign. */
static void test_negative(void **state)
{
    (void)state;
    static const struct {
        unsigned char type;
        size_t width;
    } types[] = {{2, 1}, {3, 2}, {4, 4}, {5, 8}};
    for (size_t i = 0; i < 4; i++) {
        unsigned char bytes[80] = {0};
        struct index x = ten(types[i].type, (int64_t)types[i].width);
        memset(bytes + 3 * types[i].width, 0xff, types[i].width);
        write_file("negative.bin", bytes, 10 * types[i].width);
        write_index("negative.idx", &x);
        struct data_source s;
        struct dt_error err = {0};
        assert_int_equal(open_source(&s, in("negative.bin"), "auto", 3, &err), -1);
        assert_non_null(strstr(err.text, "largest id 4294967295 is beyond any vocabulary"));
    }
}

static void test_nanogpt(void **state)
{
    (void)state;
    struct data_source s;
    struct dt_error err = {0};
    write_ten("train.bin", 2);
    check_ten(in("train.bin"), "nanogpt");
    /* without its name it could be anything */
    assert_int_equal(open_source(&s, in("train.bin"), "auto", 3, &err), -1);
    assert_non_null(strstr(err.text, "neither a token shard nor a safetensors file"));
    write_ten("wide.bin", 4);
    write_file("wide.bin.json", "{\"dtype\": \"uint32\", \"tokens\": 10}", 33);
    check_ten(in("wide.bin"), "nanogpt");
    write_file("wide.bin.json", "{\"dtype\": \"int64\"}", 18);
    assert_int_equal(open_source(&s, in("wide.bin"), "nanogpt", 3, &err), -1);
    assert_non_null(strstr(err.text, "wide.bin.json: dtype is neither \"uint16\" nor \"uint32\""));
    write_file("wide.bin.json", "{\"tokens\": 10}", 14);
    assert_int_equal(open_source(&s, in("wide.bin"), "nanogpt", 3, &err), -1);
    assert_non_null(strstr(err.text, "wide.bin.json: says 10 tokens, the shard has 20"));
    write_file("odd.bin", "abc", 3);
    assert_int_equal(open_source(&s, in("odd.bin"), "nanogpt", 3, &err), -1);
    assert_non_null(strstr(err.text, "odd.bin: 3 bytes, not a multiple of the 2 of an id"));
    write_file("none.bin", "", 0);
    assert_int_equal(open_source(&s, in("none.bin"), "nanogpt", 3, &err), -1);
    assert_non_null(strstr(err.text, "none.bin: is empty"));
    char llmc[SHARD_HEADER_BYTES + 20] = {0};
    const int32_t header[] = {SHARD_MAGIC_U16, 1, 10};
    memcpy(llmc, header, sizeof header);
    write_file("llmc.bin", llmc, sizeof llmc);
    assert_int_equal(open_source(&s, in("llmc.bin"), "nanogpt", 3, &err), -1);
    assert_non_null(strstr(err.text, "llmc.bin: begins with the header of a token shard"));
}

/* A sparse file of more than 2^31 ids, of which the last three are not 0. */
static void write_beyond(const char *name, int64_t count)
{
    const uint16_t last[] = {7, 8, 9};
    int fd = open(in(name), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && ftruncate(fd, count * 2) == 0);
    assert_int_equal(pwrite(fd, last, sizeof last, (count - 3) * 2), sizeof last);
    (void)close(fd);
}

static void check_beyond(const char *name, const char *format, int64_t count)
{
    struct data_source s;
    struct dt_error err = {0};
    int32_t ids[2], labels[2];
    if (open_source(&s, in(name), format, 2, &err) != 0) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(s.token_count, count);
    assert_int_equal(s.sample_count, (count - 1) / 2);
    (void)s.ops->read(&s, s.sample_count - 1, 0, &(struct batch){.layout = &s.layout, .at = {ids, labels}}, 0, &err);
    assert_int_equal(ids[0], 7);
    assert_int_equal(labels[1], 9);
    data_close(&s);
}

static void test_beyond_31_bits(void **state)
{
    (void)state;
    const int64_t count = ((int64_t)1 << 31) + 9;
    /* so that nobody reads 4 GB of zeros */
    static const char json[] = "{\"max_id\": 9, \"xxh3\": \"0123456789abcdef\"}";
    const struct index x = {.magic = "MMIDIDX\0",
                            .version = 1,
                            .type = 8,
                            .sequences = 2,
                            .entries = 2,
                            .lengths = {INT32_MAX, 10},
                            .places = {0, (int64_t)INT32_MAX * 2},
                            .documents = {0, 2}};
    write_beyond("far.bin", count);
    write_file("far.bin.json", json, sizeof json - 1);
    check_beyond("far.bin", "nanogpt", count);
    write_index("far.idx", &x);
    check_beyond("far.bin", "auto", count);
}

/* A file so large that it is read whole once in a process; one that has changed is read again, and hashes are
 * those of the whole, whatever parts it is read in. */
static void test_large(void **state)
{
    (void)state;
    const int64_t count = 40 << 20, places[] = {65535, 65536, (40 << 20) - 4};
    uint16_t *ids = calloc((size_t)count, sizeof *ids);
    uint64_t last = 0;
    write_beyond("large.bin", count);
    ids[count - 3] = 7;
    ids[count - 2] = 8;
    ids[count - 1] = 9;
    for (int i = 0; i < 6; i++) { /* each state twice */
        struct data_source s;
        struct dt_error err = {0};
        const uint16_t id = (uint16_t)(1000 - i);
        if (i % 2 == 0) {
            int fd = open(in("large.bin"), O_WRONLY | O_CLOEXEC);
            ids[places[i / 2]] = id;
            assert_int_equal(pwrite(fd, &id, sizeof id, places[i / 2] * 2), sizeof id);
            (void)close(fd);
        }
        assert_int_equal(open_source(&s, in("large.bin"), "nanogpt", 2, &err), 0);
        assert_int_equal(s.vocabulary, 1001);
        assert_int_equal(s.files[0].hash, XXH3_64bits(ids, (size_t)count * sizeof *ids));
        assert_true((s.files[0].hash == last) == (i % 2 == 1));
        last = s.files[0].hash;
        data_close(&s);
    }
    free(ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_megatron), cmocka_unit_test(test_bad_index),      cmocka_unit_test(test_negative),
        cmocka_unit_test(test_nanogpt),  cmocka_unit_test(test_beyond_31_bits), cmocka_unit_test(test_large),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
