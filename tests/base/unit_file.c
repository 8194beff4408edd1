/* covers: base/file.c launcher/output/log_tree.c worker/checkpoints/checkpoint.c worker/data/shards.c base/file_parts.c */
/* Names that others could guess: whatever was put there first is neither opened nor followed,
 * and nobody is held up by it. */
#include "base/file.h"
#include "launcher/output/log_tree.h"
#include "tests/lib/folder.h"
#include "worker/checkpoints/checkpoint.h"
#include "worker/data/shards.h"
#include "worker/data/safetensors.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cmocka.h>

static char place[128], victim[128];

/* ---- everything that makes a file by a fixed name ---- */

static int write_whole(struct dt_error *err)
{
    char path[160];
    (void)snprintf(path, sizeof path, "%s/file", place);
    return dt_file_write(path, "ours", 4, err);
}

static int append(struct dt_error *err)
{
    char path[160];
    (void)snprintf(path, sizeof path, "%s/lines", place);
    return dt_file_append_line(path, "ours", 4, err);
}

static int write_tensors(struct dt_error *err)
{
    static const int64_t shape = 2;
    static const struct st_entry entry = {.name = "x", .type = DT_F32, .dims = 1, .shape = &shape};
    static const float data[2] = {1, 2};
    char path[160];
    struct st_writer *w;
    (void)snprintf(path, sizeof path, "%s/tensors", place);
    if (st_writer_open(&w, path, &entry, 1, NULL, err) != 0) {
        return -1;
    }
    if (st_writer_data(w, data, sizeof data, err) != 0) {
        st_writer_abort(w);
        return -1;
    }
    return st_writer_close(w, err);
}

static int write_shards(struct dt_error *err)
{
    struct shard_writer *w;
    static const int32_t ids[3] = {1, 2, 3};
    const struct shard_form form = {.tokenizer = "bytes", .vocabulary = 256, .shard_tokens = 100};
    if (shard_writer_open(&w, place, "shard", &form, false, err) != 0) {
        return -1;
    }
    int rc =
        shard_writer_add(w, ids, 3, err) == 0 && shard_writer_finish(w, err) == 0 ? shard_writer_commit(w, err) : -1;
    shard_writer_close(w, false);
    return rc;
}

static int hold(struct dt_error *err)
{
    char path[160];
    int lock = -1;
    (void)snprintf(path, sizeof path, "%s/checkpoints", place);
    int rc = checkpoint_hold(path, "run", NULL, 1, 0, &lock, err);
    if (lock >= 0) {
        (void)close(lock);
    }
    return rc;
}

static int claim(struct dt_error *err)
{
    return checkpoint_claim(place, "run", NULL, 1, err);
}

static const struct {
    const char *trap; /* with %ld for our number: a passing name */
    const char *made; /* what must be there in the end; null: the trap's own name is one that
                       * stays, and is refused */
    int (*make)(struct dt_error *);
} rows[] = {
    {"file.tmp-%ld", "file", write_whole},
    {"tensors.tmp-%ld", "tensors", write_tensors},
    {".unfinished/shard-00000.bin", "shard-00000.bin", write_shards},
    {".unfinished/shard-00000.bin.json.tmp-%ld", "shard-00000.bin.json", write_shards},
    {"owner.json.tmp-%ld", "owner.json", claim},
    {"lines", NULL, append},
    {"checkpoints.lock", NULL, hold},
    {"owner.lock", NULL, claim},
};

static bool holds(const char *path, const char *expected)
{
    struct dt_text text;
    struct dt_error err;
    dt_text_init(&text);
    bool same = dt_file_read(path, 1000, &text, &err) == 0 && strcmp(dt_text_str(&text), expected) == 0;
    dt_text_clear(&text);
    return same;
}

static void what_was_put_there_first(void **state)
{
    (void)state;
    static const char *const kinds[] = {"link", "dangling", "fifo"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            struct dt_error err = {.text = ""};
            struct stat st;
            char trap[200], name[64], made[200], nowhere[200];
            (void)snprintf(name, sizeof name, rows[i].trap, (long)getpid()); // NOLINT: a row of the table
            (void)snprintf(trap, sizeof trap, "%s/%s", place, name);
            (void)snprintf(nowhere, sizeof nowhere, "%s/nowhere", folder);
            (void)snprintf(made, sizeof made, "%s", trap);
            dt_file_strip(made);
            assert_int_equal(dt_file_mkdirs(made, &err), 0);
            assert_int_equal(dt_file_write(victim, "theirs", 6, &err), 0);
            assert_int_equal(k == 0 ? symlink(victim, trap) : k == 1 ? symlink(nowhere, trap) : mkfifo(trap, 0600), 0);
            (void)alarm(20); /* a FIFO opened the usual way waits for ever */
            int rc = rows[i].make(&err);
            (void)alarm(0);
            if (rows[i].made != NULL) {
                (void)snprintf(made, sizeof made, "%s/%s", place, rows[i].made);
                if (rc != 0 || lstat(made, &st) != 0 || !S_ISREG(st.st_mode) || lstat(trap, &st) == 0) {
                    fail_msg("%s, %s: %s", name, kinds[k], err.text);
                }
            } else if (rc == 0 || err.status != DT_INVALID || strstr(err.text, name) == NULL ||
                       strstr(err.text, "; remove it") == NULL) {
                fail_msg("%s, %s: not refused: %s", name, kinds[k], err.text);
            }
            if (!holds(victim, "theirs") || dt_file_exists(nowhere)) {
                fail_msg("%s, %s: was followed", name, kinds[k]);
            }
            assert_int_equal(dt_file_remove_tree(place, &err), 0);
        }
    }
}

/* Nobody but the owner ever writes, whatever the umask allows. */
static void modes_have_a_limit(void **state)
{
    (void)state;
    struct dt_error err;
    char deep[160];
    mode_t before = umask(0);
    (void)snprintf(deep, sizeof deep, "%s/more/folders", place);
    assert_int_equal(dt_file_mkdirs(deep, &err), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(rows[i].make(&err), 0);
        if (rows[i].make == write_shards) {
            i++; /* has two rows, and writes its folder once */
        }
    }
    (void)umask(before);
    struct dirent **names;
    int count = scandir(place, &names, NULL, NULL), files = 0;
    for (int i = 0; i < count; i++) {
        char path[512];
        struct stat st;
        (void)snprintf(path, sizeof path, "%s/%s", place, names[i]->d_name);
        if (strcmp(names[i]->d_name, "..") != 0 && lstat(path, &st) == 0) {
            files += S_ISREG(st.st_mode);
            if ((st.st_mode & (S_ISDIR(st.st_mode) ? 022 : 0133)) != 0) {
                fail_msg("%s: mode %03o", path, (unsigned)st.st_mode & 0777);
            }
            const char *end = strrchr(path, '.');
            /* whoever may read it may lock it */
            if (end != NULL && strcmp(end, ".lock") == 0 && (st.st_mode & 0777) != 0600) {
                fail_msg("%s: mode %03o", path, (unsigned)st.st_mode & 0777);
            }
        }
        free(names[i]);
    }
    free(names);
    assert_true(files >= 8);
    assert_int_equal(dt_file_remove_tree(place, &err), 0);
}

/* ---- folders ---- */

static void a_folder_that_somebody_else_put_there(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        print_message("giving a folder to somebody else needs root\n");
        skip();
    }
    static const struct {
        unsigned above; /* mode of the folder it lies in */
        uid_t owner;
        bool link, refused;
    } cases[] = {{0777, 65534, false, true}, {01777, 65534, false, true}, {01777, 65534, true, true},
                 {01777, 0, false, false},   {01777, 0, true, false},     {0755, 65534, false, false}};
    struct dt_error err;
    char it[160], deeper[200], target[160], *base = NULL;
    (void)snprintf(it, sizeof it, "%s/it", place);
    (void)snprintf(deeper, sizeof deeper, "%s/new/run", it);
    (void)snprintf(target, sizeof target, "%s/target", folder);
    assert_int_equal(dt_file_mkdirs(target, &err), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(dt_file_mkdirs(place, &err), 0);
        assert_int_equal(chmod(place, cases[i].above), 0);
        assert_int_equal(cases[i].link ? symlink(target, it) : mkdir(it, 0777), 0);
        assert_int_equal(lchown(it, cases[i].owner, (gid_t)-1), 0);
        for (int deep = 0; deep < 2; deep++) {
            err.text[0] = '\0';
            int rc = dt_file_check_owner(deep ? deeper : it, &err);
            if (rc != (cases[i].refused ? -1 : 0) ||
                (rc != 0 && (err.status != DT_INVALID || strstr(err.text, "belongs to user 65534") == NULL))) {
                fail_msg("case %zu, %s: %s", i, deep ? "below" : "itself", err.text);
            }
        }
        char *logs = log_tree_open(it, "run", &base, &err);
        assert_true(cases[i].refused ? logs == NULL && strncmp(err.text, "--log_dir: ", 11) == 0 : logs != NULL);
        assert_null(base);
        free(logs);
        assert_int_equal(dt_file_remove_tree(place, &err), 0);
    }
    assert_int_equal(dt_file_check_owner(".", &err), 0);
}

/* "FOLDER/PARTS"; the caller frees. */
static char *below(const char *parts)
{
    return dt_format("%s/%s", folder, parts);
}

static void make_part(const char *parts, unsigned mode, uid_t owner)
{
    char *path = below(parts);
    assert_int_equal(mkdir(path, 0755), 0);
    assert_int_equal(chmod(path, mode), 0);
    assert_int_equal(chown(path, owner, (gid_t)-1), 0);
    free(path);
}

static void make_link(const char *target, const char *parts, uid_t owner)
{
    char *path = below(parts), *to = target[0] == '/' ? below(target + 1) : dt_strdup(target);
    assert_int_equal(symlink(to, path), 0);
    assert_int_equal(lchown(path, owner, (gid_t)-1), 0);
    free(to);
    free(path);
}

/* Every part counts, wherever a stranger could have changed the way: not only the last one, and
 * also what links lead through. */
static void every_part_of_a_path(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        print_message("giving a folder to somebody else needs root\n");
        skip();
    }
    static const struct {
        const char *path, *why; /* null: taken */
    } cases[] = {{"sticky/theirs", "/sticky/theirs: belongs to user 65534"},
                 {"sticky/theirs/deep", "/sticky/theirs: belongs to user 65534"}, /* which is ours, and not below all */
                 {"sticky/theirs/deep/new/run", "/sticky/theirs: belongs to user 65534"},
                 {"sticky/mine/new", NULL},
                 {"sticky/new/run", NULL},
                 {"sticky", NULL},
                 {"open/mine", "/open: anybody may write to it (mode 0777)"},
                 {"open/new/run", "/open: anybody may write to it (mode 0777)"},
                 {"open", "/open: anybody may write to it (mode 0777)"},
                 {"open/../mine", NULL}, /* nobody can change what .. is */
                 {"group/mine/new", NULL},
                 {"project/new", NULL}, /* of somebody whom the administrator gave it */
                 {"link-to-sticky/new", NULL},
                 {"link-through/new", "/sticky/theirs: belongs to user 65534"},
                 {"sticky/link-of-theirs/new", "/sticky/link-of-theirs: belongs to user 65534"},
                 {"sticky/link-of-mine/new", NULL},
                 {"relative/new", "/open: anybody may write to it (mode 0777)"},
                 {"loop/new", NULL}, /* whoever opens it says so */
                 {"file/new", NULL},
                 {"./mine//./../mine/new", NULL}};
    struct dt_error err;
    make_part("sticky", 01777, 0);
    make_part("sticky/theirs", 0755, 65534);
    make_part("sticky/theirs/deep", 0755, 0);
    make_part("sticky/mine", 0755, 0);
    make_part("open", 0777, 0);
    make_part("open/mine", 0755, 0);
    make_part("group", 02775, 0);
    make_part("group/mine", 0755, 0);
    make_part("project", 02775, 65534);
    make_part("mine", 0755, 0);
    make_link("/sticky", "link-to-sticky", 0);
    make_link("/sticky/theirs/deep", "link-through", 0);
    make_link("/mine", "sticky/link-of-theirs", 65534);
    make_link("../mine", "sticky/link-of-mine", 0);
    make_link("mine/../open/mine", "relative", 0);
    make_link("/loop", "loop", 0);
    char *file = below("file"), *here = getcwd(NULL, 0);
    assert_int_equal(dt_file_write(file, "x", 1, &err), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *whole = below(cases[i].path);
        for (int relative = 0; relative < 2; relative++) {
            assert_int_equal(chdir(relative ? folder : "/"), 0);
            err.text[0] = '\0';
            int rc = dt_file_check_owner(relative ? cases[i].path : whole, &err);
            if (rc != (cases[i].why != NULL ? -1 : 0) ||
                (rc != 0 && (err.status != DT_INVALID || strstr(err.text, cases[i].why) == NULL))) {
                fail_msg("%s: %d %s", cases[i].path, rc, err.text);
            }
        }
        assert_int_equal(cases[i].why != NULL ? dt_file_mkdirs(whole, &err) : 0, cases[i].why != NULL ? -1 : 0);
        free(whole);
    }
    char *mine = below("open/mine"), *theirs = below("sticky/theirs");
    assert_int_equal(setenv("DTRUN_TRUST_FOLDERS", "1", 1), 0);
    assert_int_equal(dt_file_check_owner(mine, &err), 0);
    assert_int_equal(dt_file_check_owner(theirs, &err), 0); /* a project's folder in a scratch
                                                             * space, say */
    assert_int_equal(unsetenv("DTRUN_TRUST_FOLDERS"), 0);
    assert_int_equal(dt_file_check_owner(theirs, &err), -1);
    assert_non_null(strstr(err.text, "choose another folder, run: chown 0 /"));
    assert_non_null(strstr(err.text, ", or set DTRUN_TRUST_FOLDERS=1 where this user is trusted"));
    assert_int_equal(chmod(folder, 0755), 0);
    assert_int_equal(seteuid(65533), 0);
    assert_int_equal(dt_file_check_owner(theirs, &err), -1);
    assert_int_equal(seteuid(0), 0);
    assert_null(strstr(err.text, "chown")); /* which only root may */
    assert_non_null(strstr(err.text, "choose another folder, or set DTRUN_TRUST_FOLDERS=1"));
    assert_int_equal(chdir(mine), 0);
    assert_int_equal(dt_file_check_owner("run", &err), -1); /* the folder that one is in has
                                                             * parts, too */
    assert_int_equal(chdir(here), 0);
    free(theirs);
    free(mine);
    free(file);
    free(here);
}

/* ---- removal ---- */

/* Asked of the first name, it puts a link to somebody else's folder in the place of the one that
 * is being emptied. */
static bool exchange(const void *context, const char *name)
{
    const char *const *paths = context;
    if (rename(paths[0], paths[1]) == 0) {
        assert_int_equal(symlink(paths[2], paths[0]), 0);
    }
    return strcmp(name, "kept") == 0;
}

static void a_removal_follows_nothing(void **state)
{
    (void)state;
    struct dt_error err;
    char *tree = below("tree"), *moved = below("moved"), *other = below("other"), *deep = below("tree/a/b/c"),
         *kept = below("tree/kept"), *link = below("tree/link"), *precious = below("other/a"),
         *there = below("moved/kept"), *gone = below("moved/a");
    assert_int_equal(dt_file_mkdirs(deep, &err), 0);
    assert_int_equal(dt_file_mkdirs(other, &err), 0);
    assert_int_equal(dt_file_write(precious, "theirs", 6, &err), 0);
    assert_int_equal(dt_file_write(kept, "ours", 4, &err), 0);
    assert_int_equal(symlink(other, link), 0);
    const char *paths[] = {tree, moved, other};
    assert_int_equal(dt_file_remove_others(tree, exchange, paths, &err), 0);
    assert_true(holds(precious, "theirs") && holds(there, "ours") && !dt_file_exists(gone));
    assert_int_equal(dt_file_remove_others(tree, NULL, NULL, &err), -1); /* a link by now */
    assert_true(holds(precious, "theirs"));
    assert_int_equal(dt_file_remove_tree(tree, &err), 0); /* the link itself */
    assert_true(holds(precious, "theirs"));
    assert_int_equal(dt_file_remove_tree(moved, &err), 0);
    assert_int_equal(dt_file_remove_tree(moved, &err), 0); /* it is not there */
    assert_false(dt_file_exists(moved));
    char *names[] = {tree, moved, other, deep, kept, link, precious, there, gone};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        free(names[i]);
    }
}

/* More names than one read of a folder gives, and folders in folders. */
static void a_removal_is_whole(void **state)
{
    (void)state;
    struct dt_error err;
    char *tree = below("tree");
    for (int i = 0; i < 3000; i++) {
        char *path = dt_format("%s/%d/a-name-that-takes-some-room-%d", tree, i % 3, i);
        if (i < 3) {
            assert_int_equal(dt_file_mkdirs(path, &err), 0);
        } else {
            assert_int_equal(close(dt_file_create(path, &err)), 0);
        }
        free(path);
    }
    assert_int_equal(dt_file_remove_tree(tree, &err), 0);
    assert_false(dt_file_exists(tree));
    free(tree);
}

/* A lock that an older version has made, and one that is there as something else. */
static void locks_are_for_their_owner(void **state)
{
    (void)state;
    struct dt_error err;
    struct stat st;
    char *path = below("some.lock");
    for (int old = 0; old < 2; old++) {
        mode_t before = umask(0);
        int fd = dt_file_open_lock(path, &err);
        (void)umask(before);
        assert_int_equal(fstat(fd, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0600);
        assert_int_equal(fchmod(fd, 0666), 0);
        (void)close(fd);
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink(victim, path), 0);
    assert_int_equal(dt_file_open_lock(path, &err), -1);
    assert_int_equal(err.status, DT_INVALID);
    assert_int_equal(unlink(path), 0);
    free(path);
}

static int setup(void **state)
{
    int rc = folder_setup(state);
    (void)snprintf(place, sizeof place, "%s/place", folder);
    (void)snprintf(victim, sizeof victim, "%s/victim", folder);
    return rc;
}

/* Another try finds the same: no failure of the disk. */
static void what_only_a_person_can_remove(void **state)
{
    (void)state;
    struct dt_error err;
    char path[200], in_it[220], loop[200];
    (void)snprintf(path, sizeof path, "%s/taken", folder);
    (void)snprintf(in_it, sizeof in_it, "%s/taken/below", folder);
    (void)snprintf(loop, sizeof loop, "%s/loop", folder);
    assert_int_equal(dt_file_mkdirs(in_it, &err), 0);
    assert_int_equal(dt_file_write(path, "x", 1, &err), -1);
    assert_int_equal(err.status, DT_INVALID);
    assert_non_null(strstr(err.text, "/taken: is a folder; remove it"));
    assert_int_equal(dt_file_open_own(path, O_RDWR, &err), -1);
    assert_int_equal(err.status, DT_INVALID);
    assert_non_null(strstr(err.text, "/taken: is a folder; remove it"));
    assert_int_equal(dt_file_append_line(path, "x", 1, &err), -1);
    assert_int_equal(err.status, DT_INVALID);
    assert_int_equal(dt_file_remove_tree(path, &err), 0);
    assert_int_equal(dt_file_write(path, "x", 1, &err), 0);
    assert_int_equal(dt_file_write(in_it, "x", 1, &err), -1);
    assert_int_equal(err.status, DT_INVALID);
    assert_non_null(strstr(err.text, ": a part of this path is a file; remove it"));
    assert_int_equal(dt_file_mkdirs(in_it, &err), -1);
    assert_int_equal(err.status, DT_INVALID);
    assert_non_null(strstr(err.text, "/taken: is not a folder; remove it"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink(loop, loop), 0);
    (void)snprintf(in_it, sizeof in_it, "%s/below", loop);
    assert_int_equal(dt_file_write(in_it, "x", 1, &err), -1);
    assert_int_equal(err.status, DT_INVALID);
    assert_non_null(strstr(err.text, ": its symbolic links go round; remove it"));
    assert_int_equal(unlink(loop), 0);
}

static void *write_late(void *path)
{
    usleep(200000);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(write(fd, "late", 4), 4);
    (void)close(fd);
    return NULL;
}

/* Pipes are read as files where people may give one; one without a writer, and anything else in
 * the place of a file of ours, holds nobody up. */
static void what_is_no_file(void **state)
{
    (void)state;
    struct dt_error err;
    struct dt_text text;
    pthread_t thread;
    char path[200], by_number[64];
    int ends[2];
    dt_text_init(&text);
    (void)snprintf(path, sizeof path, "%s/pipe", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    (void)alarm(20);
    assert_int_equal(dt_file_read_own(path, 1000, &text, &err), -1);
    assert_int_equal(err.status, DT_INVALID);
    assert_non_null(strstr(err.text, "/pipe: is not a regular file"));
    assert_int_equal(dt_file_read_own(folder, 1000, &text, &err), -1);
    assert_int_equal(err.status, DT_INVALID);
    assert_non_null(strstr(err.text, ": is a folder"));
    assert_int_equal(dt_file_read(path, 1000, &text, &err), -1);
    assert_int_equal(err.status, DT_INVALID);
    assert_non_null(strstr(err.text, "/pipe: is a pipe, and nobody has written to it for 5 s; give a file"));
    assert_int_equal(pthread_create(&thread, NULL, write_late, path), 0);
    assert_int_equal(dt_file_read(path, 1000, &text, &err), 0);
    assert_string_equal(text.data, "late");
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "shell", 5), 5);
    (void)close(ends[1]);
    (void)snprintf(by_number, sizeof by_number, "/dev/fd/%d", ends[0]);
    assert_int_equal(dt_file_read(by_number, 1000, &text, &err), 0);
    assert_string_equal(text.data, "shell");
    (void)close(ends[0]);
    assert_int_equal(dt_file_read("/proc/self/stat", 1 << 16, &text, &err), 0);
    assert_int_equal(dt_file_read("/dev/null", 1000, &text, &err), 0);
    (void)alarm(0);
    assert_int_equal(unlink(path), 0);
    dt_text_clear(&text);
}

/* As root a file that is renamed would take the device's name, for everybody. */
static void a_device_stays(void **state)
{
    (void)state;
    struct dt_error err;
    struct stat is;
    char path[64];
    int ends[2];
    char got[8] = "";
    dev_t null = makedev(1, 3);
    (void)snprintf(path, sizeof path, "%s/null", folder);
    if (mknod(path, S_IFCHR | 0666, null) == 0) { /* as root */
        assert_true(dt_file_is_device(path));
        assert_int_equal(dt_file_write(path, "text", 4, &err), 0);
        assert_int_equal(lstat(path, &is), 0);
        assert_true(S_ISCHR(is.st_mode) && is.st_rdev == null);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(pipe(ends), 0);
    (void)snprintf(path, sizeof path, "/dev/fd/%d", ends[1]);
    assert_int_equal(dt_file_write(path, "text", 4, &err), 0);
    assert_int_equal(read(ends[0], got, sizeof got), 4);
    assert_string_equal(got, "text");
    (void)close(ends[0]);
    (void)close(ends[1]);
    assert_true(dt_file_is_device("/dev/stdout"));
    assert_false(dt_file_is_device("/dev/shm/x"));
    assert_false(dt_file_is_device(folder));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_put_there_first),
        cmocka_unit_test(what_is_no_file),
        cmocka_unit_test(what_only_a_person_can_remove),
        cmocka_unit_test(modes_have_a_limit),
        cmocka_unit_test(a_folder_that_somebody_else_put_there),
        cmocka_unit_test(every_part_of_a_path),
        cmocka_unit_test(a_removal_follows_nothing),
        cmocka_unit_test(a_removal_is_whole),
        cmocka_unit_test(locks_are_for_their_owner),
        cmocka_unit_test(a_device_stays),
    };
    return cmocka_run_group_tests(tests, setup, folder_teardown);
}
