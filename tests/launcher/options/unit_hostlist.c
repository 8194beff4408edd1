/* covers: launcher/options/hostlist.c */
/* Lists of hosts: every form, its limits, and that what is wrong is refused without a trace. */
#include "launcher/options/hostlist.h"

#include "base/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef int reader(struct hostlist *l, const char *text, struct dt_error *err);

/* Names (with :slots where there are some) separated by blanks, or the error. */
static const char *read_list(reader *read, const char *text)
{
    static char out[1024];
    struct hostlist l;
    struct dt_error err;
    struct dt_text t;
    hostlist_init(&l);
    dt_text_init(&t);
    if (read(&l, text, &err) != 0) {
        assert_int_equal(err.status, DT_INVALID);
        assert_true(l.count == 0 && l.hosts == NULL);
        dt_text_puts(&t, err.text);
    }
    for (size_t i = 0; i < l.count; i++) {
        dt_text_printf(&t, "%s%s", i > 0 ? " " : "", l.hosts[i].name);
        if (l.hosts[i].slots > 0) {
            dt_text_printf(&t, ":%d", l.hosts[i].slots);
        }
    }
    assert_true(t.size < sizeof out);
    strcpy(out, dt_text_str(&t));
    dt_text_clear(&t);
    hostlist_clear(&l);
    return out;
}

static void test_slurm(void **state)
{
    static const char *const cases[][2] = {
        {"h1", "h1"},
        {"a[1-3,07-10]b[0-1],c", "a1b0 a1b1 a2b0 a2b1 a3b0 a3b1 a07b0 a07b1 a08b0 a08b1 a09b0 a09b1 a10b0 a10b1 c"},
        {"gpu[001-003,10],login,rack[1-2]n[01-02]",
         "gpu001 gpu002 gpu003 gpu10 login rack1n01 rack1n02 rack2n01 rack2n02"},
        {"h[5-9,12]", "h5 h6 h7 h8 h9 h12"},
        {"h[5]", "h5"},
        {"dt-h[2-3]", "dt-h2 dt-h3"},
        {"n[9-11]", "n9 n10 n11"},
        {"n[098-101]", "n098 n099 n100 n101"},
        {"a b\nc,, d", "a b c d"},
        {"[1-2]x", "1x 2x"},
        {"a[1][2]", "a12"},
        {"h1.example.org", "h1.example.org"},
        {"", "the list of hosts is empty"},
        {" ,\n", "the list of hosts is empty"},
        {"a[1-3", "a[1-3: a bracket is not closed"},
        {"a1]", "a1]: a bracket is not open"},
        {"b,a[]", "a[]: a bracket holds numbers and ranges of at most nine digits; example: a[1-3,7]"},
        {"a[1,]", "a[1,]: a bracket holds numbers and ranges of at most nine digits; example: a[1-3,7]"},
        {"a[x]", "a[x]: a bracket holds numbers and ranges of at most nine digits; example: a[1-3,7]"},
        {"a[1x]", "a[1x]: a bracket holds numbers, - and , only"},
        {"a[3-1]", "a[3-1]: a range must be LO-HI with LO <= HI"},
        {"a[1-]", "a[1-]: a range must be LO-HI with LO <= HI"},
        {"a[1-2-3]", "a[1-2-3]: a bracket holds numbers, - and , only"},
        {"a[[1]]", "a[[1]]: a bracket holds numbers and ranges of at most nine digits; example: a[1-3,7]"},
        {"a[0000000001]",
         "a[0000000001]: a bracket holds numbers and ranges of at most nine digits; example: a[1-3,7]"},
        {"a[1-999999999]", "a[1-999999999]: more than 65536 hosts"},
        {"a[0-999][0-999]", "a[0-999][0-999]: more than 65536 hosts"},
        {"a[0-65535],b", "b: more than 65536 hosts"},
        {"a;b", "a;b: a host name has letters, digits and _ . : - only"},
        {"-a", "-a: a name begins with -"},
        {"a\x01[1]", "a?[1]: a host name has letters, digits and _ . : - only"},
        {"a[0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0]",
         "a[0][0][0][0][0][0][0][0][0][0][0][0][0]...: more than 16 brackets in one name"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_string_equal(read_list(hostlist_read_slurm, cases[i][0]), cases[i][1]);
    }
}

static void test_limits(void **state)
{
    (void)state;
    struct hostlist l;
    struct dt_error err;
    hostlist_init(&l);
    assert_int_equal(hostlist_read_slurm(&l, "n[0-255]x[000-255]", &err), 0);
    assert_int_equal(l.count, HOSTLIST_MAX_HOSTS);
    assert_string_equal(l.hosts[65535].name, "n255x255");
    assert_string_equal(l.hosts[256].name, "n1x000");
    hostlist_clear(&l);
    char name[400];
    memset(name, 'a', sizeof name);
    name[255] = '\0';
    assert_int_equal(hostlist_read_slurm(&l, name, &err), 0);
    hostlist_clear(&l);
    strcpy(name + 255, "a");
    assert_int_equal(hostlist_read_slurm(&l, name, &err), -1);
    assert_non_null(strstr(err.text, "longer than 255 bytes"));
    strcpy(name + 250, "[100000-100001]");
    assert_int_equal(hostlist_read_slurm(&l, name, &err), -1);
    assert_int_equal(hostlist_read_words(&l, name, &err), -1);
}

static void test_words(void **state)
{
    (void)state;
    assert_string_equal(read_list(hostlist_read_words, "a\na\nb\r\nb\nc\n"), "a:2 b:2 c:1");
    assert_string_equal(read_list(hostlist_read_words, "a b a"), "a:2 b:1");
    assert_string_equal(read_list(hostlist_read_words, "\n"), "the list of hosts is empty");
    assert_string_equal(read_list(hostlist_read_words, "\xef\xbb\xbf"
                                                       "a\nb\n"),
                        "a:1 b:1");
    assert_string_equal(read_list(hostlist_read_words, "a[1]"),
                        "a[1]: a host name has letters, digits and _ . : - only");
}

static void test_encodings(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
        const char *cause; /* null: text */
    } rows[] = {
        {"\xef\xbb\xbf"
         "a\n",
         5, NULL},
        {"\xff\xfe"
         "a\0\n\0",
         6, "looks like UTF-16; save it as UTF-8"},
        {"\0\0\xfe\xff\0\0\0a", 8, "looks like UTF-32; save it as UTF-8"},
        {"a\nb\0", 4, "line 2: a byte 0: no text file; write it anew"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct dt_text text;
        struct dt_error err;
        dt_text_init(&text);
        dt_text_add(&text, rows[i].bytes, rows[i].size);
        assert_int_equal(hostlist_check_text(&text, &err), rows[i].cause == NULL ? 0 : -1);
        if (rows[i].cause != NULL) {
            assert_string_equal(err.text, rows[i].cause);
        }
        dt_text_clear(&text);
    }
}

static void test_counts(void **state)
{
    (void)state;
    assert_string_equal(read_list(hostlist_read_counts, "a 4 b.x 2 "), "a:4 b.x:2");
    assert_string_equal(read_list(hostlist_read_counts, "a 4 b 2 a 1"), "a:5 b:2");
    assert_string_equal(read_list(hostlist_read_counts, "a 4 b"),
                        "b: after a host its number of slots is wanted, from 1 to 65536");
    assert_string_equal(read_list(hostlist_read_counts, "a b 4"),
                        "a b 4: after a host its number of slots is wanted, from 1 to 65536");
    assert_string_equal(read_list(hostlist_read_counts, "a 0"),
                        "a 0: after a host its number of slots is wanted, from 1 to 65536");
    assert_string_equal(read_list(hostlist_read_counts, "a 65537"),
                        "a 65537: after a host its number of slots is wanted, from 1 to 65536");
    assert_string_equal(read_list(hostlist_read_counts, "a 4x"),
                        "a 4x: after a host its number of slots is wanted, from 1 to 65536");
    assert_string_equal(read_list(hostlist_read_counts, "a 65536 a 1"), "a 1: more than 65536 slots on one host");
    assert_string_equal(read_list(hostlist_read_counts, " "), "the list of hosts is empty");
    struct hostlist l;
    struct dt_error err;
    hostlist_init(&l);
    hostlist_drop_first_slot(&l);
    assert_int_equal(hostlist_read_counts(&l, "a 2 b 3", &err), 0);
    hostlist_drop_first_slot(&l);
    assert_true(l.count == 2 && l.hosts[0].slots == 1);
    hostlist_drop_first_slot(&l);
    assert_true(l.count == 1 && strcmp(l.hosts[0].name, "b") == 0 && l.hosts[0].slots == 3);
    hostlist_clear(&l);
}

static void test_hostfile(void **state)
{
    (void)state;
    assert_string_equal(
        read_list(hostlist_read_hostfile,
                  "# both racks\nworker-1 slots=4 # old\n\n  worker-2\tslots = 2 max_slots=8\r\nworker-3"),
        "worker-1:4 worker-2:2 worker-3");
    assert_string_equal(read_list(hostlist_read_hostfile, "a slots=1\n\na slots=1"),
                        "line 3: a slots=1: this host is there twice; write it once with all its slots");
    assert_string_equal(read_list(hostlist_read_hostfile, "\xef\xbb\xbf"
                                                          "a slots=2"),
                        "a:2");
    assert_string_equal(read_list(hostlist_read_hostfile, "a slots=0"),
                        "line 1: slots=0: slots must be a number from 1 to 4096");
    assert_string_equal(read_list(hostlist_read_hostfile, "a slots=4096"), "a:4096");
    assert_string_equal(read_list(hostlist_read_hostfile, "a slots=4097"),
                        "line 1: slots=4097: slots must be a number from 1 to 4096");
    assert_string_equal(read_list(hostlist_read_hostfile, "a slots=1 slots=2"),
                        "line 1: slots=2: slots is given twice");
    assert_string_equal(read_list(hostlist_read_hostfile, "a gpus=1"),
                        "line 1: gpus=1: after a host only slots=N is known; example: node1 slots=8");
    assert_string_equal(read_list(hostlist_read_hostfile, "a b"),
                        "line 1: b: after a host only slots=N is known; example: node1 slots=8");
    assert_string_equal(read_list(hostlist_read_hostfile, "a b\r\nc\n"),
                        "line 1: b: after a host only slots=N is known; example: node1 slots=8");
    assert_string_equal(read_list(hostlist_read_hostfile, "me@a slots=1"),
                        "line 1: me@a slots=1: a user is said to ssh: --ssh='ssh -l USER', or in its configuration");
    assert_string_equal(read_list(hostlist_read_hostfile, "a:22"),
                        "line 1: a:22: a port is said to ssh: --ssh='ssh -p PORT', or in its configuration");
    assert_string_equal(read_list(hostlist_read_hostfile, "fd00::7 slots=2 # me@a:22"), "fd00::7:2");
    assert_string_equal(read_list(hostlist_read_hostfile, "#\n#\n"), "the list of hosts is empty");
}

/* Filters of the file "w0 slots=4, w1 slots=4, c, fd00::7 slots=2", as DeepSpeed's runner reads
 * them. */
static const char *filter(const char *text, bool exclude)
{
    static char out[512];
    struct hostlist l;
    struct dt_error err;
    hostlist_init(&l);
    assert_int_equal(hostlist_read_hostfile(&l, "w0 slots=4\nw1 slots=4\nc\nfd00::7 slots=2\n", &err), 0);
    if (hostlist_filter(&l, text, exclude, &err) != 0) {
        assert_int_equal(err.status, DT_INVALID);
        hostlist_clear(&l);
        return strcpy(out, err.text);
    }
    size_t n = 0;
    for (size_t i = 0; i < l.count; i++) {
        n += (size_t)snprintf(out + n, sizeof out - n, "%s%s/%d", i > 0 ? " " : "", l.hosts[i].name, l.hosts[i].slots);
        for (int k = 0; l.hosts[i].chosen != NULL && k < l.hosts[i].slots; k++) {
            n += (size_t)snprintf(out + n, sizeof out - n, "%c%d", k > 0 ? ',' : ':', l.hosts[i].chosen[k]);
        }
    }
    hostlist_clear(&l);
    return out;
}

static void test_filters(void **state)
{
    static const struct {
        const char *text, *included, *excluded;
    } cases[] = {
        {"w0", "w0/4", "w1/4 c/0 fd00::7/2"},
        {"w1@w0", "w0/4 w1/4", "c/0 fd00::7/2"}, /* in the order of the file */
        {"w0@w1:0,2", "w0/4 w1/2:0,2", "w1/2:1,3 c/0 fd00::7/2"},
        {"w1:3,1,3", "w1/2:3,1", "w0/4 w1/2:0,2 c/0 fd00::7/2"}, /* slots in the order of the text, each once */
        {"w1:0@w1:2", "w1/2:0,2", "w0/4 w1/2:1,3 c/0 fd00::7/2"},
        {"w1:0@w1", "w1/4", "w0/4 c/0 fd00::7/2"},
        {"w1:3,2,1,0", "w1/4:3,2,1,0", "w0/4 c/0 fd00::7/2"},
        {"c", "c/0", "w0/4 w1/4 fd00::7/2"},
        {"fd00::7", "fd00::7/2", "w0/4 w1/4 c/0"},
        {"fd00::7:1", "fd00::7/1:1", "w0/4 w1/4 c/0 fd00::7/1:0"},
        {"w0@w1@c@fd00::7", "w0/4 w1/4 c/0 fd00::7/2", "no host is left"},
    };
    static const char *const wrong[][2] = {
        {"", "(empty): a name is missing; example: worker-0@worker-1:0,2"},
        {"w0@", "(empty): a name is missing; example: worker-0@worker-1:0,2"},
        {"w0@@w1", "(empty): a name is missing; example: worker-0@worker-1:0,2"},
        {"w2", "w2: hostname not found in hostfile"},
        {"w0,w1", "w0,w1: hostname not found in hostfile"},
        {"W0", "W0: hostname not found in hostfile"},
        {"w\n2@w0", "w?2: hostname not found in hostfile"},
        {"w0:4", "w0:4: no slot 4 specified on this host, which has 4 (from 0)"},
        {"w0:0,99999999", "w0:0,99999999: slots must be numbers separated by commas; example: worker-1:0,2"},
        {"w0:", "w0:: slots must be numbers separated by commas; example: worker-1:0,2"},
        {"w0:0,", "w0:0,: slots must be numbers separated by commas; example: worker-1:0,2"},
        {"w0:-1", "w0:-1: slots must be numbers separated by commas; example: worker-1:0,2"},
        {"w0:0-2", "w0:0-2: slots must be numbers separated by commas; example: worker-1:0,2"},
        {"c:0", "c:0: the hostfile says no slots=N of this host, so they have no numbers"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_string_equal(filter(cases[i].text, false), cases[i].included);
        assert_string_equal(filter(cases[i].text, true), cases[i].excluded);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_string_equal(filter(wrong[i][0], false), wrong[i][1]);
        assert_string_equal(filter(wrong[i][0], true), wrong[i][1]);
    }
}

static void test_find_and_counts(void **state)
{
    (void)state;
    struct hostlist l;
    struct dt_error err;
    hostlist_init(&l);
    assert_int_equal(hostlist_read_words(&l, "a b.x.org B 10.0.0.1 c.y", &err), 0);
    assert_int_equal(hostlist_find(&l, "a.x.org"), 0);
    assert_int_equal(hostlist_find(&l, "B"), 1 + 1);
    assert_int_equal(hostlist_find(&l, "b.x.org"), 1);
    assert_int_equal(hostlist_find(&l, "10.0.0.2"), -1);
    assert_int_equal(hostlist_find(&l, "c.z"), -1);
    assert_int_equal(hostlist_find(&l, "c"), 4);
    assert_int_equal(hostlist_find(&l, ""), -1);
    hostlist_clear(&l);
    static const int expected[] = {4, 4, 3, -1};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(hostlist_count_at("4(x2),3", i), expected[i]);
    }
    assert_int_equal(hostlist_count_at("1", 0), 1);
    assert_int_equal(hostlist_count_at("1", -1), -1);
    assert_int_equal(hostlist_count_at("junk", 0), -1);
    assert_int_equal(hostlist_count_at("", 0), -1);
    assert_int_equal(hostlist_count_at("4(x", 0), -1);
    assert_int_equal(hostlist_count_at("4(x0),5", 0), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slurm),           cmocka_unit_test(test_limits),    cmocka_unit_test(test_words),
        cmocka_unit_test(test_counts),          cmocka_unit_test(test_encodings), cmocka_unit_test(test_hostfile),
        cmocka_unit_test(test_find_and_counts), cmocka_unit_test(test_filters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
