/* covers: collectives/shm.c */
/* Tickets for shared memory, which come through a store: anybody's words, good for what they may
 * name and for nothing else. */
#include "base/text.h"
#include "collectives/shm.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* A ticket for memory of `pid`: the first words of a true one, with other numbers. */
static char *forge(const char *honest, int pid, int fd, uintptr_t address, const char *nonce, const char *size)
{
    return dt_format("shm1 %.*s %d %d %lx %s %s", (int)strcspn(honest + 5, " "), honest + 5, pid, fd,
                     (unsigned long)address, nonce, size);
}

static void refused(const char *ticket, size_t size_bytes)
{
    struct shm_map m = {0};
    struct dt_error err = {0};
    if (shm_map_take(&m, ticket, size_bytes, &err) == 0 || m.front != NULL ||
        (err.status != DT_INVALID && err.status != DT_PEER)) {
        fail_msg("taken: %s", ticket);
    }
}

/* Of our own process a ticket is good for what shm_map_make has made and nobody has dropped:
 * another address, nonce or size is never looked at. */
static void tickets_of_ones_own_process(void **unused)
{
    (void)unused;
    struct dt_error err;
    struct shm_map made = {0}, second = {0};
    char ticket[DT_COMM_TICKET_BYTES], nonce[32], *text;
    int fd = -1;
    assert_int_equal(shm_map_make(&made, 8192, &fd, ticket, &err), 0);
    (void)snprintf(nonce, sizeof nonce, "%llx", (unsigned long long)made.front->nonce);
    struct shm_front *bait = aligned_alloc(4096, 16384); /* looks like one of ours */
    memcpy(bait, made.front, sizeof *bait);
    uintptr_t own = (uintptr_t)made.front;
    const struct {
        uintptr_t address;
        const char *nonce, *size;
    } lies[] = {{0x414141414000, nonce, "8192"},
                {0, nonce, "8192"},
                {(uintptr_t)bait, nonce, "8192"},
                {own + 4096, nonce, "8192"},
                {own, "1", "8192"},
                {own, nonce, "8191"},
                {own, nonce, "18446744073709547520"},
                {own, nonce, "-1"},
                {own, nonce, "99999999999999999999"},
                {own, "-1", "8192"},
                {own, "fffffffffffffffff", "8192"},
                {own, nonce, "8192 x"}};
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        text = forge(ticket, getpid(), fd, lies[i].address, lies[i].nonce, lies[i].size);
        refused(text, 8192);
        free(text);
    }
    refused("", 8192);
    refused("shm1", 8192);
    refused("shm1  1 1 1 1 8192", 8192);
    refused("tcp1 a b 1 1 8192", 8192);
    text = forge(ticket, getpid(), fd, own, nonce, "18446744073709547520");
    refused(text, (size_t)-4096); /* with the front page its size wraps around */
    free(text);
    assert_int_equal(shm_map_take(&second, ticket, 8192, &err), 0);
    assert_ptr_equal(second.front, made.front);
    shm_map_drop(&made);
    second.base[8191] = 1; /* still there */
    shm_map_drop(&second);
    refused(ticket, 8192);
    free(bait);
    (void)close(fd);
}

/* A process that holds what `make` gives it and says its ticket, until it is ended. */
static pid_t hold(int (*make)(char *ticket), char ticket[DT_COMM_TICKET_BYTES])
{
    int said[2];
    assert_int_equal(pipe2(said, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        char own[DT_COMM_TICKET_BYTES] = "";
        if (make(own) == 0 && write(said[1], own, sizeof own) == (ssize_t)sizeof own) {
            (void)pause();
        }
        _exit(1);
    }
    (void)close(said[1]);
    assert_int_equal(read(said[0], ticket, DT_COMM_TICKET_BYTES), DT_COMM_TICKET_BYTES);
    (void)close(said[0]);
    return pid;
}

static int make_honest(char *ticket)
{
    static struct shm_map m;
    struct dt_error err;
    int fd;
    return shm_map_make(&m, 8192, &fd, ticket, &err);
}

/* An honest front page in memory that a peer must not take; `how` says what is wrong with it. */
static enum { OTHER_NAME, NOT_SEALED, TOO_SHORT, FILE_ON_DISK, PIPE, OTHER_USER, FLAWS } flaw;

static int make_flawed(char *ticket)
{
    struct shm_map m;
    struct dt_error err;
    int honest = -1, fd = -1, ends[2];
    if (shm_map_make(&m, 8192, &honest, ticket, &err) != 0) {
        return -1;
    }
    if (flaw == FILE_ON_DISK) {
        fd = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    } else if (flaw == PIPE) {
        fd = pipe(ends) == 0 ? ends[0] : -1;
    } else {
        fd = memfd_create(flaw == OTHER_NAME ? "dtrun-com" : "dtrun-comm", MFD_ALLOW_SEALING);
    }
    if (fd < 0 || (flaw == OTHER_USER && fchown(fd, 65534, 65534) != 0)) {
        return -1;
    }
    if (flaw != PIPE &&
        (pwrite(fd, m.front, sizeof *m.front, 0) < 0 || ftruncate(fd, flaw == TOO_SHORT ? 8192 : 8192 + 4096) != 0)) {
        return -1;
    }
    if (flaw != NOT_SEALED && flaw != FILE_ON_DISK && flaw != PIPE &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        return -1;
    }
    char nonce[32], *text;
    (void)snprintf(nonce, sizeof nonce, "%llx", (unsigned long long)m.front->nonce);
    text = forge(ticket, getpid(), fd, 0, nonce, "8192");
    (void)snprintf(ticket, DT_COMM_TICKET_BYTES, "%s", text);
    free(text);
    return 0;
}

static void end(pid_t pid)
{
    (void)kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* Of another process it is good for a memory file of ours that cannot change its size, and for
 * nothing else that lies behind a descriptor. */
static void tickets_of_another_process(void **unused)
{
    (void)unused;
    struct dt_error err;
    struct shm_map m = {0};
    char ticket[DT_COMM_TICKET_BYTES];
    pid_t pid = hold(make_honest, ticket);
    assert_int_equal(shm_map_take(&m, ticket, 8192, &err), 0);
    m.base[8191] = 1;
    shm_map_drop(&m);
    refused(ticket, 4096);
    end(pid);
    refused(ticket, 8192);
    for (flaw = 0; flaw < FLAWS; flaw++) {
        if (flaw == OTHER_USER && geteuid() != 0) {
            continue; /* only root can give memory away */
        }
        pid = hold(make_flawed, ticket);
        refused(ticket, 8192);
        end(pid);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tickets_of_ones_own_process),
        cmocka_unit_test(tickets_of_another_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
