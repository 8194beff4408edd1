/* Checks that nobody but this user, root, and the owners and groups of folders may exchange a
 * part of a path. A path is followed anew at each use, so whoever exchanges a part decides where
 * files are written and removed. Every part is checked, also the parts that links lead through. */
#include "base/file.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINKS 40 /* as many as the kernel follows */

/* The user says that nobody who may write to the folders will exchange anything. */
static bool trusts_all(void)
{
    const char *trust = getenv("DTRUN_TRUST_FOLDERS");
    return trust != NULL && strcmp(trust, "1") == 0;
}

/* Checks `part`, which lies in `folder`. part null: it is the last one, or nothing of that name
 * is there. above: of the folder. */
static int check_part(const char *folder, const struct stat *above, const char *part, const struct stat *st,
                      struct dt_error *err)
{
    if ((above->st_mode & S_IWOTH) == 0) {
        return 0;
    }
    bool foreign = part != NULL && st->st_uid != geteuid() && st->st_uid != 0;
    if (!foreign && (above->st_mode & S_ISVTX) != 0) {
        return 0;
    }
    if (trusts_all()) {
        return 0;
    }
    if (foreign) {
        char *chown = geteuid() == 0 ? dt_format(", run: chown 0 %s", part) : dt_strdup("");
        int rc = dt_fail(err, DT_INVALID,
                         "%s: belongs to user %u, and anybody could have put it into %s; choose another folder%s, or "
                         "set DTRUN_TRUST_FOLDERS=1 where this user is trusted",
                         part, (unsigned)st->st_uid, folder, chown);
        free(chown);
        return rc;
    }
    return dt_fail(err, DT_INVALID,
                   "%s: anybody may write to it (mode %04o), and so exchange what lies in it; choose another folder, "
                   "run: chmod o-w %s, or set DTRUN_TRUST_FOLDERS=1 where all users are trusted",
                   folder, (unsigned)above->st_mode & 07777, folder);
}

/* The first part of *rest, which then begins behind it; empty: there is none. */
static char *take_part(struct dt_text *rest)
{
    const char *p = dt_text_str(rest);
    p += strspn(p, "/");
    char *part = dt_format("%.*s", (int)strcspn(p, "/"), p), *left = dt_strdup(p + strlen(part));
    dt_text_reset(rest);
    dt_text_puts(rest, left);
    free(left);
    return part;
}

/* Puts what a link says before *rest; false: it cannot be read. */
static bool follow(const char *link, char **at, struct dt_text *rest)
{
    char target[PATH_MAX];
    ssize_t size = readlink(link, target, sizeof target);
    if (size <= 0 || size == (ssize_t)sizeof target) {
        return false;
    }
    char *left = dt_strdup(dt_text_str(rest));
    dt_text_reset(rest);
    dt_text_add(rest, target, (size_t)size);
    dt_text_puts(rest, left);
    free(left);
    if (target[0] == '/') {
        (*at)[1] = '\0';
    }
    return true;
}

/* From the folder *at, which holds no link, along `rest`. */
static int walk(char **at, struct dt_text *rest, struct dt_error *err)
{
    struct stat above, st;
    int rc = 0, links = 0;
    for (bool more = true; more && rc == 0;) {
        char *part = take_part(rest), *next = dt_format("%s/%s", strcmp(*at, "/") == 0 ? "" : *at, part);
        bool there = part[0] != '\0' && lstat(next, &st) == 0;
        if (strcmp(part, "..") == 0) {
            dt_file_strip(*at);
        } else if (strcmp(part, ".") != 0) {
            more = there && stat(*at, &above) == 0;
            rc = more || stat(*at, &above) == 0 ? check_part(*at, &above, there ? next : NULL, &st, err) : 0;
            if (more && S_ISLNK(st.st_mode)) {
                more = ++links <= LINKS && follow(next, at, rest);
            } else if (more) {
                char *before = *at;
                *at = next;
                next = before;
                more = S_ISDIR(st.st_mode);
            }
        }
        free(part);
        free(next);
    }
    return rc;
}

int dt_file_check_owner(const char *path, struct dt_error *err)
{
    char cwd[PATH_MAX], *at = dt_strdup("/");
    struct dt_text rest;
    int rc = 0;
    dt_text_init(&rest);
    if (path[0] == '/') {
        dt_text_puts(&rest, path);
    } else if (getcwd(cwd, sizeof cwd) != NULL) {
        dt_text_printf(&rest, "%s/%s", cwd, path);
    }
    rc = rest.size > 0 ? walk(&at, &rest, err) : 0; /* nothing can be made in a folder that is
                                                     * gone */
    dt_text_clear(&rest);
    free(at);
    return rc;
}
