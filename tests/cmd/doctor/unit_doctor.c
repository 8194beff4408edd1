/* covers: cmd/doctor */
/* doctor's pure parts: parsers, facts, lines, and what is judged how. */
#include "cmd/doctor/checks.h"
#include "cmd/doctor/look.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void cpu_lists(void **state)
{
    (void)state;
    uint8_t set[4], ends[4] = {0x0f, 0x01, 0x00, 0x80};
    assert_int_equal(look_cpu_list("0-3,8,31\n", set, 4), 6);
    assert_memory_equal(set, ends, 4);
    assert_int_equal(look_cpu_list("1,1,0-1", set, 4), 2);
    assert_int_equal(look_cpu_list("", set, 4), 0);
    static const char *const wrong[] = {"a", "3-1", "32", "0-32", "-1", "1;2", "1-", "0x1", "1-2-3"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(look_cpu_list(wrong[i], set, 4), -1);
    }
}

static void sizes(void **state)
{
    (void)state;
    static const char text[] = "MemTotal:       16 kB\nMemFree: 3 kB\nHugePages_Total:  7\nBad: x\n";
    assert_true(look_size_after(text, "MemTotal") == 16384);
    assert_true(look_size_after(text, "MemFree") == 3072);
    assert_true(look_size_after(text, "HugePages_Total") == 7);
    assert_true(look_size_after(text, "Mem") == -1);
    assert_true(look_size_after(text, "Bad") == -1);
    assert_true(look_size_after("", "MemTotal") == -1);
}

static void facts_are_lines(void **state)
{
    (void)state;
    struct facts f;
    char out[8];
    facts_init(&f);
    assert_null(facts_get(&f, "a", out, sizeof out));
    facts_set(&f, "ab", "1");
    facts_set(&f, "a", "two\nlines%s", "");
    facts_set(&f, "a", "second");
    facts_add(&f, "late 2.5\nempty \n");
    assert_string_equal(facts_get(&f, "ab", out, sizeof out), "1");
    /* as much as fits, and one line */
    assert_string_equal(facts_get(&f, "a", out, sizeof out), "two lin");
    assert_string_equal(facts_get(&f, "empty", out, sizeof out), "");
    assert_null(facts_get(&f, "b", out, sizeof out));
    assert_true(facts_number(&f, "late", 0) == 2.5 && facts_number(&f, "a", -1) == -1 &&
                facts_number(&f, "none", 9) == 9);
    facts_clear(&f);
}

static void lines_of_a_report(void **state)
{
    (void)state;
    struct doctor_report r;
    doctor_report_init(&r, false);
    r.group = "limits";
    r.check = "open files";
    doctor_say(&r, DOCTOR_OK, NULL, "%d", 4096);
    doctor_say(&r, DOCTOR_FAIL, "do this and then that, at some length so that it wraps", "host\033[31m: bad");
    doctor_report_end(&r);
    assert_string_equal(dt_text_str(&r.out),
                        "\nlimits\n  ok    open files: 4096\n"
                        "  fail  open files: host?[31m: bad; do this and then that, at some length so\n"
                        "        that it wraps\n\n1 ok, 0 warn, 1 fail\n");
    assert_string_equal(r.first_fail,
                        "open files: host?[31m: bad; do this and then that, at some length so that it wraps");
    doctor_report_clear(&r);
    doctor_report_init(&r, true);
    r.group = "g";
    r.check = "c";
    doctor_say(&r, DOCTOR_WARN, "a", "\"x\"");
    doctor_say(&r, DOCTOR_OK, NULL,
               "host \xc2\x9b"
               "2J \xe2\x80\xae Zürich");
    doctor_report_end(&r);
    assert_non_null(strstr(dt_text_str(&r.out), "\"host ??2J ??? Zürich\""));
    *strchr(r.out.data, '\n') = '\0';
    assert_string_equal(
        dt_text_str(&r.out),
        "{\"group\": \"g\", \"check\": \"c\", \"level\": \"warn\", \"finding\": \"\\\"x\\\"\", \"advice\": \"a\"}");
    doctor_report_clear(&r);
}

/* A job from one text per rank of lines "name value"; null: that rank is missing. */
static void make_view(struct doctor_view *v, int count, const char *const *facts)
{
    struct doctor_rank *ranks = dt_alloc((size_t)count * sizeof *ranks);
    for (int i = 0; i < count; i++) {
        facts_init(&ranks[i].facts);
        ranks[i].here = facts[i] != NULL;
        if (facts[i] != NULL) {
            facts_add(&ranks[i].facts, facts[i]);
        }
    }
    doctor_view_init(v, ranks, count, false);
}

/* "warn finding; advice" of a check, its lines separated by newlines. */
static const char *judge(const struct doctor_view *v, const char *check)
{
    static char out[2048];
    struct doctor_report r;
    char key[80];
    size_t n = 0;
    doctor_report_init(&r, true);
    doctor_judge(v, &r);
    (void)snprintf(key, sizeof key, "\"check\": \"%s\"", check);
    out[0] = '\0';
    char *rest = r.out.data;
    for (char *line; rest != NULL && (line = strsep(&rest, "\n")) != NULL;) {
        char level[8], finding[512], advice[512] = "";
        if (strstr(line, key) != NULL &&
            sscanf(strstr(line, "\"level\""),
                   "\"level\": \"%7[^\"]\", \"finding\": \"%511[^\"]\", \"advice\": \"%511[^\"]", level, finding,
                   advice) >= 2) {
            n += (size_t)snprintf(out + n, sizeof out - n, "%s%s %s%s%s", n > 0 ? "\n" : "", level, finding,
                                  advice[0] != '\0' ? "; " : "", advice);
        }
    }
    doctor_report_clear(&r);
    return out;
}

static void hosts_and_ranks(void **state)
{
    (void)state;
    struct doctor_view v;
    struct dt_text text;
    dt_text_init(&text);
    make_view(&v, 5,
              (const char *const[]){"host a\ngroup 0\n", "host b\ngroup 1\n", NULL, "host a\ngroup 0\n",
                                    "host b\ngroup 2\n"});
    doctor_view_describe(&v, &text);
    assert_string_equal(dt_text_str(&text), "5 ranks on 3 hosts: a (ranks 0, 3), b#1 (rank 1), b#2 (rank 4)");
    assert_string_equal(
        judge(&v, "ranks"),
        "fail no word from rank 2; look at the first lines of their output, and whether their hosts reach MASTER_ADDR");
    doctor_view_clear(&v);
    dt_text_clear(&text);
}

static void values_stand_side_by_side(void **state)
{
    (void)state;
    struct doctor_view v;
    struct dt_text text;
    dt_text_init(&text);
    make_view(&v, 3,
              (const char *const[]){"host a\ngroup 0\nx 1\ny 5\nz -1\n", "host b\ngroup 1\nx 2\nz 7\n",
                                    "host c\ngroup 2\nx 1\nz 8\n"});
    assert_int_equal(view_values(&v, "x", &text), 2);
    assert_string_equal(dt_text_str(&text), "a: 1; b: 2; c: 1");
    dt_text_reset(&text);
    assert_int_equal(view_values(&v, "y", &text), 1);
    assert_string_equal(dt_text_str(&text), "5");
    dt_text_reset(&text);
    assert_int_equal(view_values(&v, "none", &text), 0);
    assert_string_equal(dt_text_str(&text), "not known");
    int host = -1;
    assert_true(view_least(&v, "z", &host) == 7 && host == 1); /* -1 is unlimited */
    assert_true(view_least(&v, "none", NULL) == -1);
    doctor_view_clear(&v);
    dt_text_clear(&text);
}

/* Facts of two hosts with a rank each, and what is said. */
static const struct {
    const char *check, *a, *b, *says;
} rows[] = {
    {"open files", "files 4096\n", "files 1024\n", "ok a: 4096; b: 1024"},
    {"open files", "files -1\n", "files -1\n", "ok unlimited"},
    {"open files", "files 4096\n", "files 1023\n",
     "warn b: 1023, should be at least 1024; ulimit -n 65536, or LimitNOFILE= in the scheduler's unit"},
    {"open files", "files 65\n", "files 65\n",
     "fail 65, should be at least 1024; ulimit -n 65536, or LimitNOFILE= in the scheduler's unit"},
    {"processes", "processes 4096\npids_limit 20\n", "processes 4096\npids_limit 20\n",
     "warn 20, should be at least 64; raise the control group's pids.max (docker run --pids-limit, TasksMax=)"},
    {"processes", "processes 63\npids_limit -1\n", "processes 90\npids_limit -1\n",
     "warn a: 63, should be at least 64; ulimit -u 65536; threads of all ranks count"},
    {"processes", "root 1\nprocesses 3\npids_limit -1\n", "root 1\n", "ok unlimited"},
    {"locked memory", "locked 8388608\n", "locked -1\n", "ok 8.0 MiB, enough without InfiniBand"},
    {"locked memory", "locked 8388608\nrdma 1\n", "locked -1\n",
     "warn 8.0 MiB; InfiniBand pins its buffers: ulimit -l unlimited, or LimitMEMLOCK=infinity"},
    {"shared memory", "shm 1e9\nshm_free 1e9\n", "shm 67108864\nshm_free 67108864\n",
     "warn b: 64.0 MiB, 64.0 MiB free; PyTorch's data loaders die of SIGBUS: docker run --shm-size=8g, or an emptyDir "
     "of medium Memory"},
    {"shared memory", "shm 1073741824\nshm_free 1024\n", "shm 2e9\nshm_free 2e9\n",
     "warn a: 1.0 GiB, 1.0 KiB free; remove what earlier runs left in /dev/shm"},
    {"somaxconn", "backlog 128\n", "backlog 4096\n", "ok a: 128; b: 4096"},
    {"somaxconn", "backlog 127\n", "backlog 4096\n",
     "warn a: 127, should be at least 128; connections of many workers at once are refused: sysctl "
     "net.core.somaxconn=4096"},
    {"memory", "memory_free 1e9\nmemory_limit 1048576\n", "memory_free 1e9\nmemory_limit -1\n",
     "warn a: 954 MiB free, control group allows 1.0 MiB; b: 954 MiB free; less than 256 MiB for each rank: ask the "
     "scheduler or container for more"},
    {"reserving memory", "overcommit 2\n", "overcommit 0\n",
     "warn a: vm.overcommit_memory is 2, ulimit -v is unlimited; memory that is only reserved counts: sysctl "
     "vm.overcommit_memory=0, ulimit -v "
     "unlimited"},
    {"dtrun", "version 1\n", "version 2\n", "fail a: 1; b: 2; install the same version on all hosts"},
    {"system", "kernel 6\nmachine x\nlibc 2\n", "kernel 5\nmachine x\nlibc 2\n",
     "ok Linux a: 6; b: 5, x, glibc 2 (kernels differ; that is no harm)"},
    {"MTU", "mtu 1500\n", "mtu 9000\n",
     "warn a: 1500; b: 9000; set the same MTU on all hosts and switches between them"},
    {"own name", "own_addresses 10.0.0.1\naddress 10.0.0.1\n", "own_addresses 127.0.1.1\naddress 10.0.0.2\n",
     "warn b resolves to 127.0.1.1 on itself; programs that publish it (gloo, MPI) are not reached by other hosts: put "
     "its real address into "
     "/etc/hosts"},
    {"own name", "own_addresses 127.0.1.1\naddress 127.0.0.1\n", "own_addresses 127.0.1.1\naddress 127.0.0.1\n",
     "ok 127.0.1.1"},
    {"own name", "own_addresses 10.0.0.1\nown_seconds 4.2\n", "own_error no answer of the resolver\n",
     "warn a: the look-up took 4.2 s; look at the servers in /etc/resolv.conf\n"
     "warn b does not resolve on itself: no answer of the resolver; add it to /etc/hosts or DNS: some programs look up "
     "their own name"},
    {"MASTER_ADDR", "master a\nmaster_addresses 127.0.1.1\n", "master a\nmaster_addresses 10.0.0.1\n",
     "ok a is a: 127.0.1.1; b: 10.0.0.1"},
    {"MASTER_ADDR", "master a\nmaster_addresses 10.0.0.1\n", "master a\nmaster_addresses 127.0.0.1 ::1\n",
     "fail b takes a for itself (127.0.0.1 ::1); correct /etc/hosts there, or use an address as endpoint"},
    {"outgoing", "outgoing_ports 999\n", "outgoing_ports 28000\n",
     "warn a: 999 ports for outgoing connections, should be 1000; sysctl net.ipv4.ip_local_port_range=\\"},
    {"round trip", "store_seconds 1e-4\n", "store_seconds 0.3\n",
     "fail 1 MiB did not come back on 2 of 2 hosts; look at the network between the hosts and MASTER_ADDR"},
    {"cores", "boot x\ncores 0-1\ncores_allowed 2\ncores_usable 2\n",
     "boot y\ncores 7\ncores_allowed 1\ncores_usable 1\n", "ok a: 1 rank on 2 cores; b: 1 rank on 1 core"},
    {"cores", "boot x\ncores 3\ncores_allowed 1\ncores_usable 1\n",
     "boot x\ncores 3\ncores_allowed 1\ncores_usable 1\n",
     "warn a: 2 ranks on 1 core; ranks that share a core wait for each other at every sum: at most 1 rank there, or "
     "more CPUs for the job"},
    {"cores", "boot x\ncores 0-7\ncores_allowed 8\ncores_usable 1\n",
     "boot x\ncores 0-7\ncores_allowed 8\ncores_usable 1\n",
     "ok a: 2 ranks on 2 cores"}, /* two containers of one machine, each allowed the time of one
                                   * core */
    {"threads", "boot x\nomp 4\ncores 0-2\ncores_allowed 3\ncores_usable 3\n", "boot y\n",
     "warn a: OMP_NUM_THREADS=4, times 1 ranks, is more than its 3 cores; lower OMP_NUM_THREADS, or unset it"},
    {"interfaces", "interfaces e 1\ninterface_missing X=ib\n", "interfaces e 2\n",
     "fail a: X=ib names none of its interfaces; correct or unset the variable"},
    {"temporary files", "tmp /t\ntmp_free 1e9\n", "tmp /u\ntmp_free 1024\n",
     "warn b: /u: 1.0 KiB free; logs go there by default: make room, or use --log_dir"},
    {"temporary files", "\n", "\n", "ok not known"},
    {"memory", "\n", "memory_free 1e9\n", "ok a: not known; b: 954 MiB free"},
    {"ranks", "late limits\n", "\n",
     "ok all 2 answered\nfail rank 0: looking at limits did not come back; a file system or a resolver of this host "
     "hangs"},
};

static void judgements(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct doctor_view v;
        char *a = dt_format("host a\ngroup 0\n%s", rows[i].a), *b = dt_format("host b\ngroup 1\n%s", rows[i].b);
        make_view(&v, 2, (const char *const[]){a, b});
        assert_string_equal(judge(&v, rows[i].check), rows[i].says);
        doctor_view_clear(&v);
        free(a);
        free(b);
    }
}

static void eight_ranks_on_seven_cores(void **state)
{
    (void)state;
    struct doctor_view v;
    const char *all[8];
    for (int i = 0; i < 8; i++) {
        all[i] = i % 2 == 0 ? "host a\ngroup 0\nboot x\ncores 0-3\ncores_allowed 4\ncores_usable 4\n"
                            : "host a\ngroup 0\nboot x\ncores 4-6\ncores_allowed 3\ncores_usable 3\n";
    }
    make_view(&v, 8, all);
    assert_string_equal(
        judge(&v, "cores"),
        "warn a: 8 ranks on 7 cores; ranks that share a core wait for each other at every sum: at most 7 ranks "
        "there, or more CPUs for the job");
    doctor_view_clear(&v);
    make_view(&v, 7, all);
    assert_string_equal(judge(&v, "cores"), "ok a: 7 ranks on 7 cores");
    doctor_view_clear(&v);
}

/* What the second host found on its way to the first. */
static const struct {
    const char *check, *pairs, *says;
} ways[] = {
    {"messages", "0.state ok\n0.latency 2e-5\n0.rate 1e9\ndone 1\n",
     "ok 1 pair passes 64 bytes to 1 MiB; slowest round trip 20 us (b, a), slowest way 1.000 GB/s (b, a)"},
    {"messages", "0.state unreachable\n0.cause x: connect: Connection refused\ndone 1\n",
     "fail b cannot reach a: x: connect: Connection refused; a firewall rejects it: allow TCP between the hosts, or "
     "give --port_range and open that"},
    {"messages", "0.state unreachable\n0.cause x: connect: timed out\ndone 1\n",
     "fail b cannot reach a: x: connect: timed out; a firewall drops it, or the address is of another network: allow "
     "TCP between the hosts, or "
     "give --local_addr"},
    {"messages", "0.state silent\n0.cause nothing came\n0.from_server 1\ndone 1\n",
     "fail a to b: nothing came; something between them takes connections and passes nothing: look for a proxy or "
     "firewall"},
    {"messages", "0.state lost\n0.passed 1228\n0.lost 1248\n0.from_server 0\ndone 1\n",
     "fail large messages are lost: b to a, 1228 bytes pass, 1248 do not; the way takes smaller packets than its ends "
     "think, and their errors "
     "(ICMP) are dropped: let them through, or ip link set dev e1 mtu 1280 on both"},
    {"messages", "0.state slow\n0.rate 125000\ndone 1\n",
     "warn b to a: 0.125 MB/s, 1 MiB did not arrive in 5 s; training over it will be slow: look at link speed and "
     "load"},
    {"messages", "0.state lossy\ndone 1\n",
     "warn b to a: packets are lost at times; look at cables and error counters (ip -s link)"},
    {"messages", "", "fail 1 host did not come back from measuring"},
    {"clock", "0.clock_ahead 0.0004\ndone 1\n", "ok hosts are at most 0.4 ms apart; set by NTP"},
    {"clock", "0.clock_ahead 3600\ndone 1\n",
     "warn a is 3600.0 s ahead of b; times in logs will not fit together, nothing else depends on them; start chrony "
     "or systemd-timesyncd"},
    {"clock", "0.clock_ahead -7\ndone 1\n",
     "warn b is 7.0 s ahead of a; times in logs will not fit together, nothing else depends on them; start chrony or "
     "systemd-timesyncd"},
};

static void ways_between_hosts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        struct doctor_view v;
        make_view(&v, 2, (const char *const[]){"host a\ngroup 0\n", "host b\ngroup 1\ninterface e1\n"});
        facts_add(&v.hosts[0].found, "done 1\n");
        facts_add(&v.hosts[1].found, ways[i].pairs);
        assert_string_equal(judge(&v, ways[i].check), ways[i].says);
        doctor_view_clear(&v);
    }
}

static void sums(void **state)
{
    (void)state;
    struct doctor_view v;
    make_view(&v, 1, (const char *const[]){"host a\ngroup 0\n"});
    facts_add(&v.sums,
              "backend shm\n0.bytes 1024\n0.seconds 1e-5\n0.wrong 0\n1.bytes 1048576\n1.seconds 1e-3\n1.wrong 3\n");
    assert_string_equal(
        judge(&v, "all-reduce"),
        "ok 1.0 KiB across 1 ranks by shm: right, 10.0 us, 0.102 GB/s\n"
        "fail 1.0 MiB: 3 elements are not the sum; memory or network hardware changes bits: take the host out "
        "and test it");
    doctor_view_clear(&v);
}

static void the_store(void **state)
{
    (void)state;
    struct doctor_view v;
    make_view(&v, 2,
              (const char *const[]){"host a\ngroup 0\nstore_seconds 1e-4\n", "host b\ngroup 1\nstore_seconds 0.3\n"});
    facts_add(&v.sums, "left_out x\n"); /* then nothing large was tried */
    assert_string_equal(judge(&v, "round trip"),
                        "warn 300000 us at most (rank 1); the way to MASTER_ADDR is slow, or its host is busy");
    assert_string_equal(judge(&v, "all-reduce"), "info not tried, x");
    facts_clear(&v.sums);
    facts_add(&v.hosts[0].found, "stored 1\n");
    assert_string_equal(
        judge(&v, "round trip"),
        "fail 1 MiB did not come back on 1 of 2 hosts; look at the network between the hosts and MASTER_ADDR");
    facts_add(&v.hosts[1].found, "stored 0\n");
    assert_string_equal(
        judge(&v, "round trip"),
        "fail b: 1 MiB came back changed; memory or network hardware changes bits: take the host out and test it");
    doctor_view_clear(&v);
}

static void ports_that_are_none(void **state)
{
    (void)state;
    static const char *const wrong[] = {"DTRUN_PORT_RANGE=9-8", "DTRUN_PORT_RANGE=0-8", "DTRUN_PORT_RANGE=1",
                                        "DTRUN_PORT_RANGE=1-70000", "DTRUN_PORT_RANGE=1-9x"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct facts f;
        char *env[] = {(char *)(uintptr_t)wrong[i], NULL}, text[128];
        facts_init(&f);
        look_ports(&f, env);
        assert_non_null(facts_get(&f, "port_error", text, sizeof text));
        assert_non_null(strstr(text, "not LO-HI"));
        assert_null(facts_get(&f, "port_range", text, sizeof text));
        facts_clear(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpu_lists),          cmocka_unit_test(sizes),
        cmocka_unit_test(facts_are_lines),    cmocka_unit_test(lines_of_a_report),
        cmocka_unit_test(hosts_and_ranks),    cmocka_unit_test(values_stand_side_by_side),
        cmocka_unit_test(judgements),         cmocka_unit_test(eight_ranks_on_seven_cores),
        cmocka_unit_test(ways_between_hosts), cmocka_unit_test(sums),
        cmocka_unit_test(the_store),          cmocka_unit_test(ports_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
