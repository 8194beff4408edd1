/* Checks of what lies between processes and hosts: clocks, names, ports, the store, messages,
 * sums. */
#include "cmd/doctor/checks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define CLOCK_S 1.0 /* apart by more: times in logs of two hosts cannot be compared */
#define SLOW_NAME_S 1.0

void check_clock(const struct doctor_view *v, struct doctor_report *r)
{
    /* Each pair was measured by its later host, so the first host's clock is known from all it
     * talked to. */
    double most = 0, uncertain = 0;
    const char *of = NULL, *to = NULL;
    bool known = false;
    for (int h = 0; h < v->host_count; h++) {
        for (int k = 0; k < v->host_count; k++) {
            char name[48];
            (void)snprintf(name, sizeof name, "%d.clock_ahead", v->hosts[k].group);
            double ahead = facts_number(&v->hosts[h].found, name, NAN);
            if (isnan(ahead)) {
                continue;
            }
            known = true;
            if (fabs(ahead) > fabs(most) || of == NULL) {
                most = ahead;
                of = v->hosts[ahead > 0 ? k : h].name;
                to = v->hosts[ahead > 0 ? h : k].name;
            }
        }
    }
    struct dt_text text;
    dt_text_init(&text);
    for (int h = 0; h < v->host_count; h++) {
        uncertain += facts_number(view_host(v, h), "clock_synchronised", 1) == 0;
    }
    if (uncertain > 0) {
        dt_text_printf(&text, "%s by NTP as far as the kernel knows",
                       uncertain < v->host_count ? "not all are set" : "not set");
    } else {
        dt_text_puts(&text, "set by NTP");
    }
    if (known && fabs(most) > CLOCK_S) {
        doctor_say(
            r, DOCTOR_WARN,
            "times in logs will not fit together, nothing else depends on them; start chrony or systemd-timesyncd",
            "%s is %.1f s ahead of %s", of, fabs(most), to);
    } else if (known) {
        doctor_say(r, DOCTOR_OK, NULL, "hosts are at most %.1f ms apart; %s", fabs(most) * 1e3, dt_text_str(&text));
    } else {
        doctor_say(r, DOCTOR_OK, NULL, "%s", dt_text_str(&text));
    }
    dt_text_clear(&text);
}

/* Listen queues: workers of a large job connect to rank 0 at once. */
void check_backlog(const struct doctor_view *v, struct doctor_report *r)
{
    struct dt_text text;
    int host = 0;
    double value = view_least(v, "backlog", &host), good = fmax(128, 2.0 * v->rank_count);
    dt_text_init(&text);
    (void)view_values(v, "backlog", &text);
    if (value >= 0 && value < good) {
        char advice[160];
        (void)snprintf(advice, sizeof advice,
                       "connections of many workers at once are refused: sysctl net.core.somaxconn=%d",
                       good > 4096 ? (int)good : 4096);
        doctor_say(r, DOCTOR_WARN, advice, "%s%s%.0f, should be at least %.0f",
                   v->host_count > 1 ? v->hosts[host].name : "", v->host_count > 1 ? ": " : "", value, good);
    } else {
        doctor_say(r, DOCTOR_OK, NULL, "%s", dt_text_str(&text));
    }
    dt_text_clear(&text);
}

/* All addresses of a list lead back to the machine that asks. */
static bool only_loopback(const char *addresses)
{
    for (const char *p = addresses; *p != '\0'; p += strcspn(p, " "), p += *p == ' ') {
        if (strncmp(p, "127.", 4) != 0 && (strncmp(p, "::1", 3) != 0 || (p[3] != ' ' && p[3] != '\0'))) {
            return false;
        }
    }
    return addresses[0] != '\0';
}

/* All hosts are this machine, so nobody needs to find it by name. */
static bool is_local_job(const struct doctor_view *v)
{
    char address[64];
    return v->host_count < 2 ||
           (facts_get(view_host(v, 0), "address", address, sizeof address) != NULL && only_loopback(address));
}

void check_name(const struct doctor_view *v, struct doctor_report *r)
{
    int before = r->counts[DOCTOR_WARN];
    for (int h = 0; h < v->host_count; h++) {
        const struct facts *f = view_host(v, h);
        const char *name = v->hosts[h].name;
        char text[256];
        double seconds = facts_number(f, "own_seconds", 0);
        if (facts_get(f, "own_error", text, sizeof text) != NULL) {
            doctor_say(r, DOCTOR_WARN, "add it to /etc/hosts or DNS: some programs look up their own name",
                       "%s does not resolve on itself: %s", name, text);
        } else if (facts_get(f, "own_addresses", text, sizeof text) != NULL && only_loopback(text) &&
                   !is_local_job(v)) {
            doctor_say(r, DOCTOR_WARN,
                       "programs that publish it (gloo, MPI) are not reached by other hosts: put its real address into "
                       "/etc/hosts",
                       "%s resolves to %s on itself", name, text);
        } else if (seconds > SLOW_NAME_S) {
            doctor_say(r, DOCTOR_WARN, "look at the servers in /etc/resolv.conf", "%s: the look-up took %.1f s", name,
                       seconds);
        }
    }
    if (r->counts[DOCTOR_WARN] == before) {
        struct dt_text text;
        dt_text_init(&text);
        (void)view_values(v, "own_addresses", &text);
        doctor_say(r, DOCTOR_OK, NULL, "%s", dt_text_str(&text));
        dt_text_clear(&text);
    }
}

void check_master(const struct doctor_view *v, struct doctor_report *r)
{
    char master[128] = "", text[256];
    (void)facts_get(view_host(v, 0), "master", master, sizeof master);
    bool literal = only_loopback(master) || strcmp(master, "localhost") == 0;
    for (int h = 0; h < v->host_count; h++) {
        const struct facts *f = view_host(v, h);
        if (facts_get(f, "master_error", text, sizeof text) != NULL) {
            doctor_say(r, DOCTOR_FAIL, "give an address, or add the name to DNS or /etc/hosts", "%s: %s: %s",
                       v->hosts[h].name, master, text);
            return;
        }
        if (h > 0 && !literal && facts_get(f, "master_addresses", text, sizeof text) != NULL && only_loopback(text)) {
            doctor_say(r, DOCTOR_FAIL, "correct /etc/hosts there, or use an address as endpoint",
                       "%s takes %s for itself (%s)", v->hosts[h].name, master, text);
            return;
        }
    }
    struct dt_text all;
    dt_text_init(&all);
    (void)view_values(v, "master_addresses", &all);
    doctor_say(r, DOCTOR_OK, NULL, strcmp(dt_text_str(&all), master) == 0 ? "%s" : "%s is %s", master,
               dt_text_str(&all));
    dt_text_clear(&all);
}

void check_interfaces(const struct doctor_view *v, struct doctor_report *r)
{
    struct dt_text text;
    bool several = false;
    dt_text_init(&text);
    for (int h = 0; h < v->host_count; h++) {
        char list[256], used[32], missing[128];
        const struct facts *f = view_host(v, h);
        if (facts_get(f, "interface_missing", missing, sizeof missing) != NULL) {
            doctor_say(r, DOCTOR_FAIL, "correct or unset the variable", "%s: %s names none of its interfaces",
                       v->hosts[h].name, missing);
            dt_text_clear(&text);
            return;
        }
        if (facts_get(f, "loopback", used, sizeof used) != NULL && strcmp(used, "down") == 0) {
            doctor_say(r, DOCTOR_FAIL, "ip link set lo up",
                       "%s: the loopback interface is down; ranks of one host meet there", v->hosts[h].name);
            dt_text_clear(&text);
            return;
        }
        (void)facts_get(f, "interfaces", list, sizeof list);
        bool route = facts_get(f, "interface", used, sizeof used) != NULL;
        several = several || (facts_number(f, "interface_count", 0) > 1 && v->host_count > 1);
        if (h < 4) {
            dt_text_printf(&text, "%s%s: %s%s%s", h > 0 ? "; " : "", v->hosts[h].name,
                           list[0] != '\0' ? list : "loopback only", route ? "; used: " : "", route ? used : "");
        }
    }
    doctor_say(r, DOCTOR_OK, NULL, "%s%s", dt_text_str(&text),
               several ? " (NCCL and gloo choose for themselves: NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME)" : "");
    dt_text_clear(&text);
}

void check_mtu(const struct doctor_view *v, struct doctor_report *r)
{
    struct dt_text text;
    dt_text_init(&text);
    int different = view_values(v, "mtu", &text);
    doctor_say(r, different > 1 ? DOCTOR_WARN : DOCTOR_OK,
               different > 1 ? "set the same MTU on all hosts and switches between them" : NULL, "%s",
               dt_text_str(&text));
    dt_text_clear(&text);
}

void check_port(const struct doctor_view *v, struct doctor_report *r)
{
    for (int i = 0; i < v->rank_count; i++) {
        char text[256];
        if (v->ranks[i].here && facts_get(&v->ranks[i].facts, "port_error", text, sizeof text) != NULL) {
            doctor_say(r, DOCTOR_FAIL, "widen --port_range, or end what has these ports", "rank %d: %s", i, text);
            return;
        }
        if (v->ranks[i].here && facts_get(&v->ranks[i].facts, "serve_error", text, sizeof text) != NULL) {
            doctor_say(r, DOCTOR_FAIL, "look at --local_addr and --port_range", "rank %d: %s", i, text);
            return;
        }
    }
    char range[32];
    if (facts_get(view_host(v, 0), "port_range", range, sizeof range) != NULL) {
        doctor_say(r, DOCTOR_OK, NULL, "possible in %s", range);
    } else {
        doctor_say(r, DOCTOR_OK, NULL, "possible");
    }
}

/* Every pair of ranks of two hosts may need a connection. */
void check_outgoing(const struct doctor_view *v, struct doctor_report *r)
{
    int host = 0;
    double ports = view_least(v, "outgoing_ports", &host), needed = fmax(1000, 4.0 * v->rank_count);
    if (ports >= 0 && ports < needed) {
        doctor_say(r, DOCTOR_WARN, "sysctl net.ipv4.ip_local_port_range=\"32768 60999\"",
                   "%s: %.0f ports for outgoing connections, should be %.0f", v->hosts[host].name, ports, needed);
    } else {
        doctor_say(r, DOCTOR_OK, NULL, ports < 0 ? "not known" : "%.0f ports", ports);
    }
}

void check_usual_ports(const struct doctor_view *v, struct doctor_report *r)
{
    if (!v->alone) {
        return;
    }
    int taken = 0;
    static const int usual[] = {29400, 29500};
    for (int i = 0; i < 2; i++) {
        char key[32], owner[128];
        (void)snprintf(key, sizeof key, "port_%d", usual[i]);
        if (facts_get(view_host(v, 0), key, owner, sizeof owner) != NULL) {
            doctor_say(r, DOCTOR_WARN, "jobs that ask for it fail: end it, or give another port", "%d is taken by %s",
                       usual[i], owner);
            taken++;
        }
    }
    if (taken == 0) {
        doctor_say(r, DOCTOR_OK, NULL, "29400 and 29500 are free");
    }
}

void check_store(const struct doctor_view *v, struct doctor_report *r)
{
    double most = -1;
    int slowest = 0, tried = 0;
    for (int i = 0; i < v->rank_count; i++) {
        double s = v->ranks[i].here ? facts_number(&v->ranks[i].facts, "store_seconds", -1) : -1;
        slowest = s > most ? i : slowest;
        most = s > most ? s : most;
    }
    for (int h = 0; h < v->host_count; h++) {
        double stored = facts_number(&v->hosts[h].found, "stored", -1);
        tried += stored == 1;
        if (stored == 0) {
            doctor_say(r, DOCTOR_FAIL, "memory or network hardware changes bits: take the host out and test it",
                       "%s: 1 MiB came back changed", v->hosts[h].name);
            return;
        }
    }
    const char *large = "";
    char why[64];
    if (facts_get(&v->sums, "left_out", why, sizeof why) == NULL) {
        if (tried < v->host_count) {
            doctor_say(r, DOCTOR_FAIL, "look at the network between the hosts and MASTER_ADDR",
                       "1 MiB did not come back on %d of %d hosts", v->host_count - tried, v->host_count);
            return;
        }
        large = "; 1 MiB comes back as it was";
    }
    doctor_say(r, most > 0.25 ? DOCTOR_WARN : DOCTOR_OK,
               most > 0.25 ? "the way to MASTER_ADDR is slow, or its host is busy" : NULL,
               "%.0f us at most (rank %d)%s", most * 1e6, slowest, large);
}

/* One way between two hosts that is not well. */
static void say_pair(const struct doctor_view *v, struct doctor_report *r, int from, int to, const char *state)
{
    const struct facts *p = &v->hosts[from].found;
    char name[48], cause[256] = "", advice[256], mtu[16] = "";
    const int group = v->hosts[to].group;
    (void)snprintf(name, sizeof name, "%d.cause", group);
    (void)facts_get(p, name, cause, sizeof cause);
    (void)snprintf(name, sizeof name, "%d.lost", group);
    double lost = facts_number(p, name, 0);
    (void)snprintf(name, sizeof name, "%d.passed", group);
    double passed = facts_number(p, name, 0);
    (void)snprintf(name, sizeof name, "%d.from_server", group);
    bool back = facts_number(p, name, 0) == 1;
    (void)snprintf(name, sizeof name, "%d.rate", group);
    double rate = facts_number(p, name, 0);
    const char *sender = v->hosts[back ? to : from].name, *receiver = v->hosts[back ? from : to].name;
    (void)facts_get(view_host(v, from), "interface", mtu, sizeof mtu);
    if (strcmp(state, "unreachable") == 0) {
        bool refused = strstr(cause, "refused") != NULL;
        doctor_say(r, DOCTOR_FAIL,
                   refused ? "a firewall rejects it: allow TCP between the hosts, or give --port_range and open that"
                           : "a firewall drops it, or the address is of another network: allow TCP between the hosts, "
                             "or give --local_addr",
                   "%s cannot reach %s: %s", v->hosts[from].name, v->hosts[to].name, cause);
    } else if (strcmp(state, "silent") == 0) {
        doctor_say(r, DOCTOR_FAIL,
                   "something between them takes connections and passes nothing: look for a proxy or firewall",
                   "%s to %s: %s", sender, receiver, cause);
    } else if (strcmp(state, "lost") == 0) {
        /* 52 bytes: headers of IPv4 and TCP with its time stamps; 72 with IPv6. */
        (void)snprintf(advice, sizeof advice,
                       "the way takes smaller packets than its ends think, and their errors (ICMP) are dropped: let "
                       "them through, or "
                       "ip link set dev %s mtu %.0f on both",
                       mtu[0] != '\0' ? mtu : "IF", passed + 52);
        doctor_say(r, DOCTOR_FAIL, advice, "large messages are lost: %s to %s, %.0f bytes pass, %.0f do not", sender,
                   receiver, passed, lost);
    } else if (strcmp(state, "lossy") == 0) {
        doctor_say(r, DOCTOR_WARN, "look at cables and error counters (ip -s link)",
                   "%s to %s: packets are lost at times", sender, receiver);
    } else {
        doctor_say(r, DOCTOR_WARN, "training over it will be slow: look at link speed and load",
                   "%s to %s: %.3f MB/s, 1 MiB did not arrive in 5 s", sender, receiver, rate / 1e6);
    }
}

void check_pairs(const struct doctor_view *v, struct doctor_report *r)
{
    int measured = 0, wrong = 0, unknown = 0;
    double latency = 0, rate = INFINITY;
    const char *ends[4] = {"", "", "", ""};
    if (v->host_count < 2) {
        doctor_say(r, DOCTOR_OK, NULL, "one host");
        return;
    }
    for (int h = 0; h < v->host_count; h++) {
        char name[48], state[24];
        unknown += facts_number(&v->hosts[h].found, "done", 0) != 1;
        for (int k = 0; k < v->host_count; k++) {
            (void)snprintf(name, sizeof name, "%d.state", v->hosts[k].group);
            if (facts_get(&v->hosts[h].found, name, state, sizeof state) == NULL) {
                continue;
            }
            if (strcmp(state, "ok") != 0) {
                if (wrong++ < 8) {
                    say_pair(v, r, h, k, state);
                }
                continue;
            }
            measured++;
            (void)snprintf(name, sizeof name, "%d.latency", v->hosts[k].group);
            double s = facts_number(&v->hosts[h].found, name, 0);
            if (s >= latency) {
                latency = s;
                ends[0] = v->hosts[h].name;
                ends[1] = v->hosts[k].name;
            }
            (void)snprintf(name, sizeof name, "%d.rate", v->hosts[k].group);
            s = facts_number(&v->hosts[h].found, name, 0);
            if (s <= rate) {
                rate = s;
                ends[2] = v->hosts[h].name;
                ends[3] = v->hosts[k].name;
            }
        }
    }
    if (wrong > 8) {
        doctor_say(r, DOCTOR_FAIL, NULL, "and %d more pairs", wrong - 8);
    }
    if (unknown > 0) {
        doctor_say(r, DOCTOR_FAIL, NULL, "%d host%s did not come back from measuring", unknown, unknown > 1 ? "s" : "");
    }
    if (measured > 0) {
        doctor_say(
            r, DOCTOR_OK, NULL,
            "%d pair%s pass%s 64 bytes to 1 MiB; slowest round trip %.0f us (%s, %s), slowest way %.3f GB/s (%s, %s)",
            measured, measured > 1 ? "s" : "", measured > 1 ? "" : "es", latency * 1e6, ends[0], ends[1], rate / 1e9,
            ends[2], ends[3]);
    }
}

void check_sums(const struct doctor_view *v, struct doctor_report *r)
{
    char text[512];
    if (facts_get(&v->sums, "left_out", text, sizeof text) != NULL) {
        doctor_say(r, DOCTOR_INFO, NULL, "not tried, %s", text);
        return;
    }
    if (facts_get(&v->sums, "error", text, sizeof text) != NULL) {
        doctor_say(r, DOCTOR_FAIL, NULL, "%s", text);
        return;
    }
    for (int i = 0;; i++) {
        char name[32], size[32], backend[16] = "";
        (void)snprintf(name, sizeof name, "%d.bytes", i);
        double bytes = facts_number(&v->sums, name, -1);
        if (bytes < 0) {
            return;
        }
        (void)snprintf(name, sizeof name, "%d.seconds", i);
        double seconds = facts_number(&v->sums, name, 0);
        (void)snprintf(name, sizeof name, "%d.wrong", i);
        double wrong = facts_number(&v->sums, name, 0);
        (void)facts_get(&v->sums, "backend", backend, sizeof backend);
        (void)dt_text_bytes(bytes, size, sizeof size);
        if (wrong > 0) {
            doctor_say(r, DOCTOR_FAIL, "memory or network hardware changes bits: take the host out and test it",
                       "%s: %.0f elements are not the sum", size, wrong);
        } else {
            doctor_say(r, DOCTOR_OK, NULL, "%s across %d ranks by %s: right, %.1f us, %.3f GB/s", size, v->rank_count,
                       backend, seconds * 1e6, bytes / seconds / 1e9);
        }
    }
}
